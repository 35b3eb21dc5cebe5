"""Who a process is, and the ids that follow from it."""

import os
import random
import re
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainspan import settings
from trainspan.identity import (
    Assignment,
    Identity,
    World,
    assigned,
    identify,
    is_launched,
    is_named,
    new_run_id,
    span_id_of,
    trace_id_of,
)
from trainspan.role import Role

TORCHRUN = {
    "RANK": "11",
    "LOCAL_RANK": "3",
    "GROUP_RANK": "1",
    "WORLD_SIZE": "16",
    "LOCAL_WORLD_SIZE": "8",
    "TORCHELASTIC_RUN_ID": "bert-42",
    "TORCHELASTIC_RESTART_COUNT": "2",
    "TORCHELASTIC_MAX_RESTARTS": "3",
}
SLURM = {
    "SLURM_JOB_ID": "81723",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "2",
    "SLURM_NTASKS": "8",
}


def identity_in(environ: dict[str, str]) -> Identity:
    """The identity of a rank with this environment."""
    return identify(settings.load(environ)[0], environ, Role.RANK)


def test_worker_of_torchrun() -> None:
    """The most common launcher: every field comes from it."""
    environ = TORCHRUN

    found = identity_in(environ)

    assert found == Identity(
        role="rank",
        run="bert-42",
        attempt=2,
        rank=11,
        local_rank=3,
        node_rank=1,
        world_size=16,
        local_world_size=8,
        host=os.uname().nodename,
        pid=os.getpid(),
        launcher="torchrun",
    )


def test_task_of_slurm() -> None:
    """`srun python train.py` has no torchrun: rank and run come from the scheduler."""
    environ = SLURM

    found = identity_in(environ)

    assert (found.run, found.launcher) == ("81723.0", "slurm")
    assert (found.rank, found.local_rank, found.node_rank, found.world_size) == (5, 1, 2, 8)


@pytest.mark.parametrize(
    ("told", "local_world_size"),
    [
        ({"SLURM_GTIDS": "4,5,6"}, 3),
        ({"SLURM_GTIDS": "4,5,6", "SLURM_NTASKS_PER_NODE": "8"}, 3),
        ({"SLURM_NTASKS_PER_NODE": "8"}, 8),
        ({"SLURM_GTIDS": ""}, 1),
        ({"SLURM_GTIDS": "4,5,6", "LOCAL_WORLD_SIZE": "2"}, 2),
        ({"SLURM_GTIDS": "0", "SLURM_STEP_ID": "4294967291"}, 1),
    ],
)
def test_tasks_of_a_node_are_counted(told: dict[str, str], local_world_size: int) -> None:
    """`srun -n 8` says how many there are of all; what a job was to have per node, its steps inherit, true or not."""
    found = identity_in({**SLURM, **told})

    assert found.local_world_size == local_world_size


OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "5",
    "OMPI_COMM_WORLD_SIZE": "8",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
    "PMIX_RANK": "5",
}
MPICH = {"PMI_RANK": "5", "PMI_SIZE": "8", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "4"}
MVAPICH = {
    "MV2_COMM_WORLD_RANK": "5",
    "MV2_COMM_WORLD_SIZE": "8",
    "MV2_COMM_WORLD_LOCAL_RANK": "1",
    "MV2_COMM_WORLD_LOCAL_SIZE": "4",
}
RAY_TRAIN = {
    "RAY_JOB_ID": "02000000",
    "RANK": "5",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "8",
    "LOCAL_WORLD_SIZE": "4",
    "NODE_RANK": "1",
}
DEEPSPEED = {
    "RANK": "5",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "8",
    "LOCAL_SIZE": "4",
    "CROSS_RANK": "1",
    "CROSS_SIZE": "2",
}
BATCH_SCRIPT = {
    "SLURM_JOB_ID": "77",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
    "SLURM_NTASKS": "8",
}


PLACE = (5, 1, 1, 8, 4)

