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
KILLED_AT = LOST_AT = 2


@pytest.fixture(scope="module")
def rayed(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """Ray Train, where a worker is lost with trainspan and none without, and Ray Tune, with and without."""
    alone = start("ray_workers.py", "train", "tune")
    recorded = start("ray_workers.py", "lose", "tune", "class", state=tmp_path_factory.mktemp("ray"))
    return Pair(alone.ended(), recorded.ended())


@pytest.fixture(scope="module")
def on_nodes(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Ray Train on two nodes, of which one is lost, and is away for longer than Ray waits for it."""
    return start("ray_nodes.py", state=tmp_path_factory.mktemp("nodes")).ended()


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


def test_trial_of_a_class_is_a_run_over_what_begins_it_anew(rayed: Pair) -> None:
    """Its steps run in the process itself, and return what a function reports."""
    found = [one for one in rayed.recorded.recordings if one.identity.run.startswith("class.")]
    first, second = sorted(found, key=lambda one: one.identity.attempt)

    assert first.identity.run == second.identity.run
    assert [one.identity.attempt for one in (first, second)] == [0, 1]
    assert [len(one.steps) for one in (first, second)] == [RANKS * STEPS] * 2
    kinds = [
        [event.get("kind", event.get("type")) for event in one.events if event["event"] in ("checkpoint", "exception")]
        for one in (first, second)
    ]
    assert kinds == [["save", "ValueError"], ["load", "save"]]
    for one in (first, second):
        [scalars] = [event for event in one.events if event["event"] == "scalars"]
        assert list(scalars["values"]) == ["loss"]
        assert in_good_order(one)


def test_workers_on_several_nodes_are_ranks_of_one_run(on_nodes: Run) -> None:
    """Each is the first of its node, as Ray has numbered them."""
    recordings = recordings_of(on_nodes, "spread")

    assert [recordings[1, line["rank"]].identity.pid for line in on_nodes.lines] == [
        line["pid"] for line in on_nodes.lines
    ]
    assert {line["on_other"] for line in on_nodes.lines} == {True, False}
    for (_, rank), one in recordings.items():
        assert one.identity[4:8] == (0, rank, RANKS, 1)
        assert one.identity.node_rank == on_nodes.lines[rank]["node"]
    assert all(in_good_order(recordings[1, rank]) for rank in range(RANKS))
    assert [len(recordings[1, rank].steps) for rank in range(RANKS)] == [STEPS] * RANKS


def test_attempts_are_those_that_had_workers(on_nodes: Run) -> None:
    """While the lost node is away, Ray starts the training again and again, with nobody in it."""
    attempts = {attempt for attempt, _ in recordings_of(on_nodes, "spread")}

    assert attempts == {0, 1}
    assert "trainspan:" not in on_nodes.stderr


def test_rank_on_the_lost_node_has_died(on_nodes: Run) -> None:
    """Of the two of the first attempt one is gone with its node, and the other is told or hears of it."""
    ends = {}
    for (attempt, _), one in recordings_of(on_nodes, "spread").items():
        if attempt == 0:
            told = {event["event"] for event in one.events} & {"stopped", "exception"}
            ends[bool(told)] = one.closed_ns is not None, len(one.steps)

    assert set(ends) == {True, False}
    assert ends[False] == (False, LOST_AT)
