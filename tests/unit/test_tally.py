"""What a relay counts of a rank that another relay has told of before."""

import pytest
from opentelemetry.sdk.metrics.export import HistogramDataPoint

from trainspan.clock import Anchor
from trainspan.names import Phase
from trainspan.relay.signals.aggregates import ExplicitAggregate, StepAggregates
from trainspan.relay.tally import Tally
from trainspan.relay.timeline.checkpoints import Checkpoint
from trainspan.relay.timeline.collectives import Call, Calls, Group, Kind
from trainspan.relay.timeline.own_time import OwnTime
from trainspan.relay.timeline.rank_summary import TellingOfMetrics
from trainspan.relay.timeline.records import phase_times_of
from trainspan.relay.timeline.waits import Stay, Wait
from trainspan.testing.builders import rank_step

ANCHOR = Anchor(0, 1_700_000_000_000_000_000)
TAKEN = ANCHOR.unix_of(1000)
KIND = Kind("all_reduce", Group("0", "world", (0, 1)), 64)
SAVE = Checkpoint("save", "blocking", True, 2, 5, None, None)


def tallied(told: TellingOfMetrics | None) -> tuple[Tally, StepAggregates]:
    """The tally of three steps of 10 ns from 100 on, each with an event before it and a wait in it."""
    aggregates = StepAggregates(ExplicitAggregate)
    tally = Tally(aggregates, told, ANCHOR, TAKEN)
    for number in range(3):
        step = rank_step(number, [(Phase.FORWARD, 10)], start_ns=100 + 10 * number)
        step = step._replace(skipped=True)
        tally.event()
        tally.calls(Calls(KIND, 1))
        tally.checkpoint(SAVE)
        tally.step(step, phase_times_of(step), [Stay(Call(KIND, number), step.start_ns, step.end_ns)])
        tally.timed_step(step, {Phase.FORWARD: 7})
        tally.waits([Wait(KIND, step.start_ns, step.end_ns)])
    return tally, aggregates


def counts_of(aggregates: StepAggregates) -> dict[str, int]:
    """How often each distribution has been added to."""
    [sizes], [collective] = aggregates.sizes.values(), aggregates.collectives.values()
    [wait], [checkpoint] = aggregates.waits.values(), aggregates.checkpoints.values()
    ones = {
        "step": aggregates.step,
        "host": aggregates.phases[Phase.FORWARD],
        "device": aggregates.device[Phase.FORWARD],
        "collective": collective,
        "wait": wait,
        "checkpoint": checkpoint,
    }
    points = {name: one.point({}, 0, 1) for name, one in ones.items()}
    counts = {name: point.count for name, point in points.items() if isinstance(point, HistogramDataPoint)}
    return counts | {"size": sum(sizes.values())}


EACH = ("step", "host", "device", "collective", "wait", "checkpoint", "size")


@pytest.mark.parametrize(
    ("told", "left", "since"),
    [
        (None, 3, None),
        (TellingOfMetrics(ANCHOR.unix_of(0), 0), 3, TAKEN),
        (TellingOfMetrics(ANCHOR.unix_of(120), 2), 1, TAKEN),
        (TellingOfMetrics(ANCHOR.unix_of(119), 1), 2, TAKEN),
    ],
)
def test_what_was_told_before_is_left_out(told: TellingOfMetrics | None, left: int, since: int | None) -> None:
    """The ring still holds steps that the other relay has counted, and the log all events."""
    tally, aggregates = tallied(told)

    assert counts_of(aggregates) == dict.fromkeys(EACH, left)
    assert (tally.own, tally.skipped) == (OwnTime(10 * left, 7 * left, left), left)
    assert tally.since_unix_ns == since
    assert tally.events == 3