LAUNCHERS = {"openmpi": OPEN_MPI, "mpich": MPICH, "mvapich": MVAPICH, "ray": RAY_TRAIN, "deepspeed": DEEPSPEED}


@pytest.mark.parametrize("environ", LAUNCHERS.values(), ids=LAUNCHERS)
def test_rank_of_another_launcher(environ: dict[str, str]) -> None:
    """`mpirun` numbers no nodes, and Ray Train sets torch's names: both come to the same rank."""
    found = identity_in(environ)

    assert (found.rank, found.local_rank, found.node_rank) == (5, 1, 1)
    assert (found.world_size, found.local_world_size) == (8, 4)
    assert is_launched(environ)


def test_mpirun_inside_a_batch_script_counts_its_own_ranks() -> None:
    """All of them inherit the task number of the script, or of the daemon that started them: zero on each node."""
    environ = {**BATCH_SCRIPT, **OPEN_MPI}

    found = identity_in(environ)

    assert (found.rank, found.local_rank, found.world_size) == (5, 1, 8)


@pytest.mark.parametrize("step", [{}, {"SLURM_STEP_ID": "4294967290"}, {"SLURM_STEP_ID": "4294967291"}])
def test_batch_script_is_no_task_of_its_job(step: dict[str, str]) -> None:
    """`python prepare.py` between two `srun`s is one process, and not rank 0 of 8; nor is an interactive shell."""
    environ = {**BATCH_SCRIPT, **step}

    found = identity_in(environ)

    assert (found.run, found.rank, found.world_size) == ("77", 0, 1)
    assert not is_launched(environ)


def test_rank_that_lightning_started() -> None:
    """`python train.py` with two devices: Lightning tells the rank in the node, and of one node that is the rank."""
    environ = {"LOCAL_RANK": "1", "NODE_RANK": "0", "WORLD_SIZE": "2"}

    found = identity_in(environ)

    assert (found.rank, found.local_rank, found.node_rank) == (1, 1, 0)
    assert (found.world_size, found.local_world_size) == (2, 2)


@pytest.mark.parametrize(
    "environ",
    [
        {"LOCAL_RANK": "1", "NODE_RANK": "1", "WORLD_SIZE": "4"},
        {"LOCAL_RANK": "1", "WORLD_SIZE": "4"},
        {"LOCAL_RANK": "4", "NODE_RANK": "0", "WORLD_SIZE": "4"},
        {"LOCAL_RANK": "x", "NODE_RANK": "0", "WORLD_SIZE": "4"},
    ],
)
def test_rank_is_not_guessed(environ: dict[str, str]) -> None:
    """On another node it is another one, and how many ranks a node has is not said."""
    assert identity_in(environ).rank == 0


def test_process_alone() -> None:
    """`python train.py`: rank 0 of 1, and a run id of its own."""
    first, second = identity_in({}), identity_in({})

    assert first[2:8] == (0, 0, 0, 0, 1, 1)
    assert first.launcher == "process"
    assert first.run != second.run


def test_torchrun_inside_slurm_counts_as_torchrun() -> None:
    """`srun torchrun`: the scheduler counts agents, torchrun counts ranks."""
    environ = {**SLURM, **TORCHRUN}

    found = identity_in(environ)

    assert (found.rank, found.local_rank, found.node_rank, found.world_size) == (11, 3, 1, 16)
    assert found.launcher == "torchrun"


