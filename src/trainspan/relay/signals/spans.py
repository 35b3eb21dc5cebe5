"""The trace of one step: its root, each local rank's part of it, and that rank's phases.

    training.step                  made where rank 0 is; every relay knows its id. Or where the step turned out slow or
                                   failed, if rank 0's relay may not know of that: a root of this node's own
      training.rank_step           one for each rank, linked to the attempt
        training.data_wait ...     its intervals, `training.other` too: they follow each other without gap or overlap

No message tells a relay whether another one found the same step slow. If it hung its ranks below rank 0's root, that
root might be missing; if it made that root itself, there might be two spans of one id, which the specification forbids
and of which every backend makes something else (Jaeger warns and no longer corrects clocks; Tempo drops one). So it
makes a root of its own, with an id of its own: every span has its parent and no id comes twice, whoever else keeps the
step. A step that several nodes find slow is still one trace, in which each of them stands below its own root.

A trace has at most `MOST_SPANS` spans at any world size: each rank has an equal share of them. A rank that has more
phases than its share keeps the failed ones and the longest; with more ranks than spans, every k-th rank has one span.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import Link, SpanContext
from opentelemetry.trace.status import Status, StatusCode

from trainspan import names
from trainspan.names import Phase
from trainspan.relay.signals.aggregates import NS_PER_S
from trainspan.relay.signals.contexts import SCOPE, RankSource, attempt_context, step_context
from trainspan.relay.timeline.collectives import Call
from trainspan.relay.timeline.device import DeviceStep, Stretch
from trainspan.relay.timeline.progress import Position
from trainspan.relay.timeline.records import Interval, ProcessEnd, RankStep, place_of_end

MOST_SPANS: Final = 8000
"""Bound of one trace. Source: Jaeger on Elasticsearch shows 10,000; Tempo's 5 MB hold 19,000 of 260 bytes."""

Span: TypeAlias = ReadableSpan
"""A finished span, for whoever carries it without a need to know what it is."""

UNSET: Final = Status(StatusCode.UNSET)
_KNOWN: Final = (names.GLOBAL_STEP, names.EPOCH, names.STEP_SAMPLES, names.STEP_TOKENS)
_LEFT_BY_EXCEPTION: Final = Status(StatusCode.ERROR, "left by an exception")


MOST_PEERS: Final = 8
"""Links of a collective: in a larger group to those that follow in its order, so that all of them hang together."""


class RankPart(NamedTuple):
    """One local rank's part of a step.

    `end`: how the process ended, if that was in this step. `device`: what its device said of the step; None: nothing.
    `calls`: its collectives, by the time at which they began. `position`: what its framework calls the step.
    """

    source: RankSource
    step: RankStep
    end: ProcessEnd | None = None
    device: DeviceStep | None = None
    calls: Mapping[int, Call] = {}
    position: Position = Position()


class Spans(NamedTuple):
    """Spans of one trace. `cut`: how many were left out to keep it within its bound."""

    spans: list[ReadableSpan]
    cut: int


def error(sentence: str) -> Status:
    """The status of a span in which a process ended."""
    return Status(StatusCode.ERROR, sentence)


