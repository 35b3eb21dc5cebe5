"""The log records of what goes badly, tied to the span in which it did."""

from typing import Any

import pytest
from opentelemetry._logs import SeverityNumber
from opentelemetry.sdk._logs import ReadableLogRecord

from tests.unit.signal_shapes import UNIX_NS, source_of
from trainspan.identity import span_id_of, trace_id_of
from trainspan.names import Phase
from trainspan.relay.signals.contexts import SCOPE
from trainspan.relay.signals.logs import (
    MOST_FRAMES,
    died_record,
    ended_record,
    exception_record,
    out_of_memory_record,
    stalled_record,
    started_record,
)
from trainspan.relay.timeline.records import ProcessEnd
from trainspan.relay.timeline.stalls import Standing
from trainspan.relay.timeline.throughput import Work
from trainspan.relay.timeline.told import Value
from trainspan.testing.builders import rank_step

STEP = rank_step(41, [(Phase.FORWARD, 5), (Phase.BACKWARD, 5)], complete=False)
EVENT = {
    "ts": 1500,
    "event": "exception",
    "type": "ValueError",
    "stack": ["app/train.py:9 in <module>", "app/loop.py:7 in loop"],
}


def shown(record: ReadableLogRecord) -> dict[str, Any]:
    """A log record, whole."""
    log = record.log_record
    assert record.instrumentation_scope == SCOPE
    return {
        "event_name": log.event_name,
        "body": log.body,
        "times_ns": ((log.timestamp or 0) - UNIX_NS, (log.observed_timestamp or 0) - UNIX_NS),
        "severity": (log.severity_number, log.severity_text),
        "span": (log.trace_id, log.span_id, log.trace_flags),
        "attributes": dict(log.attributes or {}),
        "resource": dict(record.resource.attributes),
    }


def test_an_exception_as_it_goes_on_the_wire() -> None:
    """The whole payload, once: it leads from the log to the span of the step."""
    record = exception_record(source_of(1), EVENT, STEP, UNIX_NS + 900)

    assert shown(record) == {
        "event_name": "training.exception",
        "body": "uncaught ValueError",
        "times_ns": (500, 900),
        "severity": (SeverityNumber.FATAL, "FATAL"),
        "span": (trace_id_of("run-1", 0, "step", 41), span_id_of("run-1", 0, "step", 41, "rank", 1), 3),
        "attributes": {
            "training.rank": 1,
            "training.step": 41,
            "exception.type": "ValueError",
            "exception.stacktrace": "app/train.py:9 in <module>\napp/loop.py:7 in loop",
        },
        "resource": {"training.rank": 1},
    }


def test_a_death_as_it_goes_on_the_wire() -> None:
    """The rank could not say it itself."""
    record = died_record(source_of(1), ProcessEnd(1700, "died", "SIGKILL"), STEP, UNIX_NS + 900)

    assert shown(record) == {
        "event_name": "training.died",
        "body": "process ended by SIGKILL in backward of step 41",
        "times_ns": (700, 900),
        "severity": (SeverityNumber.FATAL, "FATAL"),
        "span": (trace_id_of("run-1", 0, "step", 41), span_id_of("run-1", 0, "step", 41, "rank", 1), 3),
        "attributes": {
            "training.rank": 1,
            "training.step": 41,
            "training.end.reason": "died",
            "training.phase": "backward",
        },
        "resource": {"training.rank": 1},
    }


def test_process_that_its_launcher_stopped_is_no_fatal_error() -> None:
    """Who alerts on what is fatal hears of the rank that died, and not of the seven that were stopped because of it."""
    record = died_record(source_of(0), ProcessEnd(1700, "stopped", "SIGTERM"), STEP, UNIX_NS)

    made = shown(record)
    assert made["severity"] == (SeverityNumber.WARN, "WARN")
    assert made["body"] == "process ended by SIGTERM of its launcher in backward of step 41"


def test_before_the_first_step_the_record_belongs_to_the_process() -> None:
    """There is no step to point to, but there is a process."""
    record = died_record(source_of(1), ProcessEnd(1700, "died"), None, UNIX_NS)

    made = shown(record)
    assert made["span"] == (trace_id_of("run-1", 0, "attempt"), span_id_of("run-1", 0, "attempt", "rank", 1), 3)
    assert made["attributes"] == {"training.rank": 1, "training.end.reason": "died"}
    assert made["body"] == "process ended in init"


@pytest.mark.parametrize(("message", "shows"), [({}, None), ({"message": "loss is nan"}, "loss is nan")])
def test_the_message_goes_out_only_if_it_was_recorded(message: dict[str, str], shows: str | None) -> None:
    """A message can hold data; the rank records it only where the user has asked for it."""
    record = exception_record(source_of(0), {**EVENT, **message}, STEP, UNIX_NS)

    assert shown(record)["attributes"].get("exception.message") == shows


