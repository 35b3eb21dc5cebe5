"""Ray as it is installed: its workers are ranks of one run over all restarts, and a trial is a run."""

from importlib.util import find_spec

import pytest

from tests.integration.recorded import Pair, Recording, Run, in_good_order, phases_of, start

pytestmark = pytest.mark.skipif(
    find_spec("ray") is None or find_spec("pandas") is None,
    reason="no ray[train,tune] is installed: would show that its workers are ranks of one run, and a trial is a run",
)

RANKS = 2
STEPS = 4
KILLED_AT = 2


@pytest.fixture(scope="module")
def rayed(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """Ray Train, where a worker is lost with trainspan and none without, and Ray Tune, with and without."""
    alone = start("ray_workers.py", "train", "tune")
    recorded = start("ray_workers.py", "lose", "tune", state=tmp_path_factory.mktemp("ray"))
    return Pair(alone.ended(), recorded.ended())


def recordings_of(recorded: Run, run: str) -> dict[tuple[int, int], Recording]:
    """The recordings of a run, by attempt and rank."""
    found = [one for one in recorded.recordings if one.identity.run == run]
    recordings = {(one.identity.attempt, one.identity.rank): one for one in found}
    assert len(recordings) == len(found)
    return recordings


def test_nothing_that_ray_trains_differs(rayed: Pair) -> None:
    """Weights and generators of the workers, which without trainspan none has begun anew, and of the trials."""
    differences = rayed.differences("pid")

    assert differences == [{}] * (RANKS + 2)
    assert "trainspan:" not in rayed.recorded.stderr


def test_workers_are_ranks_of_one_run_over_restarts(rayed: Pair) -> None:
    """They are processes that Ray has started for anything, and begins anew as others."""
    recordings = recordings_of(rayed.recorded, "bert")

    assert set(recordings) == {(attempt, rank) for attempt in range(2) for rank in range(RANKS)}
    assert {one.identity[4:8] for one in recordings.values() if one.identity.rank == 1} == {(1, 0, RANKS, RANKS)}
    assert [len(recordings[1, rank].steps) for rank in range(RANKS)] == [STEPS] * RANKS
    assert all(in_good_order(recordings[1, rank]) for rank in range(RANKS))
    assert [phases_of(step)[-1] for step in recordings[1, 0].steps] == ["optimizer"] * STEPS
    unfinished = recordings[1, 0].unfinished
    assert unfinished is not None
    assert "collective" in phases_of(unfinished)


def test_worker_that_was_killed_has_not_ended_well(rayed: Pair) -> None:
    """Ray kills the other one, too, which is told of it or hears that its peer is gone."""
    killed, left = (recordings_of(rayed.recorded, "bert")[0, rank] for rank in (1, 0))

    assert (killed.closed_ns, len(killed.steps)) == (None, KILLED_AT)
    assert [event["event"] for event in killed.events if event["event"] in ("stopped", "exception")] == []
    assert [event["event"] for event in left.events if event["event"] in ("stopped", "exception")] != []


def test_trial_is_a_run_of_its_own(rayed: Pair) -> None:
    """All come from one job of Ray's, one after the other from one process."""
    runs = {one.identity.run for one in rayed.recorded.recordings if one.identity.run.startswith("sweep.")}

    assert len(runs) == 2
    trials = [recording for run in runs for recording in recordings_of(rayed.recorded, run).values()]
    assert [(one.identity.attempt, one.identity.world_size, len(one.steps)) for one in trials] == [
        (0, 1, RANKS * STEPS)
    ] * 2
    assert len({one.identity.pid for one in trials}) == 1
    assert all(in_good_order(one) for one in trials)
    assert all("loss" in event["values"] for one in trials for event in one.events if event["event"] == "scalars")
