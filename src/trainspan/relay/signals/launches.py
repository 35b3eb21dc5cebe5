"""What the launcher of a node tells, as spans of the attempt's trace and as log records."""

from typing import Final

from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.context import Context
from opentelemetry.sdk._logs import ReadableLogRecord
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import NonRecordingSpan, set_span_in_context

from trainspan import names
from trainspan.relay.signals.contexts import SCOPE, RankSource, attempt_context
from trainspan.relay.signals.spans import UNSET, error, rank_budget
from trainspan.relay.timeline.launches import Launch, LaunchEvent

MOST_LAUNCHES: Final = 500
"""Spans of all launchers in the trace of one attempt."""

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
    return ReadableSpan(
        names.SPAN_LAUNCH,
        attempt_context(identity, "node", node, launch.operation, launch.start_ns),
        attempt_context(identity, is_remote=node != 0),
        resource,
        {names.LAUNCH_OPERATION: launch.operation, names.NODE_RANK: node},
        status=UNSET if launch.ok else error(f"an exception left the {launch.operation} of the launcher"),
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
