"""What a relay counts of a rank for metrics that the relay before it cannot hand on: distributions, mostly.

The totals (steps, the account, samples) go on where they were, because the summary holds them. These begin anew under
another relay, which their start time says, and leave out what the metrics have told before: the ring still holds steps
that were counted, the event log all events. So over both relays everything is counted once.
"""

from collections.abc import Mapping, Sequence

from trainspan.clock import Anchor
from trainspan.names import AnyPhase
from trainspan.relay.signals.aggregates import StepAggregates
from trainspan.relay.timeline.checkpoints import Checkpoint
from trainspan.relay.timeline.collectives import Calls
from trainspan.relay.timeline.own_time import OwnTime
from trainspan.relay.timeline.rank_summary import TellingOfMetrics
from trainspan.relay.timeline.records import RankStep
from trainspan.relay.timeline.waits import Stay, Wait


class Tally:
    """Of one rank.

    Args:
        aggregates: that count its steps, or those of all ranks of the node.
        told: what the metrics of another relay have told before; None: nothing.
        anchor: of the recording.
        taken_unix_ns: when this relay began.

    Attributes:
        since_unix_ns: since when it counts; None: since the process began.
        own: the time of its steps in which it waited for no other rank.
        skipped: steps whose optimizer a gradient scaler skipped.
        events: how many of the log have come by now.
    """

    def __init__(self, aggregates: StepAggregates, told: TellingOfMetrics | None, anchor: Anchor, taken_unix_ns: int):
        self.since_unix_ns = None if told is None else taken_unix_ns
        self._aggregates = aggregates
        self.own = OwnTime()
        self.skipped = 0
        self.events = 0
        self._told_until_ns = 0 if told is None else anchor.monotonic_of(told.until_unix_ns)
        self._told_events = 0 if told is None else told.events

    def step(self, step: RankStep, times_ns: Mapping[AnyPhase, int], stays: Sequence[Stay]) -> None:
        """Count a completed step, by its `phase_times_of` and its times in collectives."""
        if step.end_ns <= self._told_until_ns:
            return
        self._aggregates.fold(step, times_ns)
        self.own = self.own.with_step(times_ns)
        self.skipped += step.skipped
        for call, start_ns, end_ns in stays:
            self._aggregates.fold_collective(call.kind, end_ns - start_ns)

    def timed_step(self, step: RankStep, times_ns: Mapping[AnyPhase, int]) -> None:
        """Count a step that the device has timed, by its phases there."""
        if step.end_ns > self._told_until_ns:
            self._aggregates.fold_device(times_ns)
            self.own = self.own.with_timed_step(times_ns)

    def waits(self, waits: Sequence[Wait]) -> None:
        """Count what it waited for others."""
        for kind, start_ns, end_ns in waits:
            if end_ns > self._told_until_ns:
                self._aggregates.fold_wait(kind, end_ns - start_ns)

    def event(self) -> None:
        """An event has come; what is counted by `calls` and `checkpoint` is of it."""
        self.events += 1

    def calls(self, calls: Calls) -> None:
        """Count collectives by their size."""
        if self.events > self._told_events:
            self._aggregates.fold_calls(calls)

    def checkpoint(self, checkpoint: Checkpoint) -> None:
        """Count a save or load."""
        if self.events > self._told_events:
            self._aggregates.fold_checkpoint(checkpoint)
