"""Brings together what the local ranks of one attempt say of the same step, and of the end.

A step is decided (does it get a trace?) when every local rank that lives has completed it, so that its root spans them
all and slow means slow on the slowest. Nobody waits for ever: a step older than `PATIENCE_NS`, or the oldest of too
many, is decided with what is there, and what comes later joins its trace.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Final, NamedTuple

from trainspan import names
from trainspan.identity import Identity
from trainspan.names import AnyPhase
from trainspan.relay.follower import RankFollower
from trainspan.relay.signals.attempts import (
    attempt_span,
    checkpoint_span,
    process_spans,
    segment_span,
    told_span,
)
from trainspan.relay.signals.logs import (
    Record,
    died_record,
    ended_record,
    exception_record,
    out_of_memory_record,
    stalled_record,
    started_record,
    user_record,
)
from trainspan.relay.signals.sampling import StepSampler
from trainspan.relay.signals.spans import Span, step_spans
from trainspan.relay.timeline.own_time import held_up_ns, own_ns
from trainspan.relay.timeline.records import ProcessEnd, RankStep
from trainspan.relay.timeline.segments import Segment
from trainspan.relay.timeline.waits import Wait, waits_of
from trainspan.sampling import Sampling, SpanNames

PATIENCE_NS: Final = 10_000_000_000
PATIENCE_AFTER_END_NS: Final = 1_500_000_000
"""How long a step in which a process has ended waits for the other ranks, which are usually being ended too."""

LEAST_WAIT_NS: Final = 10_000_000
LEAST_WAIT_SHARE: Final = 0.02
"""Of its step: a shorter wait for slower ranks is not charged as one. The ledger has no room for all of them."""

MOST_WAITING: Final = 256
MOST_DECIDED: Final = 1024


class Output(NamedTuple):
    """What an attempt has to tell since it was last asked.

    `cut`: spans left out at the bound of a trace.
    `waits`: who waited long for a slower rank, and when.
    """

    spans: list[Span]
    records: list[Record]
    cut: int
    waits: list[tuple[RankFollower, Wait]]


class _Decision(NamedTuple):
    """Why a step has a trace (None: it has none), and which rank's part comes with its root."""

    reason: str | None
    root_rank: int


class _Part(NamedTuple):
    follower: RankFollower
    step: RankStep
    since_ns: int
    end: ProcessEnd | None
    phase_times_ns: Mapping[AnyPhase, int]


