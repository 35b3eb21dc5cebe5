"""The trace of one attempt: short, whatever the run: it holds what happens once a process, not once a step.

    training.attempt               made where rank 0 is; linked to the attempt before
      training.process             one for each rank
        training.init              from its start to its first step
          training.init.import     the import of torch
        training.segment           stretches of training, of rank 0 only
        training.checkpoint.save   and load: one for each call
        ...                        whatever else the rank tells; below training.init what is in it by name and time

A trace has at most `MOST_SPANS` spans: half of them are for the segments, `MOST_CHECKPOINTS` for the checkpoints,
`MOST_TOLD` for what else is told, the rest for the processes, each shared by the ranks. A rank whose share is smaller
leaves out the import, then init; with more ranks than spans, every k-th rank has one.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import Link, SpanContext
from opentelemetry.trace.status import Status

from trainspan import names
from trainspan.relay.signals.contexts import SCOPE, RankSource, attempt_context
from trainspan.relay.signals.spans import MOST_SPANS, UNSET, Spans, error, rank_budget
from trainspan.relay.timeline.checkpoints import Checkpoint
from trainspan.relay.timeline.records import ProcessEnd, RankStep
from trainspan.relay.timeline.segments import MOST as MOST_SEGMENTS
from trainspan.relay.timeline.segments import Segment
from trainspan.relay.timeline.told import Told, Value

MOST_CHECKPOINTS: Final = 1000
MOST_TOLD: Final = 1000
_SPANS_OF_RANKS: Final = MOST_SPANS - 1 - MOST_SEGMENTS - MOST_CHECKPOINTS - MOST_TOLD
_CHECKPOINTS: Final = {"save": names.SPAN_CHECKPOINT_SAVE, "load": names.SPAN_CHECKPOINT_LOAD}


def attempt_span(source: RankSource, start_unix_ns: int, ends: Sequence[tuple[RankSource, ProcessEnd]]) -> ReadableSpan:
    """The root of the attempt's trace, once its local processes have ended.

    Args:
        source: rank 0.
        start_unix_ns: when the first local process began.
        ends: how the local processes ended, at least one. Of those that failed, the likely cause is the attempt's end.
    """
    identity = source.identity
    failed = [(rank, end) for rank, end in ends if end.failed]
    rank, end = min(failed or ends, key=lambda ended: (*ended[1].rank_as_cause, ended[0].identity.rank))
    previous = attempt_context(identity, attempt=identity.attempt - 1, is_remote=True)
    return ReadableSpan(
        names.SPAN_ATTEMPT,
        attempt_context(identity),
        resource=source.resource,
        attributes={names.END_REASON: end.reason},
        links=(Link(previous, {}),) if identity.attempt > 0 else (),
        status=error(f"rank {rank.identity.rank}: {_words_of(end)}") if failed else UNSET,
        start_time=start_unix_ns,
        end_time=max(rank.unix_of(end.at_ns) for rank, end in ends),
        instrumentation_scope=SCOPE,
    )


def process_spans(
    source: RankSource,
    process_start_ns: int,
    init_end_ns: int | None,
    end: ProcessEnd,
    unfinished: RankStep | None,
    torch_import_ns: tuple[int, int] | None = None,
    facts: Mapping[str, Value] = {},
) -> Spans:
    """The spans of one process that has ended: itself, its init, and in that the import of torch.

    Args:
        source: the rank.
        process_start_ns: when it began.
        init_end_ns: when its first step began, or the process ended without one; None if lost marks hide it.
        end: how it ended.
        unfinished: the step it ended in, None if it ended in none or lost marks hide it.
        torch_import_ns: start and end of the import of torch, if known.
        facts: what it trained, as attributes.
    """
    every, budget = rank_budget(source.identity.world_size, _SPANS_OF_RANKS)
    spans = [_process(source, process_start_ns, end, unfinished, facts)]
    if init_end_ns is not None:
        ended_in_it = end.failed and init_end_ns >= end.at_ns
        spans.append(_init(source, process_start_ns, init_end_ns, error(end.sentence(None)) if ended_in_it else UNSET))
        if torch_import_ns is not None:
            spans.append(_import(source, torch_import_ns))
    kept = 0 if source.identity.rank % every else min(len(spans), budget)
    return Spans(spans[:kept], len(spans) - kept)


def segment_span(source: RankSource, segment: Segment) -> ReadableSpan:
    """One stretch of training.

    Args:
        source: rank 0.
        segment: what `Segments` says is over.
    """
    attributes: dict[str, str | int] = {}
    if segment.first_step is not None and segment.last_step is not None:
        attributes = {names.FIRST_STEP: segment.first_step, names.LAST_STEP: segment.last_step}
    context = _below(source, names.SPAN_SEGMENT, segment.number)
    parent = _below(source)
    return _span(source, names.SPAN_SEGMENT, context, parent, (segment.start_ns, segment.end_ns), attributes)


def checkpoint_span(source: RankSource, checkpoint: Checkpoint, before: int) -> ReadableSpan | None:
    """One save or load; None when the rank's share of the trace is used up.

    Args:
        source: the rank.
        checkpoint: what it did.
        before: how many checkpoints the rank has told of before this one.
    """
    every, budget = rank_budget(source.identity.world_size, MOST_CHECKPOINTS)
    if source.identity.rank % every or before >= budget:
        return None
    attributes: dict[str, str | int] = {names.CHECKPOINT_PART: checkpoint.part}
    if checkpoint.path is not None:
        attributes[names.CHECKPOINT_PATH] = checkpoint.path
    if checkpoint.size_bytes is not None:
        attributes[names.CHECKPOINT_BYTES] = checkpoint.size_bytes
    name = _CHECKPOINTS[checkpoint.kind]
    # Named by its time: a relay that starts anew, and reads it again, makes the same span.
    context = _below(source, name, checkpoint.part, checkpoint.start_ns)
    times_ns = (checkpoint.start_ns, checkpoint.end_ns)
    status = UNSET if checkpoint.ok else error(f"an exception left the {checkpoint.kind}")
    return _span(source, name, context, _below(source), times_ns, attributes, status)


def told_span(source: RankSource, told: Told, before: int, init_end_ns: int | None) -> ReadableSpan | None:
    """A stretch of time that the rank told of; None when the rank's share of the trace is used up.

    Args:
        source: the rank.
        told: what it said.
        before: how many it has told of before this one.
        init_end_ns: when its first step began, or the process ended without one; None if lost marks hide it.
    """
    every, budget = rank_budget(source.identity.world_size, MOST_TOLD)
    if source.identity.rank % every or before >= budget:
        return None
    # Its first batch is a part of the init by name, but in time it can be one of the first step.
    in_init = told.name.startswith(f"{names.SPAN_INIT}.") and init_end_ns is not None and told.end_ns <= init_end_ns
    parent = _below(source, names.SPAN_INIT) if in_init and _has_init(source) else _below(source)
    context = _below(source, told.name, told.start_ns)
    status = UNSET if told.ok else error("left by an exception")
    return _span(source, told.name, context, parent, (told.start_ns, told.end_ns), told.attributes, status)


def process_context(source: RankSource) -> SpanContext:
    """The span of the process, for what refers to it."""
    return _below(source)


def _has_init(source: RankSource) -> bool:
    """Whether the rank's share of the trace holds the span of its init beside that of the process."""
    every, budget = rank_budget(source.identity.world_size, _SPANS_OF_RANKS)
    return source.identity.rank % every == 0 and budget > 1