@pytest.mark.parametrize(
    ("environ", "run", "launcher"),
    [
        ({**SLURM, **TORCHRUN, "TRAINSPAN_RUN_ID": "mine", "RAY_JOB_ID": "r"}, "mine", "user"),
        ({**TORCHRUN, "RAY_JOB_ID": "raysubmit_1"}, "raysubmit_1", "ray"),
        ({"RAY_JOB_ID": "01000000", "RAY_SESSION_NAME": "session_1"}, "session_1.01000000", "ray"),
        ({"KUBEFLOW_TRAINING_JOB_ID": "job-7", **SLURM}, "job-7", "kubeflow"),
        ({"SLURM_JOB_ID": "81723"}, "81723", "slurm"),
        ({"TORCHELASTIC_RUN_ID": "none", **SLURM}, "81723.0", "slurm"),
        ({"TORCHELASTIC_RUN_ID": "none", "TRAINSPAN_LAUNCH_ID": "20261121-x"}, "20261121-x", "trainspan"),
        ({"TRAINSPAN_LAUNCH_ID": "20261121-x", **TORCHRUN}, "bert-42", "torchrun"),
    ],
)
def test_run_is_named_by_who_knows_best(environ: dict[str, str], run: str, launcher: str) -> None:
    """All processes of a run must come to the same name; torchrun's `none` is the same for every job."""
    found = identity_in(environ)

    assert (found.run, found.launcher) == (run, launcher)


@pytest.mark.parametrize(
    ("environ", "attempt"),
    [
        ({}, 0),
        ({"TORCHELASTIC_RESTART_COUNT": "2", "TORCHELASTIC_MAX_RESTARTS": "3"}, 2),
        ({"SLURM_RESTART_COUNT": "2"}, 2),
        ({"SLURM_RESTART_COUNT": "1", "TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_MAX_RESTARTS": "3"}, 4),
        ({"SLURM_RESTART_COUNT": "2", "TORCHELASTIC_RESTART_COUNT": "1", "TORCHELASTIC_MAX_RESTARTS": "3"}, 9),
        ({"SLURM_RESTART_COUNT": "2", "TRAINSPAN_ATTEMPT": "5"}, 5),
        ({"SLURM_RESTART_COUNT": "2", "TRAINSPAN_ATTEMPT": "0"}, 0),
        ({"TRAINSPAN_ATTEMPT": "5", "TORCHELASTIC_RESTART_COUNT": "2", "TORCHELASTIC_MAX_RESTARTS": "3"}, 7),
        # Each of two nodes may begin three restarts of all.
        ({"SLURM_RESTART_COUNT": "1", "TORCHELASTIC_MAX_RESTARTS": "3", "GROUP_WORLD_SIZE": "2"}, 7),
        # The agent has counted for all nodes, and from TRAINSPAN_ATTEMPT on.
        ({"TRAINSPAN_LAUNCH_ATTEMPT": "4", "TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_MAX_RESTARTS": "3"}, 4),
        ({"TRAINSPAN_LAUNCH_ATTEMPT": "9", "TORCHELASTIC_RESTART_COUNT": "1", "TRAINSPAN_ATTEMPT": "7"}, 9),
        # No worker of torchrun: it is left over from one that surrounds it.
        ({"TRAINSPAN_LAUNCH_ATTEMPT": "4", "SLURM_RESTART_COUNT": "2"}, 2),
    ],
)
def test_attempt_counts_every_restart_once(environ: dict[str, str], attempt: int) -> None:
    """Two incarnations with one number would have the same ids, and be drawn on top of each other."""
    found = identity_in(environ)

    assert found.attempt == attempt


@pytest.mark.parametrize(
    ("environ", "given", "run", "attempt", "launcher"),
    [
        ({}, Assignment("llama 7", 2, *PLACE), "llama-7", 2, "ray"),
        ({"SLURM_RESTART_COUNT": "3"}, Assignment("llama", None, *PLACE), "llama", 3, "ray"),
        ({"TRAINSPAN_RUN_ID": "mine"}, Assignment("llama", 2, *PLACE), "mine", 2, "user"),
        (TORCHRUN, Assignment("llama", 0, *PLACE), "llama", 0, "ray"),
    ],
)
def test_who_gives_a_process_its_work_knows_best(
    environ: dict[str, str], given: Assignment, run: str, attempt: int, launcher: str
) -> None:
    """Its environment is that of a process that was started for anything; but the user's name for the run stands."""
    found = assigned(identity_in(environ), given, settings.load(environ)[0])

    assert (found.run, found.attempt, found.launcher) == (run, attempt, launcher)
    assert (found.rank, found.local_rank, found.node_rank, found.world_size, found.local_world_size) == PLACE


