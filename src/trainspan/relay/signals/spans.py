"""The trace of one step: its root, each local rank's part of it, and that rank's phases.

    training.step                  made where rank 0 is; every relay knows its id
      training.rank_step           one for each rank, linked to the attempt
        training.data_wait ...     its intervals, `training.other` too: they follow each other without gap or overlap

A trace has at most `MOST_SPANS` spans at any world size: each rank has an equal share of them. A rank that has more
phases than its share keeps the failed ones and the longest; with more ranks than spans, every k-th rank has one span.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import Link
from opentelemetry.trace.status import Status, StatusCode

from trainspan import names
from trainspan.relay.signals.aggregates import NS_PER_S
from trainspan.relay.signals.contexts import SCOPE, RankSource, attempt_context, step_context
from trainspan.relay.timeline.device import DeviceStep, Stretch
from trainspan.relay.timeline.records import Interval, ProcessEnd, RankStep, place_of_end

MOST_SPANS: Final = 8000
"""Bound of one trace. Source: Jaeger on Elasticsearch shows 10,000; Tempo's 5 MB hold 19,000 of 260 bytes."""

Span: TypeAlias = ReadableSpan
"""A finished span, for whoever carries it without a need to know what it is."""

UNSET: Final = Status(StatusCode.UNSET)
_LEFT_BY_EXCEPTION: Final = Status(StatusCode.ERROR, "left by an exception")


class RankPart(NamedTuple):
    """One local rank's part of a step.

    `end`: how the process ended, if that was in this step. `device`: what its device said of the step; None: nothing.
    """

    source: RankSource
    step: RankStep
    end: ProcessEnd | None = None
    device: DeviceStep | None = None


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


def step_spans(parts: Sequence[RankPart], because: str) -> Spans:
    """The spans of one step that this node makes.

    Args:
        parts: the same step of the local ranks, at least one.
        because: why the step is sampled.

    Cost: 10 µs a span.
    """
    holds_root = any(part.source.identity.rank == 0 for part in parts)
    spans = [_root(parts, because)] if holds_root else []
    cut = 0
    for part in parts:
        every, budget = rank_budget(part.source.identity.world_size, MOST_SPANS - 1)
        if part.source.identity.rank % every:
            cut += 1 + len(part.step.intervals)
            continue
        kept = _kept(part, budget - 1)
        left_out = len(part.step.intervals) - len(kept)
        spans.append(_rank_step(part, because, left_out, root_is_remote=not holds_root))
        spans += _phases(part, kept)
        cut += left_out
    return Spans(spans, cut)


def _root(parts: Sequence[RankPart], because: str) -> ReadableSpan:
    first = next(part for part in parts if part.source.identity.rank == 0)
    number = first.step.number
    return ReadableSpan(
        names.SPAN_STEP,
        step_context(first.source.identity, number),
        resource=first.source.resource,
        attributes={names.STEP: number, names.SAMPLED_BECAUSE: because},
        status=UNSET,
        start_time=min(part.source.unix_of(part.step.start_ns) for part in parts),
        end_time=max(part.source.unix_of(part.step.end_ns) for part in parts),
        instrumentation_scope=SCOPE,
    )


def _rank_step(part: RankPart, because: str, left_out: int, *, root_is_remote: bool) -> ReadableSpan:
    source, step, end, device = part
    identity = source.identity
    attributes: dict[str, str | int | float] = {
        names.RANK: identity.rank,
        names.STEP: step.number,
        names.MICROBATCHES: step.microbatches,
        names.SAMPLED_BECAUSE: because,
    }
    if end is not None:
        attributes[names.END_REASON] = end.reason
    if device is not None:
        attributes[names.DEVICE_DURATION] = device.duration_ns / NS_PER_S
    if left_out:
        attributes[names.SPANS_CUT] = left_out
    return ReadableSpan(
        names.SPAN_RANK_STEP,
        step_context(identity, step.number, "rank", identity.rank),
        step_context(identity, step.number, is_remote=root_is_remote),
        source.resource,
        attributes,
        links=(Link(attempt_context(identity, is_remote=root_is_remote), {}),),
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
    return place_of_end(part.step, part.end.reason) if part.end is not None and part.end.failed else None


def _phases(part: RankPart, kept: set[int]) -> list[ReadableSpan]:
    source, step, end, device = part
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
        spans.append(
            ReadableSpan(
                name,
                step_context(identity, step.number, "rank", identity.rank, name, ordinal),
                parent,
                source.resource,
                {
                    names.RANK: identity.rank,
                    names.STEP: step.number,
                    names.PHASE: interval.phase.wire,
                    **_on_device(stretches[place]),
                },
                status=status,
                start_time=source.unix_of(interval.start_ns),
                end_time=source.unix_of(interval.end_ns),
                instrumentation_scope=SCOPE,
            )
        )
    return spans


def _on_device(stretch: Stretch | None) -> dict[str, float]:
    if stretch is None:
        return {}
    return {names.DEVICE_START: stretch.start_ns / NS_PER_S, names.DEVICE_DURATION: stretch.duration_ns / NS_PER_S}


def _status_of(interval: Interval) -> Status:
    return _LEFT_BY_EXCEPTION if interval.failed else UNSET
