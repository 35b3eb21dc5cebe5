"""Models spread over ranks: sharded by FSDP1 and FSDP2, and cut into the stages of a pipeline."""

from collections import Counter

import pytest

from tests.integration.recorded import Pair, Recording, in_good_order, phases_of, run_both
from trainspan.relay.timeline.collectives import Collectives

STEPS = 4
MICROBATCHES = 4
STRATEGIES = ("fsdp1", "fsdp2", "pipeline")
STEP = ["forward", "backward", "grad_clip", "optimizer"]


@pytest.fixture(scope="module")
def spread(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Pair]:
    """Each job, with and without trainspan."""
    return {name: run_both("spread.py", name, state=tmp_path_factory.mktemp(name), ranks=2) for name in STRATEGIES}


def counted(recording: Recording) -> Counter[str]:
    """Collectives of the rank by operation."""
    collectives, counts = Collectives(), Counter[str]()
    for event in recording.events:
        for calls in collectives.take(event):
            counts[calls.kind.op] += calls.more
    return counts


def facts_of(recording: Recording) -> dict[str, object]:
    """What the rank says it trains."""
    [event] = [event for event in recording.events if event["event"] == "facts"]
    facts: dict[str, object] = event["attributes"]
    return facts


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_nothing_in_the_ranks_differs(spread: dict[str, Pair], strategy: str) -> None:
    """Shards of the weights, generators, sockets and threads."""
    pair = spread[strategy]

    assert pair.differences("pid") == [{}, {}]
    assert (pair.recorded.exit_code, pair.recorded.stderr) == (pair.alone.exit_code, pair.alone.stderr)
    assert pair.alone.exit_code == 0


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("strategy", ["fsdp1", "fsdp2"])
def test_shards_are_gathered_within_the_phases(spread: dict[str, Pair], strategy: str, rank: int) -> None:
    """The step looks as it does on one rank; what went over the wire in it is counted."""
    recording = spread[strategy].recording_of(strategy, rank)

    assert [phases_of(step) for step in recording.steps] == [STEP] * STEPS
    assert [step.microbatches for step in recording.steps] == [1] * STEPS
    assert in_good_order(recording)
    # Two halves, each gathered for forward and again for backward.
    assert (counted(recording)["all_gather"], counted(recording)["reduce_scatter"]) == (4 * STEPS, 2 * STEPS)
    facts = facts_of(recording)
    assert (facts["training.strategy"], facts["training.model.class"]) == (strategy, "Sequential")


@pytest.mark.parametrize("rank", [0, 1])
def test_a_pipelines_step_holds_its_microbatches(spread: dict[str, Pair], rank: int) -> None:
    """What the stages try out before the first step is none of them, and waiting for a neighbour is no idling."""
    recording = spread["pipeline"].recording_of("pipeline", rank)

    calls = [Counter(phases_of(step)) for step in recording.steps]
    assert [(c["forward"], c["backward"], c["optimizer"]) for c in calls] == [(MICROBATCHES, MICROBATCHES, 1)] * STEPS
    assert [step.microbatches for step in recording.steps] == [MICROBATCHES] * STEPS
    assert all(c["collective"] >= 2 * MICROBATCHES for c in calls[1:])
    assert in_good_order(recording)
    assert counted(recording)["send"] >= MICROBATCHES * STEPS
    assert facts_of(recording)["training.strategy"] == "pipeline"


def test_stages_alternate_forward_and_backward(spread: dict[str, Pair]) -> None:
    """One forward, one backward: the first stage is one ahead."""
    last = [spread["pipeline"].recording_of("pipeline", rank).steps[-1] for rank in (0, 1)]

    order = ["".join(phase[0] for phase in phases_of(step) if phase in ("forward", "backward")) for step in last]

    assert order == ["ffbfbfbb", "fbfbfbfb"]