@pytest.mark.parametrize("value", ["", "-1", "three", "1.5", "0x3", " ", "²", "9" * 5000])
def test_rank_that_is_no_number_is_passed_over(value: str) -> None:
    """RANK is a common word: other programs set it to what they like, and nothing may be raised."""
    environ = {"RANK": value, "OMPI_COMM_WORLD_RANK": "4"}

    found = identity_in(environ)

    assert found.rank == 4


@pytest.mark.parametrize(
    ("hostile", "run"),
    [
        ("../../x", "x"),
        ("/etc/passwd", "etc-passwd"),
        ("..", "run"),
        (".", "run"),
        ("---", "run"),
        (".hidden", "hidden"),
        ("-rf", "rf"),
        ("a/../../b", "a-..-..-b"),
        ("two words\nand a line", "two-words-and-a-line"),
        ("läufer", "l-ufer"),
        ("語" * 200, "run"),
        ("x" * 500, "x" * 128),
    ],
)
def test_run_from_outside_is_safe_as_a_folder(hostile: str, run: str) -> None:
    """The run's name becomes a path: it must not lead anywhere else, nor read as an option."""
    environ = {"TORCHELASTIC_RUN_ID": hostile}

    found = identity_in(environ)

    assert found.run == run


@given(st.text(alphabet=st.characters(exclude_characters="\0", exclude_categories=()), min_size=1))
def test_any_run_becomes_one_folder_name(hostile: str) -> None:
    """What an environment may hold is not ours to choose, bytes that are no text included."""
    environ = {"RAY_JOB_ID": hostile}

    found = identity_in(environ)

    assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}", found.run)


def test_new_run_ids_differ_whatever_the_seed() -> None:
    """Two jobs started in the same second with the same seed are two runs."""
    random.seed(1)
    first = new_run_id()
    random.seed(1)

    second = new_run_id()

    assert first != second
    assert re.fullmatch(r"\d{8}-\d{6}-[0-9a-f]{8}", first)


def test_ids_are_fixed() -> None:
    """Relays of two versions meet in one run: ids that change would tear its traces apart."""
    trace_ids = [
        f"{trace_id_of('run', 0, 'step', 7):032x}",
        f"{trace_id_of('run', 0, 'attempt'):032x}",
        f"{trace_id_of('run', 1, 'step', 7):032x}",
    ]
    span_ids = [
        f"{span_id_of('run', 0, 'step', 7):016x}",
        f"{span_id_of('run', 0, 'step', 7, 'rank', 3, 'training.forward', 0):016x}",
        f"{span_id_of('Läufer', 0, 'attempt'):016x}",
    ]

    assert trace_ids == [
        "285af1cbed545e7bac87ef1dad9c0dbb",
        "5adb9941b2f9406850a8bfb7f3b3471e",
        "2d6d0a7b5c0b171533e65219606b0b1f",
    ]
    assert span_ids == ["3634a1cfe977a443", "3366cf932338dd3f", "f56a97c21d4ad232"]


@given(st.text(max_size=20), st.integers(0, 2**31), st.integers(0, 2**62))
def test_ids_fit_the_wire_and_are_never_zero(run: str, attempt: int, step: int) -> None:
    """Zero means that there is no id; a bit too many is refused by every backend."""
    run = run.encode(errors="replace").decode()

    trace_id, span_id = trace_id_of(run, attempt, "step", step), span_id_of(run, attempt, "step", step)

    assert 0 < trace_id < 1 << 128
    assert 0 < span_id < 1 << 64


