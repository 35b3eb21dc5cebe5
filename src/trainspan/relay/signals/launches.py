"""What the launcher of a node tells, as spans of the attempt's trace and as log records."""

from collections.abc import Sequence
from typing import Final

from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.context import Context
from opentelemetry.sdk._logs import ReadableLogRecord
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import Link, NonRecordingSpan, SpanContext, set_span_in_context

from trainspan import names
from trainspan.relay.signals.contexts import SCOPE, RankSource, attempt_context, launcher_context
from trainspan.relay.signals.spans import UNSET, error, rank_budget
from trainspan.relay.timeline.launches import Launch, LaunchEvent

MOST_LAUNCHES: Final = 500
"""Spans of all launchers in the trace of one attempt."""

MOST_LINKS: Final = 32
"""Of a launcher's own trace to attempts, the newest."""

_OF_A_NODE: Final = 4


def launch_span(source: RankSource, launch: Launch, resource: Resource) -> ReadableSpan | None:
    """One thing that a launcher did, below the attempt; None where the node has no share of the trace.

    Args:
        source: the launcher.
        launch: what it did.
        resource: of its node, in that attempt.
    """
    node = launch.node or 0
    every, _ = rank_budget(launch.nodes * _OF_A_NODE, MOST_LAUNCHES)
    if node % every:
        return None
    identity = source.identity._replace(attempt=launch.attempt)
    context = attempt_context(identity, "node", node, launch.operation, launch.start_ns)
    return _launch(source, launch, context, attempt_context(identity, is_remote=node != 0), resource)


def launcher_spans(
    source: RankSource,
    lived_ns: tuple[int, int],
    launches: Sequence[Launch],
    reason: str,
    wrong: str | None,
    resource: Resource,
) -> list[ReadableSpan]:
    """A launcher that has ended, and what it did for attempts that no rank of its node was in: a trace of its own.

    That of the attempt has its root from the node of rank 0, and whether there ever is one cannot be known here.

    Args:
        source: the launcher.
        lived_ns: when it began and ended.
        launches: what it did for those attempts, in order.
        reason: how it ended.
        wrong: what was wrong with that; None if nothing.
        resource: of its node.
    """
    root = launcher_context(source.identity)
    attempts = sorted({launch.attempt for launch in launches})[-MOST_LINKS:]
    span = ReadableSpan(
        names.SPAN_LAUNCHER,
        root,
        resource=resource,
        attributes={names.END_REASON: reason},
        links=[Link(attempt_context(source.identity, attempt=attempt, is_remote=True)) for attempt in attempts],
        status=UNSET if wrong is None else error(wrong),
        start_time=source.unix_of(lived_ns[0]),
        end_time=source.unix_of(lived_ns[1]),
        instrumentation_scope=SCOPE,
    )
    below = (launcher_context(source.identity, launch.operation, launch.start_ns) for launch in launches)
    return [span, *(_launch(source, *made, root, resource) for made in zip(launches, below, strict=True))]


def _launch(
    source: RankSource, launch: Launch, context: SpanContext, parent: SpanContext, resource: Resource
) -> ReadableSpan:
    attributes: dict[str, str | int] = {names.LAUNCH_OPERATION: launch.operation}
    if launch.node is not None:
        attributes[names.NODE_RANK] = launch.node
    if launch.error is not None:
        attributes[names.ERROR_TYPE] = launch.error
    return ReadableSpan(
        names.SPAN_LAUNCH,
        context,
        parent,
        resource,
        attributes,
        status=UNSET if launch.sentence is None else error(launch.sentence),
        start_time=source.unix_of(launch.start_ns),
        end_time=source.unix_of(launch.end_ns),
        instrumentation_scope=SCOPE,
    )


def launch_record(
    source: RankSource, event: LaunchEvent, resource: Resource, observed_unix_ns: int
) -> ReadableLogRecord:
    """An event of torchelastic, by its own name and with its own attributes.

    Args:
        source: the launcher.
        event: what it told.
        resource: of its node.
        observed_unix_ns: when the relay read it.
    """
    attempt = NonRecordingSpan(attempt_context(source.identity))
    record = LogRecord(
        timestamp=source.unix_of(event.at_ns),
        observed_timestamp=observed_unix_ns,
        context=set_span_in_context(attempt, Context()),
        severity_text=SeverityNumber.INFO.name,
        severity_number=SeverityNumber.INFO,
        body=event.name,
        attributes=dict(event.attributes),
        event_name=event.name,
    )
    return ReadableLogRecord(record, resource, SCOPE)
