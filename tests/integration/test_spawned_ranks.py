"""Ranks that a script or a shell starts itself: one run, each with its rank, though no variable tells either."""

import sys
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import Any

import pytest

from tests.integration.recorded import (
    SCRIPTS,
    Pair,
    Recording,
    Run,
    Training,
    in_good_order,
    phases_of,
    run_both,
    start,
)
from tests.integration.relayed import REPOSITORY, by_trace, spans_of, train, wait_for_relays
from tests.ports import free_port
from trainspan.testing.otlp_sink import OtlpSink

RANKS = 2
STEPS = 6
# The first batch, and the second, which the loader has fetched ahead.
LOADED = [["data_wait", "data_wait", "h2d", "forward", "backward", "optimizer"]]
LOADED += [["data_wait", "h2d", "forward", "backward", "optimizer"]] * (STEPS - 1)

FORKED = ("fork", "fork_early", "parent", "sweep", "sweep_of_jobs")
LAUNCHERS = {
    "notebook_launcher": ["cell", "cell again"],
    "debug_launcher": ["debug_launcher"],
    "ddp_notebook": ["ddp_notebook"],
    "ddp_spawn": ["ddp_spawn"],
}
"""Of frameworks: what their ranks report."""

of_frameworks = pytest.mark.skipif(
    not all(map(find_spec, ("accelerate", "lightning"))),
    reason="not all frameworks are installed: would show that ranks which they spawn are one run",
)