def test_ids_of_different_things_differ() -> None:
    """Names are joined before they are hashed: `1, 23` must not be `12, 3`."""
    ids = [
        span_id_of("run", 1, "step", 23),
        span_id_of("run", 12, "step", 3),
        span_id_of("run1", 1, "step", 23),
        span_id_of("run", 1, "step", 23, "rank", 0),
        span_id_of("run", 1, "step23"),
        trace_id_of("run", 1, "step", 23) & (1 << 64) - 1,
        trace_id_of("run", 1, "step", 23) >> 64,
    ]

    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("seed", ["0", "1", "random"])
def test_ids_depend_on_no_seed_and_disturb_none(seed: str) -> None:
    """Every relay computes its peers' ids, in a process of its own; the user's random stream is not ours."""
    program = (
        "import random; before = random.getstate();"
        "from trainspan.identity import trace_id_of, span_id_of;"
        "print(trace_id_of('run', 0, 'step', 7), span_id_of('run', 0, 'step', 7), random.getstate() == before)"
    )
    environ = {**os.environ, "PYTHONHASHSEED": seed}

    ran = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=True)

    assert ran.stdout.split() == [str(trace_id_of("run", 0, "step", 7)), str(span_id_of("run", 0, "step", 7)), "True"]


def world_in(environ: dict[str, str], world: World) -> tuple[int, int, int, int]:
    """Rank, local rank, and how many there are of both, of a process whose script has told torch of a world."""
    found = identify(settings.load(environ)[0], environ, Role.RANK, world)
    return found.rank, found.local_rank, found.world_size, found.local_world_size


@pytest.mark.parametrize("place", ["localhost:29500", "127.0.0.1:29500", "[::1]:29500"])
def test_rank_that_a_script_tells_torch(place: str) -> None:
    """`mp.spawn`: nothing in the environment says it; whoever meets at a loopback address is on one host."""
    assert world_in({}, World(3, 4, place)) == (3, 3, 4, 4)


@pytest.mark.parametrize("place", ["node-0:29500", "/shared/store", None])
def test_rank_that_may_be_on_another_host(place: str | None) -> None:
    """How many are on this one, nobody says."""
    assert world_in({}, World(3, 4, place)) == (3, 0, 4, 1)


def test_what_a_script_tells_torch_counts_more_than_what_it_has_inherited() -> None:
    """A pod with rank 1 of 2 pods, whose script spawns four ranks."""
    environ = {"RANK": "1", "WORLD_SIZE": "2"}

    assert world_in(environ, World(5, 8, "pod-0:29500")) == (5, 0, 8, 1)


def test_launcher_that_says_the_same_knows_more() -> None:
    """It counts the ranks of a node."""
    assert world_in(TORCHRUN, World(11, 16, "localhost:1")) == (11, 3, 16, 8)


def test_ranks_of_a_shell_are_counted_where_they_meet_on_one_host() -> None:
    """`RANK=1 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 python train.py`: all of them are here."""
    environ = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}

    found = identity_in(environ)

    assert (found.local_rank, found.local_world_size, found.node_rank) == (1, 2, 0)


@pytest.mark.parametrize(
    ("environ", "named"),
    [
        ({}, False),
        ({"TRAINSPAN_LAUNCH_ID": "command"}, False),
        ({"TRAINSPAN_LAUNCH_ID": "command", "TORCHELASTIC_RUN_ID": "none"}, True),
        ({"TRAINSPAN_RUN_ID": "mine"}, True),
        (TORCHRUN, True),
        (RAY_TRAIN, True),
        ({**RAY_TRAIN, "RAY_SESSION_NAME": "session_1"}, False),
        (SLURM, True),
        (BATCH_SCRIPT, False),
    ],
)
def test_name_is_of_one_job_or_of_all_that_a_command_starts(environ: dict[str, str], *, named: bool) -> None:
    """A sweep inherits the name of its command, and must not be one run."""
    assert is_named(identity_in(environ), environ) is named