def _process(
    source: RankSource, start_ns: int, end: ProcessEnd, unfinished: RankStep | None, facts: Mapping[str, Value]
) -> ReadableSpan:
    if not end.failed:
        status = UNSET
    elif unfinished is not None:
        status = error(end.sentence(unfinished))
    else:
        status = error(_words_of(end))
    root = attempt_context(source.identity, is_remote=source.identity.rank != 0)
    times_ns = (start_ns, end.at_ns)
    attributes: dict[str, Value] = {**facts, names.END_REASON: end.reason}
    if source.gpu is not None:
        attributes[names.HW_ID] = source.gpu
    return _span(source, names.SPAN_PROCESS, _below(source), root, times_ns, attributes, status)


def _init(source: RankSource, start_ns: int, end_ns: int, status: Status) -> ReadableSpan:
    context = _below(source, names.SPAN_INIT)
    return _span(source, names.SPAN_INIT, context, _below(source), (start_ns, end_ns), {}, status)


def _import(source: RankSource, times_ns: tuple[int, int]) -> ReadableSpan:
    context, parent = _below(source, names.SPAN_INIT_IMPORT), _below(source, names.SPAN_INIT)
    return _span(source, names.SPAN_INIT_IMPORT, context, parent, times_ns, {})


def _below(source: RankSource, *what: str | int) -> SpanContext:
    """The span `what` of this rank in the attempt's trace; without `what`, the process."""
    return attempt_context(source.identity, "rank", source.identity.rank, *what)


def _words_of(end: ProcessEnd) -> str:
    return f"process ended by {end.cause}" if end.cause else "process ended"


def _span(
    source: RankSource,
    name: str,
    context: SpanContext,
    parent: SpanContext,
    times_ns: tuple[int, int],
    attributes: Mapping[str, Value],
    status: Status = UNSET,
) -> ReadableSpan:
    return ReadableSpan(
        name,
        context,
        parent,
        source.resource,
        {**attributes, names.RANK: source.identity.rank},
        status=status,
        start_time=source.unix_of(times_ns[0]),
        end_time=source.unix_of(times_ns[1]),
        instrumentation_scope=SCOPE,
    )
