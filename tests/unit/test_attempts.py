"""The next attempt of a run has a number that none before it had, and that nobody beside it gets."""

import contextlib
import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from trainspan.identity import Identity, identify
from trainspan.recording import attempts
from trainspan.role import Role
from trainspan.settings import load

RUN = {"TRAINSPAN_RUN_ID": "llama-7"}
TORCHRUN = {"TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_MAX_RESTARTS": "3", "WORLD_SIZE": "1", "RANK": "0"}


def numbered(
    state: Path, environ: dict[str, str], pid: int, *, begins: bool = True, undo: contextlib.ExitStack | None = None
) -> Identity:
    """Who a process of that environment is, once it has asked for its number."""
    everything = {**environ, "TRAINSPAN_DIR": str(state)}
    settings, _ = load(everything)
    identity = identify(settings, everything, Role.RANK)._replace(pid=pid)
    return attempts.numbered(identity, settings, everything, begins=begins, undo=undo)


def launched(state: Path, environ: dict[str, str]) -> list[int]:
    """The numbers that three launches after another get."""
    return [numbered(state, environ, pid).attempt for pid in (1001, 1002, 1003)]


def test_launches_of_a_named_run_count_up(tmp_path: Path) -> None:
    """`TRAINSPAN_RUN_ID=llama-7 python train.py`, again and again, is what people do."""
    assert launched(tmp_path, RUN) == [0, 1, 2]


@pytest.mark.parametrize(
    "environ",
    [
        {**RUN, "TRAINSPAN_ATTEMPT": "4"},
        {**RUN, **TORCHRUN, "TRAINSPAN_LAUNCH_ATTEMPT": "4"},
    ],
    ids=["given", "by the agent"],
)
def test_number_that_somebody_has_given_stays(tmp_path: Path, environ: dict[str, str]) -> None:
    """Who counts, counts."""
    assert launched(tmp_path, environ) == [4, 4, 4]
    assert list(tmp_path.iterdir()) == []


def srun(rank: int, job: str, **more: str) -> dict[str, str]:
    """The environment of a rank that `srun` has started in that job."""
    ranks = {"SLURM_PROCID": str(rank), "SLURM_NTASKS": "2"}
    return {**RUN, "SLURM_CLUSTER_NAME": "tiny", "SLURM_JOB_ID": job, "SLURM_STEP_ID": "0", **ranks, **more}


def mpirun(rank: int, key: str, **more: str) -> dict[str, str]:
    """The same of Open MPI."""
    ranks = {"OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": "2"}
    return {**RUN, "OMPI_MCA_orte_precondition_transports": key, **ranks, **more}


def of_hydra(rank: int, key: str) -> dict[str, str]:
    """The same of Intel MPI."""
    return {**RUN, "I_MPI_HYDRA_UUID": key, "PMI_RANK": str(rank), "PMI_SIZE": "2"}


def in_job(rank: int, key: str) -> dict[str, str]:
    """Open MPI 5 in a batch script; its process number is the same in both jobs."""
    job = {"SLURM_JOB_ID": key, "PMIX_NAMESPACE": "prterun-n1-30486@1"}
    return {**RUN, **job, "OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": "2"}


@pytest.mark.parametrize("launcher", [srun, mpirun, of_hydra, in_job])
def test_ranks_of_a_launch_are_one_attempt_and_those_of_the_next_another(
    tmp_path: Path, launcher: Callable[[int, str], dict[str, str]]
) -> None:
    """One job after another under one name, as a training goes on that takes longer than a job may."""
    launches = [launcher(rank, job) for job in ("81", "82", "83") for rank in (0, 1)]

    numbers = [numbered(tmp_path, environ, 1001 + at).attempt for at, environ in enumerate(launches)]

    assert numbers == [0, 0, 1, 1, 2, 2]


def test_rank_that_comes_late_finds_its_launch(tmp_path: Path) -> None:
    """Another of the same run may have begun since."""
    launches = [srun(0, "81"), srun(0, "82"), srun(1, "81"), srun(1, "82"), RUN, srun(0, "83")]

    numbers = [numbered(tmp_path, environ, 1001 + at).attempt for at, environ in enumerate(launches)]

    assert numbers == [0, 1, 0, 1, 2, 3]


def test_requeued_job_is_another_launch(tmp_path: Path) -> None:
    """It has the same number, and begins its steps anew; what the scheduler counts is the least."""
    launches = [srun(rank, "81", SLURM_RESTART_COUNT=count) for count in ("0", "1", "4") for rank in (0, 1)]

    numbers = [numbered(tmp_path, environ, 1001 + at).attempt for at, environ in enumerate(launches)]

    assert numbers == [0, 0, 1, 1, 4, 4]


