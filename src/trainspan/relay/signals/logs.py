"""Log records of the two facts that end a run badly: an exception that nobody caught, and a death without a word."""

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.context import Context
from opentelemetry.sdk._logs import ReadableLogRecord
from opentelemetry.trace import NonRecordingSpan, SpanContext, set_span_in_context

from trainspan import names
from trainspan.relay.signals.attempts import process_context
from trainspan.relay.signals.contexts import SCOPE, RankSource, step_context
from trainspan.relay.timeline.records import ProcessEnd, RankStep, phase_of_end

# Attributes of OpenTelemetry's semantic conventions.
EXCEPTION_TYPE: Final = "exception.type"
EXCEPTION_MESSAGE: Final = "exception.message"
EXCEPTION_STACKTRACE: Final = "exception.stacktrace"

MOST_FRAMES: Final = 100

Record: TypeAlias = ReadableLogRecord
"""A finished log record, for whoever carries it without a need to know what it is."""


def exception_record(
    source: RankSource, event: Mapping[str, Any], step: RankStep | None, observed_unix_ns: int
) -> ReadableLogRecord:
    """The record of an uncaught exception.

    Args:
        source: the rank.
        event: from the event log: `ts`, `type`, `stack` (a list of frames) and, only where the user wants it,
            `message`. It is read with distrust: what is missing or of another kind is left out.
        step: the step the process was in; None before the first.
        observed_unix_ns: when the relay read the event.
    """
    kind = event.get("type")
    attributes: dict[str, str | int] = {}
    if isinstance(kind, str):
        attributes[EXCEPTION_TYPE] = kind
    if isinstance(event.get("message"), str):
        attributes[EXCEPTION_MESSAGE] = event["message"]
    stack = event.get("stack")
    if isinstance(stack, list) and stack:
        attributes[EXCEPTION_STACKTRACE] = "\n".join(str(frame) for frame in stack[-MOST_FRAMES:])
    body = f"uncaught {kind}" if isinstance(kind, str) else "uncaught exception"
    return _record(names.EVENT_EXCEPTION, body, source, event["ts"], observed_unix_ns, attributes, step)


def died_record(source: RankSource, end: ProcessEnd, step: RankStep | None, observed_unix_ns: int) -> ReadableLogRecord:
    """The record of a process that is gone without having closed its recording.

    Args:
        source: the rank.
        end: how it ended.
        step: the unfinished step it was in; None before the first.
        observed_unix_ns: when the relay noticed.
    """
    attributes: dict[str, str | int] = {names.END_REASON: end.reason}
    if step is not None:
        attributes[names.PHASE] = phase_of_end(step, end.reason).wire
    return _record(names.EVENT_DIED, end.sentence(step), source, end.at_ns, observed_unix_ns, attributes, step)


def _record(
    event_name: str,
    body: str,
    source: RankSource,
    at_ns: int,
    observed_unix_ns: int,
    attributes: dict[str, str | int],
    step: RankStep | None,
) -> ReadableLogRecord:
    identity = source.identity
    own: dict[str, str | int] = {names.RANK: identity.rank}
    if step is not None:
        own[names.STEP] = step.number
    record = LogRecord(
        timestamp=source.unix_of(at_ns),
        observed_timestamp=observed_unix_ns,
        context=_context_of(source, step),
        severity_text="FATAL",
        severity_number=SeverityNumber.FATAL,
        body=body,
        attributes={**own, **attributes},
        event_name=event_name,
    )
    return ReadableLogRecord(record, source.resource, SCOPE)


def _context_of(source: RankSource, step: RankStep | None) -> Context:
    """The rank's part of the step; before the first step, the process."""
    identity = source.identity
    span: SpanContext = (
        process_context(source) if step is None else step_context(identity, step.number, "rank", identity.rank)
    )
    return set_span_in_context(NonRecordingSpan(span), Context())