@pytest.mark.parametrize(
    ("event", "attributes", "body"),
    [
        ({"ts": 1500}, {}, "uncaught exception"),
        ({"ts": 1500, "type": 5, "stack": "frames", "message": {}}, {}, "uncaught exception"),
        ({"ts": 1500, "stack": []}, {}, "uncaught exception"),
        ({"ts": 1500, "stack": [1, None]}, {"exception.stacktrace": "1\nNone"}, "uncaught exception"),
    ],
)
def test_a_hostile_event_loses_what_makes_no_sense(
    event: dict[str, Any], attributes: dict[str, Any], body: str
) -> None:
    """The event log is a file in the rank's hands; the exporter must not meet what it cannot encode."""
    record = exception_record(source_of(0), event, None, UNIX_NS)

    made = shown(record)
    assert made["attributes"] == {"training.rank": 0, **attributes}
    assert made["body"] == body


def test_a_long_stack_is_cut_to_its_innermost_frames() -> None:
    """A recursion error has a thousand frames, and the last ones tell."""
    event = {**EVENT, "stack": [f"frame {n}" for n in range(1000)]}

    record = exception_record(source_of(0), event, None, UNIX_NS)

    frames = shown(record)["attributes"]["exception.stacktrace"].split("\n")
    assert len(frames) == MOST_FRAMES
    assert frames[-1] == "frame 999"


def test_a_device_out_of_memory_names_the_step_and_phase() -> None:
    """The script may catch it and go on: it is an error of the step, and not the end of the process."""
    event = {"ts": 1500, "event": "out_of_memory", "step": 41, "phase": "backward"}

    record = out_of_memory_record(source_of(1), event, UNIX_NS + 900)

    assert shown(record) == {
        "event_name": "training.out_of_memory",
        "body": "the device was out of memory in backward of step 41",
        "times_ns": (500, 900),
        "severity": (SeverityNumber.ERROR, "ERROR"),
        "span": (trace_id_of("run-1", 0, "step", 41), span_id_of("run-1", 0, "step", 41, "rank", 1), 3),
        "attributes": {"training.rank": 1, "training.step": 41, "training.phase": "backward"},
        "resource": {"training.rank": 1},
    }


def test_a_device_out_of_memory_without_a_place_is_told_all_the_same() -> None:
    """An event log is a file of the user's."""
    record = out_of_memory_record(source_of(1), {"ts": 1500, "event": "out_of_memory", "step": "x"}, UNIX_NS)

    assert record.log_record.body == "the device was out of memory in an unknown step"
    assert dict(record.log_record.attributes or {}) == {"training.rank": 1}


def test_training_that_has_started_says_what_it_trains() -> None:
    """The one line to look for: this run is that model."""
    facts: dict[str, Value] = {
        "training.model.class": "Llama",
        "training.optimizer.class": "AdamW",
        "training.model.parameters": 8_030,
    }

    record = started_record(source_of(1), facts, 1500, UNIX_NS + 900)

    process = span_id_of("run-1", 0, "attempt", "rank", 1)
    assert shown(record) == {
        "event_name": "training.started",
        "body": "training of Llama with AdamW has started",
        "times_ns": (500, 900),
        "severity": (SeverityNumber.INFO, "INFO"),
        "span": (trace_id_of("run-1", 0, "attempt"), process, 3),
        "attributes": {"training.rank": 1, **facts},
        "resource": {"training.rank": 1},
    }


def test_training_that_has_ended_says_what_it_has_done() -> None:
    """Without it a run that is done looks like one whose records were lost. What no batch has told is left out."""
    end, work = ProcessEnd(1700, "closed"), Work(samples=640, flops=1e9)

    record = ended_record(source_of(1), end, 19, work, UNIX_NS + 900)

    process = span_id_of("run-1", 0, "attempt", "rank", 1)
    assert shown(record) == {
        "event_name": "training.ended",
        "body": "training has ended after 20 steps",
        "times_ns": (700, 900),
        "severity": (SeverityNumber.INFO, "INFO"),
        "span": (trace_id_of("run-1", 0, "attempt"), process, 3),
        "attributes": {
            "training.rank": 1,
            "training.end.reason": "closed",
            "training.steps": 20,
            "training.step.last": 19,
            "training.samples": 640,
        },
        "resource": {"training.rank": 1},
    }
    assert ended_record(source_of(1), end, 0, work, 0).log_record.body == "training has ended after 1 step"


def test_a_stall_as_it_goes_on_the_wire() -> None:
    """Its time is when the rank gave its last sign: of several records the first is of the likely cause."""
    record = stalled_record(source_of(1), Standing(41, Phase.BACKWARD, 1500), UNIX_NS + 500 + 61_000_000_000)

    assert shown(record) == {
        "event_name": "training.stalled",
        "body": "no sign for 61 s: in backward of step 41",
        "times_ns": (500, 61_000_000_500),
        "severity": (SeverityNumber.WARN, "WARN"),
        "span": (trace_id_of("run-1", 0, "step", 41), span_id_of("run-1", 0, "step", 41, "rank", 1), 3),
        "attributes": {"training.rank": 1, "training.step": 41, "training.phase": "backward"},
        "resource": {"training.rank": 1},
    }