@pytest.fixture(scope="module")
def forked(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """Ranks and others that a script forks, with and without trainspan."""
    return run_both("spawned.py", *FORKED, state=tmp_path_factory.mktemp("forked"))


@pytest.fixture(scope="module")
def launched(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Ranks that frameworks start by a fork."""
    forking = [name for name in LAUNCHERS if name != "ddp_spawn"]
    return start("spawned.py", *forking, state=tmp_path_factory.mktemp("launched")).ended()


@pytest.fixture(scope="module")
def lightning_spawned(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Those that Lightning spawns."""
    return start("spawned.py", "ddp_spawn", state=tmp_path_factory.mktemp("spawned")).ended()


@pytest.fixture(scope="module")
def shells(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Ranks that a shell starts in the background."""
    return start("spawned.py", "shell", "arguments", state=tmp_path_factory.mktemp("shells")).ended()


def recordings_of(run: Run, scenario: str) -> list[Recording]:
    """The recordings of the processes that report `scenario`, in the order of the ranks they report."""
    lines = [line for line in run.lines if line.get("scenario") == scenario]
    pids = [line["pid"] for line in sorted(lines, key=lambda line: line["rank"])]
    return [found for pid in pids for found in run.recordings if found.identity.pid == pid]


def ranks_of(recordings: list[Recording]) -> list[tuple[int, int, int, int]]:
    """Of each: rank, of how many, and the same on its host."""
    identities = [one.identity for one in recordings]
    return [(one.rank, one.world_size, one.local_rank, one.local_world_size) for one in identities]


def runs_of(recordings: list[Recording]) -> set[str]:
    """Their runs."""
    return {recording.identity.run for recording in recordings}


ALL = [(rank, RANKS, rank, RANKS) for rank in range(RANKS)]


def test_spawned_ranks_of_a_step_are_one_trace(tmp_path: Path) -> None:
    """torch's own tutorial: `mp.spawn`, twice, on one port; the two trainings are two runs."""
    with OtlpSink("http/protobuf") as sink:
        environ = {**sink.environ, "PYTHONPATH": str(REPOSITORY)}
        ended = train("spawned.py", "spawn", state=tmp_path, environ=environ)
        assert (ended.exit_code, ended.stderr) == (0, "")
        wait_for_relays(tmp_path)

    spans = spans_of(sink)
    steps = [trace for trace in by_trace(spans).values() if any(span.name == "training.step" for span in trace)]
    runs: dict[Any, list[int]] = {}
    for trace in steps:
        [root] = [span for span in trace if not span.parent]
        parts = {span.span: span for span in trace if span.name == "training.rank_step"}
        phases = [span for span in trace if span.parent in parts]
        runs.setdefault(root.resource["training.run.id"], []).append(root.attributes["training.step"])
        assert sorted(part.attributes["training.rank"] for part in parts.values()) == list(range(RANKS))
        assert {part.parent for part in parts.values()} == {root.span}
        assert {span.resource["training.run.id"] for span in trace} == {root.resource["training.run.id"]}
        for span in (*parts.values(), *phases):
            assert span.resource["training.rank"] == span.attributes["training.rank"]
            assert span.resource["training.world_size"] == RANKS
        for phase in phases:
            assert phase.attributes["training.rank"] == parts[phase.parent].attributes["training.rank"]
    assert [sorted(numbers) for numbers in runs.values()] == [list(range(STEPS))] * 2


def test_nothing_in_a_rank_differs(forked: Pair) -> None:
    """Weights and generators; threads and sockets of gloo come and go by themselves."""
    differences = forked.differences("pid", "threads", "sockets")

    assert differences == [{}] * len(forked.recorded.lines)
    assert {line["exit_code"] for line in forked.recorded.lines if "name" in line} == {0}
    assert not any(line.startswith("trainspan:") for line in forked.recorded.stderr.splitlines())


@pytest.mark.parametrize("scenario", ["fork", "children"])
def test_processes_of_a_group_are_ranks_of_one_run(forked: Pair, scenario: str) -> None:
    """Rank and world size are what the script has told torch; a DataLoader's worker is no rank."""
    recordings = recordings_of(forked.recorded, scenario)

    assert ranks_of(recordings) == ALL
    assert len(runs_of(recordings)) == 1
    assert [[phases_of(step) for step in recording.steps] for recording in recordings] == [LOADED] * RANKS
    assert all(in_good_order(recording) for recording in recordings)


def test_rank_recorded_as_one_process_goes_on_as_a_rank(forked: Pair) -> None:
    """An optimizer begins the recording, and here comes before the group; nothing of the beginning is lost."""
    recordings = recordings_of(forked.recorded, "early")

    ranks = [recording for recording in recordings if recording.steps]
    told = [{event.get("name") for event in recording.events if event["event"] == "span"} for recording in ranks]
    assert ranks_of(ranks) == ALL
    assert len(runs_of(ranks)) == 1
    assert all(names >= {"training.init.optimizer", "training.init.process_group"} for names in told)
    assert all(in_good_order(recording) for recording in recordings)
    assert len(recordings) == 2 * RANKS


def test_parent_that_trains_is_a_run_of_its_own(forked: Pair) -> None:
    """What it trains is another thing than its children do, before them and after them."""
    [parent] = {recording.identity.pid: recording for recording in recordings_of(forked.recorded, "parent")}.values()
    children = recordings_of(forked.recorded, "children")

    assert (parent.identity.rank, parent.identity.world_size) == (0, 1)
    assert len(parent.steps) == 2 * STEPS
    assert runs_of([parent]).isdisjoint(runs_of(children))


def test_trainings_of_a_sweep_stay_apart(forked: Pair) -> None:
    """They share the parent and the moment, and are no ranks of each other."""
    recordings = recordings_of(forked.recorded, "sweep")

    assert ranks_of(recordings) == [(0, 1, 0, 1)] * RANKS
    assert len(runs_of(recordings)) == RANKS


def test_jobs_of_a_sweep_stay_apart(forked: Pair) -> None:
    """Each has an address of its own, and so a run."""
    one, another = recordings_of(forked.recorded, "one job"), recordings_of(forked.recorded, "another")

    assert ranks_of(one) == ranks_of(another) == ALL
    assert len(runs_of(one)) == len(runs_of(another)) == 1
    assert runs_of(one) != runs_of(another)


@of_frameworks
@pytest.mark.parametrize("scenario", [one for several in LAUNCHERS.values() for one in several])
def test_ranks_that_a_framework_starts_are_one_run(request: pytest.FixtureRequest, scenario: str) -> None:
    """Each launcher tells the rank in another way."""
    run: Run = request.getfixturevalue("lightning_spawned" if scenario == "ddp_spawn" else "launched")

    recordings = recordings_of(run, scenario)

    assert [recording.identity.rank for recording in recordings] == list(range(RANKS))
    assert {recording.identity.world_size for recording in recordings} == {RANKS}
    assert len(runs_of(recordings)) == 1
    assert [len(recording.steps) for recording in recordings] == [STEPS] * RANKS


@of_frameworks
def test_cell_that_is_run_again_is_another_run(launched: Run) -> None:
    """The notebook goes on, and with it everything that it has in its environment."""
    runs = [runs_of(recordings_of(launched, scenario)) for scenario in LAUNCHERS["notebook_launcher"]]
    agents = [one for one in launched.recordings if one.identity.role == "agent"]

    assert runs[0] != runs[1]
    assert {agent.identity.run for agent in agents} == runs[0] | runs[1]
    assert all(agent.closed_ns is not None for agent in agents)


@pytest.mark.parametrize("scenario", ["today", "tomorrow", "arguments"])
def test_ranks_of_a_shell_are_one_run(shells: Run, scenario: str) -> None:
    """`RANK=0 python train.py & RANK=1 python train.py &`, or each by an argument."""
    recordings = recordings_of(shells, scenario)

    assert ranks_of(recordings) == ALL
    assert len(runs_of(recordings)) == 1
    assert [[phases_of(step) for step in recording.steps] for recording in recordings] == [LOADED] * RANKS


def test_port_that_is_used_again_is_another_run(shells: Run) -> None:
    """Most scripts have one port for ever."""
    today, tomorrow = recordings_of(shells, "today"), recordings_of(shells, "tomorrow")

    assert runs_of(today) != runs_of(tomorrow)


@pytest.fixture(scope="module")
def below_mpirun(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Ranks with the environment of an `mpirun`, which train twice."""
    return start("spawned.py", "mpirun", state=tmp_path_factory.mktemp("mpirun")).ended()


def test_trainings_of_an_mpirun_are_runs_of_its_name(below_mpirun: Run) -> None:
    """`mpirun sh -c 'python a.py; python b.py'`: no rank has another's parent, and no address is known at first."""
    once, again = (recordings_of(below_mpirun, scenario) for scenario in ("once", "again"))

    [first], [second] = runs_of(once), runs_of(again)

    assert (ranks_of(once), ranks_of(again)) == (ALL, ALL)
    assert first.startswith("mpirun-")
    assert second == f"{first}-2"
    assert len(below_mpirun.recordings) == 2 * RANKS


def test_jobs_after_another_are_attempts_of_a_run(tmp_path: Path) -> None:
    """A training takes longer than a job may; its ranks agree on the number, and nobody counts."""
    run = start("spawned.py", "chained", state=tmp_path, TRAINSPAN_RUN_ID="llama-7").ended()

    jobs = [recordings_of(run, scenario) for scenario in ("first job", "next job")]
    assert [ranks_of(recordings) for recordings in jobs] == [ALL, ALL]
    assert [{one.identity.attempt for one in recordings} for recordings in jobs] == [{0}, {1}]
    assert runs_of(run.recordings) == {"llama-7"}


@pytest.mark.skipif(
    which("mpirun.openmpi") is None,
    reason="no mpirun of Open MPI here: would show that ranks which the real one starts are one run, each in its place",
)
def test_ranks_of_the_real_open_mpi_are_one_run(tmp_path: Path) -> None:
    """Its variables are nobody's promise: what was recorded of versions 4 and 5 need not be what the next one sets."""
    line = f"{sys.executable} {SCRIPTS / 'spawned.py'} below_mpirun; :"
    command = ["mpirun.openmpi", "--oversubscribe", "--bind-to", "none", "-np", str(RANKS), "/bin/sh", "-c", line]
    names = ("OMPI_ALLOW_RUN_AS_ROOT", "PRTE_ALLOW_RUN_AS_ROOT")
    as_root = {f"{name}{confirm}": "1" for name in names for confirm in ("", "_CONFIRM")}

    run = Training(command, tmp_path, {**as_root, "PORT": str(free_port()), "SCENARIO": "real"}).ended()

    recordings = recordings_of(run, "real")
    assert (run.exit_code, ranks_of(recordings)) == (0, ALL)
    assert len(runs_of(recordings)) == 1


def test_sweep_under_a_command_stays_apart(tmp_path: Path) -> None:
    """`trainspan run -- python sweep.py` names one run, which the first training takes."""
    run = start("spawned.py", "sweep", state=tmp_path, TRAINSPAN_LAUNCH_ID="command").ended()

    assert runs_of(run.recordings) == {"command", "command-2"}