def rank_budget(world_size: int, spans: int) -> tuple[int, int]:
    """(k, spans of a rank): every k-th rank has that many of the `spans` that all ranks share."""
    every = -(-max(world_size, 1) // spans)
    ranks = -(-max(world_size, 1) // every)
    return every, spans // ranks


def step_spans(parts: Sequence[RankPart], because: str, root_rank: int = 0) -> Spans:
    """The spans of one step that this node makes.

    Args:
        parts: the same step of the local ranks, at least one.
        because: why the step is sampled.
        root_rank: the root below which they are is made with the part of this rank.

    Cost: 10 µs a span.
    """
    first = next((part for part in parts if part.source.identity.rank == root_rank), None)
    spans: list[ReadableSpan] = []
    cut = 0
    for part in parts:
        every, budget = rank_budget(part.source.identity.world_size, MOST_SPANS - _most_roots(part, root_rank))
        if part.source.identity.rank % every:
            cut += 1 + len(part.step.intervals)
            continue
        kept = _kept(part, budget - 1)
        left_out = len(part.step.intervals) - len(kept)
        root = _root_context(part, root_rank, is_remote=first is None)
        spans.append(_rank_step(part, because, left_out, root))
        spans += _phases(part, kept)
        cut += left_out
    # A root of the node's own with nothing below it would tell nothing.
    if first is not None and (spans or root_rank == 0):
        spans.insert(0, _root(first, parts, because, root_rank))
    return Spans(spans, cut)


def _most_roots(part: RankPart, root_rank: int) -> int:
    """How many spans the roots of the trace may take in all: one; or one from each node, but half at most."""
    if root_rank == 0:
        return 1
    local_world_size = max(part.source.identity.local_world_size, 1)
    nodes = -(-part.source.identity.world_size // local_world_size)
    # Rank 0's relay cannot know of them, so its ranks may show a little more than their share.
    return min(nodes, MOST_SPANS // 2) + local_world_size


def _root_context(part: RankPart, root_rank: int, *, is_remote: bool = False) -> SpanContext:
    what = ("root", root_rank) if root_rank else ()
    return step_context(part.source.identity, part.step.number, *what, is_remote=is_remote)


def _root(first: RankPart, parts: Sequence[RankPart], because: str, root_rank: int) -> ReadableSpan:
    identity, number = first.source.identity, first.step.number
    of_node = {names.NODE_RANK: identity.node_rank} if root_rank else {}
    return ReadableSpan(
        names.SPAN_STEP,
        _root_context(first, root_rank),
        resource=first.source.resource,
        attributes={names.STEP: number, names.SAMPLED_BECAUSE: because, **of_node},
        status=UNSET,
        start_time=min(part.source.unix_of(part.step.start_ns) for part in parts),
        end_time=max(part.source.unix_of(part.step.end_ns) for part in parts),
        instrumentation_scope=SCOPE,
    )


def _rank_step(part: RankPart, because: str, left_out: int, root: SpanContext) -> ReadableSpan:
    source, step, end, device, _calls, position = part
    identity = source.identity
    attributes: dict[str, str | int | float] = {
        names.RANK: identity.rank,
        names.STEP: step.number,
        names.MICROBATCHES: step.microbatches,
        names.SAMPLED_BECAUSE: because,
    }
    known = (position.global_step, position.epoch, step.samples, step.tokens)
    attributes |= {name: value for name, value in zip(_KNOWN, known, strict=True) if value is not None}
    if end is not None:
        attributes[names.END_REASON] = end.reason
    if source.gpu is not None:
        attributes[names.HW_ID] = source.gpu
    if device is not None:
        attributes[names.DEVICE_DURATION] = device.duration_ns / NS_PER_S
    if step.skipped:
        attributes[names.SKIPPED] = True
    if left_out:
        attributes[names.SPANS_CUT] = left_out
    return ReadableSpan(
        names.SPAN_RANK_STEP,
        step_context(identity, step.number, "rank", identity.rank),
        root,
        source.resource,
        attributes,
        links=(Link(attempt_context(identity, is_remote=root.is_remote), {}),),
        status=error(end.sentence(step)) if end is not None and end.failed else UNSET,
        start_time=source.unix_of(step.start_ns),
        end_time=source.unix_of(step.end_ns),
        instrumentation_scope=SCOPE,
    )


def _kept(part: RankPart, budget: int) -> set[int]:
    """Which intervals of `part` get a span, by their place: the one it ended in, failed ones, then the longest."""
    intervals = part.step.intervals
    if len(intervals) <= budget:
        return set(range(len(intervals)))
    ended_in = _ended_in(part)

    def importance(place: int) -> tuple[bool, bool, int]:
        interval = intervals[place]
        return place == ended_in, interval.failed, interval.end_ns - interval.start_ns

    return set(sorted(range(len(intervals)), key=importance, reverse=True)[:budget])


def _ended_in(part: RankPart) -> int | None:
    """Place of the interval in which the process ended; None if it did not, or in good order."""
    return place_of_end(part.step) if part.end is not None and part.end.failed else None


def _phases(part: RankPart, kept: set[int]) -> list[ReadableSpan]:
    source, step, end, device, calls, _position = part
    identity = source.identity
    stretches = device.stretches(step) if device is not None else (None,) * len(step.intervals)
    parent = step_context(identity, step.number, "rank", identity.rank)
    ended_in = _ended_in(part)
    seen: Counter[str] = Counter()
    spans = []
    for place, interval in enumerate(step.intervals):
        name = interval.phase.span
        ordinal = seen[name]
        seen[name] += 1
        if place not in kept:
            continue
        status = error(end.sentence(step)) if end is not None and place == ended_in else _status_of(interval)
        call = calls.get(interval.start_ns) if interval.phase is Phase.COLLECTIVE else None
        spans.append(
            ReadableSpan(
                name,
                _phase_context(part, identity.rank, name, ordinal, call),
                parent,
                source.resource,
                {
                    names.RANK: identity.rank,
                    names.STEP: step.number,
                    names.PHASE: interval.phase.wire,
                    **_on_device(stretches[place]),
                    **_of_call(call),
                },
                links=_links_of(part, call),
                status=status,
                start_time=source.unix_of(interval.start_ns),
                end_time=source.unix_of(interval.end_ns),
                instrumentation_scope=SCOPE,
            )
        )
    return spans


def _phase_context(part: RankPart, rank: int, name: str, ordinal: int, call: Call | None) -> SpanContext:
    """The span of a phase of `rank`; of a collective, the same for all that know its number in its group."""
    identity, number = part.source.identity, part.step.number
    if call is None or call.sequence is None:
        return step_context(identity, number, "rank", rank, name, ordinal)
    is_remote = rank != identity.rank
    what = (call.kind.group.name, call.kind.op, call.sequence)
    return step_context(identity, number, "rank", rank, name, *what, is_remote=is_remote)


def _of_call(call: Call | None) -> dict[str, str | int]:
    if call is None:
        return {}
    if not call.kind.group.name:
        return {names.COLLECTIVE_OP: call.kind.op}
    attributes: dict[str, str | int] = {
        names.COLLECTIVE_OP: call.kind.op,
        names.COLLECTIVE_GROUP: call.kind.group.label,
        names.COLLECTIVE_BYTES: call.kind.size_bytes,
    }
    return attributes if call.sequence is None else {**attributes, names.COLLECTIVE_SEQ: call.sequence}


def _links_of(part: RankPart, call: Call | None) -> tuple[Link, ...]:
    """To the spans of the same collective on the ranks that take part."""
    if call is None:
        return ()
    peers = call.peers(part.source.identity.rank, MOST_PEERS)
    return tuple(Link(_phase_context(part, peer, Phase.COLLECTIVE.span, 0, call), {}) for peer in peers)


def _on_device(stretch: Stretch | None) -> dict[str, float]:
    if stretch is None:
        return {}
    return {names.DEVICE_START: stretch.start_ns / NS_PER_S, names.DEVICE_DURATION: stretch.duration_ns / NS_PER_S}


def _status_of(interval: Interval) -> Status:
    return _LEFT_BY_EXCEPTION if interval.failed else UNSET
