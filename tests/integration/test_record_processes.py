"""Processes that a training process starts: each records itself if it trains, and nothing otherwise."""

from pathlib import Path

import pytest

from tests.integration.recorded import Pair, Run, in_good_order, phases_of, run_both, start

WAYS = {"fork": 2, "spawn": 1, "forkserver": 1}
"""To start a process, and how many DataLoader workers are started so: one that is not forked imports torch."""

STEP = ["data_wait", "h2d", "forward", "backward", "optimizer"]


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """Training with DataLoader workers, started in each way."""
    runs = {
        way: start("workers.py", way, str(count), state=tmp_path_factory.mktemp(f"workers-{way}"))
        for way, count in WAYS.items()
    }
    return {way: run.ended() for way, run in runs.items()}


@pytest.fixture(scope="module")
def launches(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """Two ranks that a script launches by itself, in each way."""
    runs = {way: start("launches.py", way, "", state=tmp_path_factory.mktemp(f"launches-{way}")) for way in WAYS}
    return {way: run.ended() for way, run in runs.items()}


@pytest.fixture(scope="module")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """Training that forks in the middle of every phase, and starts programs afterwards."""
    return run_both("forks.py", state=tmp_path_factory.mktemp("forks"))


@pytest.mark.parametrize("way", WAYS)
def test_workers_leave_the_recording_to_their_parent(workers: dict[str, Run], way: str) -> None:
    """They inherit the ring or the rank's variables, and here they even compute gradients: they train nothing."""
    run = workers[way]

    [recording] = run.recordings
    assert [phases_of(step) for step in recording.steps] == [
        ["data_wait", *STEP],
        *[STEP] * 3,
        ["data_wait", "data_wait", *STEP],
        *[STEP] * 3,
    ]
    assert in_good_order(recording)
    assert (run.exit_code, run.stderr) == (0, "")


def test_workers_make_the_same_batches_however_they_are_started(workers: dict[str, Run]) -> None:
    """A worker whose random state we had touched would train another model."""
    weights = {run.lines[0]["weights"] for run in workers.values()}

    assert len(weights) == 1


def test_fork_in_a_phase_leaks_no_mark(forks: Pair) -> None:
    """The child of a fork returns through the hooks in which it was forked, with the parent's memory still mapped."""
    recording = forks.recording_of("forks")

    assert [phases_of(step) for step in recording.steps] == [["data_wait", *STEP], STEP, STEP]
    assert in_good_order(recording)
    assert forks.differences("pid") == [{}]
    assert forks.recorded.lines[0]["children"] == 4 * 3


def test_only_a_program_that_makes_an_optimizer_is_recorded(forks: Pair) -> None:
    """Scripts ask small programs about the machine, with a rank's variables and torch in them."""
    ranks = {recording.identity.rank: len(recording.steps) for recording in forks.recorded.recordings}

    assert ranks == {0: 3, 1: 1}
    assert len(forks.recorded.recordings) == 2


@pytest.mark.parametrize("way", WAYS)
def test_ranks_of_a_script_record_themselves(launches: dict[str, Run], way: str) -> None:
    """Notebooks and `mp.spawn` launch ranks without a launcher; multiprocessing ends them past `atexit`."""
    run = launches[way]

    assert [recording.identity.rank for recording in run.recordings] == [0, 1]
    assert [[phases_of(step) for step in recording.steps] for recording in run.recordings] == [
        [["forward", "backward", "optimizer"]] * 4
    ] * 2
    assert all(in_good_order(recording) for recording in run.recordings)
    assert (run.exit_code, run.stderr) == (0, "")


def test_exception_that_ends_a_launched_rank_is_recorded(tmp_path: Path) -> None:
    """multiprocessing catches it before `sys.excepthook` could see it; the rank would seem to have ended well."""
    run = start("launches.py", "fork", "fail", state=tmp_path).ended()

    [failed] = [recording for recording in run.recordings if recording.identity.rank == 1]
    [exception] = [event for event in failed.events if event["event"] == "exception"]
    assert exception["type"] == "ArithmeticError"
    assert exception["stack"][-1].endswith(" in rank_main")
    assert failed.closed_ns is not None
    assert (len(failed.steps), run.exit_code) == (1, 1)