class Assembly:
    """One attempt on this node.

    Args:
        identity: any of its ranks.
        sampling: which steps get a trace.
        span_names: which spans are exported; None: all.

    Attributes:
        followers: of its ranks.
        launched_unix_ns: when a launcher of this node began with it; None if none is known.
    """

    def __init__(self, identity: Identity, sampling: Sampling, span_names: SpanNames | None = None):
        self.followers: list[RankFollower] = []
        self.launched_unix_ns: int | None = None
        self._span_names = span_names or SpanNames()
        self._identity = identity
        self._sampling = sampling
        self._sampler = StepSampler(sampling, identity.run, identity.attempt)
        self._waiting: dict[int, list[_Part]] = {}
        self._decided: OrderedDict[int, _Decision] = OrderedDict()
        self._last: tuple[int, list[_Part]] | None = None  # the newest decided step, if it has no trace
        self._output = Output([], [], 0, [])
        self._closed = False

    def add_steps(
        self,
        follower: RankFollower,
        steps: list[RankStep],
        phase_times_ns: Sequence[Mapping[AnyPhase, int]],
        now_ns: int,
        observed_unix_ns: int,
    ) -> None:
        """Take over steps that one rank has completed, with the `phase_times_of` each, and what else it had to say."""
        for step, times_ns in zip(steps, phase_times_ns, strict=True):
            self._add(_Part(follower, step, now_ns, None, times_ns))
        for event in follower.out_of_memory:
            self._output.records.append(out_of_memory_record(follower.source, event, observed_unix_ns))
        follower.out_of_memory.clear()
        if follower.started_ns is not None:
            record = started_record(follower.source, follower.facts, follower.started_ns, observed_unix_ns)
            self._output.records.append(record)
            follower.started_ns = None
        stalls = follower.stalled
        self._output.records.extend(stalled_record(follower.source, stall, observed_unix_ns) for stall in stalls)
        stalls.clear()
        self._tell_checkpoints(follower)
        self._tell_told(follower)
        events = follower.said.events
        self._output.records.extend(user_record(follower.source, event, observed_unix_ns) for event in events)
        events.clear()

    def add_segments(self, follower: RankFollower, segments: Iterable[Segment]) -> None:
        """Take over stretches of training that are over; rank 0 speaks for all."""
        if follower.source.identity.rank == 0 and not self._sampling.off:
            self._tell([segment_span(follower.source, segment) for segment in segments], 0)

    def add_end(self, follower: RankFollower, now_ns: int, observed_unix_ns: int) -> None:
        """Take over the end of a process, which `follower.finish` has noted."""
        end = follower.end
        if end is None:
            return
        if follower.unfinished is not None:
            self._add(_Part(follower, follower.unfinished, now_ns, end, {}))
        self.add_segments(follower, follower.segments.end(end.at_ns))
        self._tell_told(follower)
        self._tell_process(follower, end)
        self._tell_records(follower, end, observed_unix_ns)

    def turn(self, now_ns: int) -> Output:
        """Decide what can be decided, and hand out what there is to tell."""
        for number in sorted(self._waiting):
            if self._is_due(number, now_ns):
                self._decide(number)
        if self._all_ended() and len(self.followers) >= self._identity.local_world_size:
            self.close()
        return self._take_output()

    def finish(self) -> Output:
        """Decide everything that is left, and hand it out."""
        self.close()
        return self._take_output()

    def awaited(self) -> set[Path]:
        """The recordings of which a step waits for other ranks."""
        return {part.follower.reader.path for parts in self._waiting.values() for part in parts}

    def close(self) -> None:
        """Decide everything that is left and end the attempt's trace, once."""
        for number in sorted(self._waiting):
            self._decide(number)
        if self._closed or not self._all_ended():
            return
        self._closed = True
        if self._last is not None:
            reason = self._sampler.reason_for_last()
            if reason is not None:
                number, parts = self._last
                self._trace(parts, _Decision(reason, self._root_rank(number, parts, reason)))
                for part in parts:
                    part.follower.summary.note_sampled(number, reason)
        self._tell_attempt()

    def _all_ended(self) -> bool:
        return bool(self.followers) and all(follower.end is not None for follower in self.followers)

    def _add(self, part: _Part) -> None:
        number = part.step.number
        if number in self._decided:
            self._late(part)
            return
        self._waiting.setdefault(number, []).append(part)
        if len(self._waiting) > MOST_WAITING:
            self._decide(min(self._waiting))

    def _is_due(self, number: int, now_ns: int) -> bool:
        parts = self._waiting[number]
        ended = any(part.end is not None for part in parts)
        patience_ns = PATIENCE_AFTER_END_NS if ended else PATIENCE_NS
        if now_ns - parts[0].since_ns > patience_ns:
            return True
        return all(follower.end is not None or _has_told(follower, number) for follower in self.followers)

    def _decide(self, number: int) -> None:
        parts = self._waiting.pop(number)
        longest = max(parts, key=lambda part: part.step.end_ns - part.step.start_ns).step
        failed = any(part.end is not None or _left_by_exception(part.step) for part in parts)
        duration_ns = longest.end_ns - longest.start_ns
        held_ns = held_up_ns([(part.step.end_ns - part.step.start_ns, own_ns(part.phase_times_ns)) for part in parts])
        reason = self._sampler.reason_for(number, duration_ns, longest.end_ns, failed=failed, held_up_ns=held_ns)
        decision = _Decision(reason, self._root_rank(number, parts, reason))
        self._decided[number] = decision
        if len(self._decided) > MOST_DECIDED:
            self._decided.popitem(last=False)
        self._last = None if reason else (number, parts)
        for part in parts:
            _summarise(part, reason)
        self._trace(parts, decision)
        if len(parts) > 1 and any(part.step.calls for part in parts):
            self._compare(parts)

    def _compare(self, parts: list[_Part]) -> None:
        """Find who waited for whom in the collectives of a step that every local rank has completed."""
        for part, waits in zip(parts, waits_of([part.follower.stays_of(part.step) for part in parts]), strict=True):
            part.follower.count_waits(waits)
            least_ns = max(LEAST_WAIT_NS, LEAST_WAIT_SHARE * (part.step.end_ns - part.step.start_ns))
            long = [wait for wait in waits if wait.end_ns - wait.start_ns >= least_ns]
            self._output.waits.extend((part.follower, wait) for wait in long)

    def _late(self, part: _Part) -> None:
        decision = self._decided[part.step.number]
        _summarise(part, decision.reason)
        self._trace([part], decision)

    def _root_rank(self, number: int, parts: list[_Part], reason: str | None) -> int:
        """The rank with whose part of the step the root of the trace comes: rank 0, or the least one here."""
        if reason is None or any(part.follower.source.identity.rank == 0 for part in parts):
            return 0
        first = next((follower for follower in self.followers if follower.source.identity.rank == 0), None)
        if self._sampler.everywhere(number, reason) if first is None else _may_tell(first, number):
            return 0
        return min(part.follower.source.identity.rank for part in parts)

    def _trace(self, parts: list[_Part], decision: _Decision) -> None:
        if decision.reason is None:
            return
        made = step_spans(
            [p.follower.part(p.step, p.end) for p in parts],
            decision.reason,
            decision.root_rank,
        )
        self._tell(made.spans, made.cut)

    def _tell_process(self, follower: RankFollower, end: ProcessEnd) -> None:
        if self._sampling.off:
            return
        made = process_spans(
            follower.source,
            follower.reader.process_start_ns,
            follower.timeline.init_end_ns(end.at_ns),
            end,
            follower.unfinished,
            follower.torch_import_ns,
            {**follower.facts, **follower.said.configured, **_last_step(follower)},
        )
        self._tell(made.spans, made.cut)

    def _tell_checkpoints(self, follower: RankFollower) -> None:
        checkpoints = follower.checkpoints
        if not self._sampling.off:
            first = follower.checkpoints_told
            made = [checkpoint_span(follower.source, *told) for told in zip(checkpoints, count(first), strict=False)]
            self._tell([span for span in made if span is not None], made.count(None))
        follower.checkpoints_told += len(checkpoints)
        checkpoints.clear()

    def _tell_told(self, follower: RankFollower) -> None:
        told = follower.told
        if not follower.timeline.started and follower.end is None:
            return  # what of it lies in the init is known when that has ended
        if not self._sampling.off:
            ended_ns = follower.end.at_ns if follower.end else 0
            init_end_ns = follower.timeline.init_end_ns(ended_ns)
            made = [
                told_span(follower.source, one, before, init_end_ns)
                for before, one in enumerate(told, follower.told_taken)
            ]
            self._tell([span for span in made if span is not None], made.count(None))
        follower.told_taken += len(told)
        told.clear()

    def _tell_records(self, follower: RankFollower, end: ProcessEnd, observed_unix_ns: int) -> None:
        step = follower.unfinished
        if follower.exception is not None:
            record = exception_record(follower.source, follower.exception, step, observed_unix_ns)
            self._output.records.append(record)
        elif end.failed:
            self._output.records.append(died_record(follower.source, end, step, observed_unix_ns))
        elif follower.last_number is not None:
            done = follower.last_number, follower.throughput.work()
            self._output.records.append(ended_record(follower.source, end, *done, observed_unix_ns))

    def _tell_attempt(self) -> None:
        first = next((follower for follower in self.followers if follower.source.identity.rank == 0), None)
        ends = [(follower.source, follower.end) for follower in self.followers if follower.end is not None]
        if first is None or self._sampling.off:
            return
        start_unix_ns = min(f.source.unix_of(f.reader.process_start_ns) for f in self.followers)
        if self.launched_unix_ns is not None:
            start_unix_ns = min(start_unix_ns, self.launched_unix_ns)
        self._tell([attempt_span(first.source, start_unix_ns, ends)], 0)

    def _tell(self, spans: list[Span], cut: int) -> None:
        self._output.spans.extend(span for span in spans if self._span_names.takes(span.name))
        self._output = self._output._replace(cut=self._output.cut + cut)

    def _take_output(self) -> Output:
        output, self._output = self._output, Output([], [], 0, [])
        return output


def _summarise(part: _Part, reason: str | None) -> None:
    if part.end is None:
        anchor = part.follower.source.anchor
        part.follower.summary.add(part.step, part.phase_times_ns, anchor, reason)


def _last_step(follower: RankFollower) -> dict[str, int]:
    return {} if follower.last_number is None else {names.LAST_STEP: follower.last_number}


def _has_told(follower: RankFollower, number: int) -> bool:
    """Whether a rank that lives has told everything of a step, its device included."""
    last = follower.last_number
    return last is not None and last >= number and not follower.device.awaits(number)


def _may_tell(follower: RankFollower, number: int) -> bool:
    """Whether a rank has told of a step, or still can."""
    if follower.end is None or (follower.last_number is not None and follower.last_number >= number):
        return True
    return follower.unfinished is not None and follower.unfinished.number == number


def _left_by_exception(step: RankStep) -> bool:
    return any(interval.failed for interval in step.intervals)