def test_steps_of_a_job_are_launches(tmp_path: Path) -> None:
    """A batch script may start its training again."""
    numbers = [numbered(tmp_path, srun(0, "81", SLURM_STEP_ID=step), int(step)).attempt for step in ("0", "1")]

    assert numbers == [0, 1]


def test_who_only_asks_begins_nothing(tmp_path: Path) -> None:
    """But is told what its launch has begun."""
    before = numbered(tmp_path, srun(1, "82"), 1000, begins=False).attempt
    first, second = (numbered(tmp_path, srun(0, job), pid).attempt for pid, job in ((1001, "81"), (1002, "82")))
    after = numbered(tmp_path, srun(1, "82"), 1003, begins=False).attempt

    assert (before, first, second, after) == (0, 0, 1, 1)


def test_ranks_that_begin_at_once_agree(tmp_path: Path) -> None:
    """Four launches of sixteen ranks: whoever comes first has the number for all of its own."""
    launches = [f"srun-tiny-{job}" for job in range(4)] * 16

    with ProcessPoolExecutor(8, mp_context=multiprocessing.get_context("fork")) as processes:
        taken = list(processes.map(attempts.take_next, [tmp_path] * 64, [0] * 64, [None] * 64, launches))

    assert sorted(set(zip(launches, taken, strict=True))) == sorted(zip(launches, taken[:4], strict=False))
    assert sorted(taken[:4]) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"TRAINSPAN_LAUNCH_ID": "20261122-1"},
        {**RUN, "RANK": "1", "WORLD_SIZE": "2"},
        {**RUN, **TORCHRUN},
        {**srun(0, "81"), "TRAINSPAN_RUN_ID": ""},
        {**RUN, "SLURM_JOB_ID": "81", "RANK": "1", "WORLD_SIZE": "2"},
    ],
    ids=[
        "nameless",
        "named by us",
        "one of two ranks",
        "without an agent that tells",
        "of a step",
        "of a batch script",
    ],
)
def test_who_does_not_decide_alone_finds_nothing_out(tmp_path: Path, environ: dict[str, str]) -> None:
    """Ranks side by side would each find another number; a new name has no attempts."""
    assert launched(tmp_path, environ) == [0, 0, 0]
    assert list(tmp_path.iterdir()) == []


def test_process_is_one_attempt_however_often_it_asks(tmp_path: Path) -> None:
    """It may open more than one recording, and spans of its own ask before the first."""
    before = numbered(tmp_path, RUN, 1001, begins=False).attempt

    assert [numbered(tmp_path, RUN, 1001, begins=begins).attempt for begins in (True, False, True)] == [before] * 3


def test_process_that_may_never_train_takes_no_number(tmp_path: Path) -> None:
    """A preprocessing script of the same job makes no run."""
    assert [numbered(tmp_path, RUN, pid, begins=False).attempt for pid in (1001, 1002)] == [0, 0]
    assert list(tmp_path.iterdir()) == []


def test_schedulers_count_is_the_least(tmp_path: Path) -> None:
    """A job that was queued again on a node which knows nothing of it is no first attempt; nor is the next job."""
    requeued = {**RUN, "SLURM_RESTART_COUNT": "2"}

    assert numbered(tmp_path, requeued, 1001).attempt == 2
    assert numbered(tmp_path, requeued, 1002).attempt == 3
    assert numbered(tmp_path, RUN, 1003).attempt == 4


def test_folder_that_cannot_be_used_keeps_nobody_from_training(tmp_path: Path) -> None:
    """Who then records says what is wrong with it."""
    (tmp_path / "runs").write_text("no folder")

    assert numbered(tmp_path, RUN, 1001).attempt == 0


def test_other_files_in_the_folder_count_for_nothing(tmp_path: Path) -> None:
    """An editor's, a file system's, an attacker's."""
    folder = tmp_path / "attempts"
    folder.mkdir(mode=0o700)
    for name in ("3", "12.swp", ".nfs0001", "²", "-5", "9" * 50):
        (folder / name).touch()

    assert attempts.next_of(tmp_path) == 4


def test_number_of_a_refused_recording_is_free_again(tmp_path: Path) -> None:
    """A run has as many attempts as have trained in it, and no folder where none has."""
    with contextlib.ExitStack() as undo:
        taken = [numbered(tmp_path, RUN, 1001, undo=undo).attempt for _ in range(2)]

    assert taken == [0, 0]
    assert list(tmp_path.iterdir()) == []
    assert numbered(tmp_path, RUN, 1001).attempt == numbered(tmp_path, RUN, 1002).attempt - 1 == 0


def test_number_is_taken_once(tmp_path: Path) -> None:
    """Eight processes that begin at once are eight attempts."""
    with ProcessPoolExecutor(8, mp_context=multiprocessing.get_context("fork")) as processes:
        taken = list(processes.map(attempts.take_next, [tmp_path] * 32, [0] * 32))

    assert sorted(taken) == list(range(32))
