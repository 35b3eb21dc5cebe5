"""Log records of what goes badly: an uncaught exception, a death without a word, a stall, a device out of memory.

And of the beginning and the end of training, and of what the script says has happened.
"""

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
from trainspan.relay.timeline.stalls import Standing
from trainspan.relay.timeline.throughput import Work
from trainspan.relay.timeline.told import Value
from trainspan.relay.timeline.user_events import UserEvent

# Attributes of OpenTelemetry's semantic conventions.
EXCEPTION_TYPE: Final = "exception.type"
EXCEPTION_MESSAGE: Final = "exception.message"
EXCEPTION_STACKTRACE: Final = "exception.stacktrace"

MOST_FRAMES: Final = 100
_MOST_STEPS: Final = 1 << 63
"""A log can hold any number; OTLP's have 64 bits."""

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
    return _record(names.EVENT_EXCEPTION, body, source, event["ts"], observed_unix_ns, attributes, _number(step))


def died_record(source: RankSource, end: ProcessEnd, step: RankStep | None, observed_unix_ns: int) -> ReadableLogRecord:
    """The record of a process that is gone without having closed its recording; of a stopped one a warning.

    Args:
        source: the rank.
        end: how it ended.
        step: the unfinished step it was in; None before the first.
        observed_unix_ns: when the relay noticed.
    """
    attributes: dict[str, str | int] = {names.END_REASON: end.reason}
    if step is not None:
        attributes[names.PHASE] = phase_of_end(step).wire
    severity = SeverityNumber.WARN if end.reason == "stopped" else SeverityNumber.FATAL
    body = end.sentence(step)
    return _record(names.EVENT_DIED, body, source, end.at_ns, observed_unix_ns, attributes, _number(step), severity)


def out_of_memory_record(source: RankSource, event: Mapping[str, Any], observed_unix_ns: int) -> ReadableLogRecord:
    """The record of an allocation on the device that failed in a phase.

    Args:
        source: the rank.
        event: from the event log: `ts`, `step`, `phase`. It is read with distrust.
        observed_unix_ns: when the relay read it.
    """
    step, phase = event.get("step"), event.get("phase")
    attributes: dict[str, str | int] = {names.PHASE: phase} if isinstance(phase, str) else {}
    number = step if type(step) is int and 0 <= step < _MOST_STEPS else None
    where = f"{phase} of step {step}" if number is not None else "an unknown step"
    severity = SeverityNumber.ERROR
    body = f"the device was out of memory in {where}"
    return _record(names.EVENT_OUT_OF_MEMORY, body, source, event["ts"], observed_unix_ns, attributes, number, severity)


def stalled_record(source: RankSource, stall: Standing, observed_unix_ns: int) -> ReadableLogRecord:
    """The record of a rank that gives no sign.

    Args:
        source: the rank.
        stall: where it stands, and since when.
        observed_unix_ns: when that was long enough.
    """
    waited_s = (observed_unix_ns - source.unix_of(stall.since_ns)) / 1e9
    body = f"no sign for {waited_s:.0f} s: in {stall.phase.wire} of step {stall.number}"
    attributes = {names.PHASE: stall.phase.wire}
    severity = SeverityNumber.WARN
    at_ns, number = stall.since_ns, stall.number
    return _record(names.EVENT_STALLED, body, source, at_ns, observed_unix_ns, attributes, number, severity)


def started_record(
    source: RankSource, facts: Mapping[str, Value], at_ns: int, observed_unix_ns: int
) -> ReadableLogRecord:
    """The record of a rank that has come through its first step.

    Args:
        source: the rank.
        facts: what it trains, as attributes.
        at_ns: when it told so.
        observed_unix_ns: when the relay read it.
    """
    model = facts.get(names.MODEL_CLASS, "a model")
    body = f"training of {model} with {facts.get(names.OPTIMIZER_CLASS, 'an optimizer')} has started"
    severity = SeverityNumber.INFO
    return _record(names.EVENT_STARTED, body, source, at_ns, observed_unix_ns, facts, None, severity)


def ended_record(
    source: RankSource, end: ProcessEnd, last_step: int, work: Work, observed_unix_ns: int
) -> ReadableLogRecord:
    """The record of a rank that has trained and came to its end in good order.

    Args:
        source: the rank.
        end: how it ended.
        last_step: the last step it has completed.
        work: what it has done.
        observed_unix_ns: when the relay noticed.
    """
    attributes: dict[str, Value] = {
        names.END_REASON: end.reason,
        names.STEPS_DONE: last_step + 1,
        names.LAST_STEP: last_step,
    }
    done = {names.STEP_SAMPLES: work.samples, names.STEP_TOKENS: work.tokens}
    attributes.update({name: count for name, count in done.items() if count is not None})
    body = f"training has ended after {last_step + 1} step{'' if not last_step else 's'}"
    severity = SeverityNumber.INFO
    return _record(names.EVENT_ENDED, body, source, end.at_ns, observed_unix_ns, attributes, None, severity)


def user_record(source: RankSource, event: UserEvent, observed_unix_ns: int) -> ReadableLogRecord:
    """The record of what the script says has happened.

    Args:
        source: the rank.
        event: what it said.
        observed_unix_ns: when the relay read it.
    """
    severity = SeverityNumber.INFO
    return _record(
        event.name, event.name, source, event.at_ns, observed_unix_ns, event.attributes, event.step, severity
    )


def _record(
    event_name: str,
    body: str,
    source: RankSource,
    at_ns: int,
    observed_unix_ns: int,
    attributes: Mapping[str, Value],
    step: int | None,
    severity: SeverityNumber = SeverityNumber.FATAL,
) -> ReadableLogRecord:
    identity = source.identity
    own: dict[str, Value] = {names.RANK: identity.rank}
    if step is not None:
        own[names.STEP] = step
    record = LogRecord(
        timestamp=source.unix_of(at_ns),
        observed_timestamp=observed_unix_ns,
        context=_context_of(source, step),
        severity_text=severity.name,
        severity_number=severity,
        body=body,
        attributes={**attributes, **own},
        event_name=event_name,
    )
    return ReadableLogRecord(record, source.resource, SCOPE)


def _number(step: RankStep | None) -> int | None:
    return None if step is None else step.number


def _context_of(source: RankSource, step: int | None) -> Context:
    """The rank's part of the step; before the first step, the process."""
    identity = source.identity
    span: SpanContext = process_context(source) if step is None else step_context(identity, step, "rank", identity.rank)
    return set_span_in_context(NonRecordingSpan(span), Context())
