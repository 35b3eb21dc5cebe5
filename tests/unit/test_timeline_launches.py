"""What a launcher tells of itself, taken with distrust, and as it goes on the wire."""

from typing import Any

import pytest
from opentelemetry._logs import SeverityNumber

from tests.unit.signal_shapes import UNIX_NS, source_of
from trainspan.identity import span_id_of, trace_id_of
from trainspan.relay.signals.launches import MOST_LAUNCHES, launch_record, launch_span
from trainspan.relay.timeline.launches import Launch, Launches, LaunchEvent

DONE = {"event": "launch", "operation": "rendezvous", "attempt": 1, "start_ns": 1000, "end_ns": 3000, "ok": True}


def taken(*events: dict[str, Any]) -> Launches:
    """What is made of these events."""
    launches = Launches()
    for event in events:
        launches.take(event)
    return launches


def test_time_is_summed_by_operation() -> None:
    """A counter of seconds, over all attempts."""
    launches = taken(DONE, {**DONE, "attempt": 2}, {**DONE, "operation": "stop_workers"})

    assert launches.time_s() == {"rendezvous": 4e-6, "stop_workers": 2e-6}
    assert [done.attempt for done in launches.done] == [1, 2, 1]


def test_what_comes_after_the_attempt_is_counted_and_has_no_span() -> None:
    """The trace of the attempt has ended with its last process."""
    launches = taken({**DONE, "operation": "exit_barrier"})

    assert (launches.done, launches.began_ns) == ([], {})
    assert launches.time_s() == {"exit_barrier": 2e-6}


def test_what_was_done_and_why_is_kept_by_attempt() -> None:
    """The relay has a trace for each attempt, and a restart is counted with its reason."""
    launches = taken({**DONE, "attempt": 5}, {"event": "launch_restart", "attempt": 6, "reason": "membership"})

    assert launches.done == [Launch("rendezvous", 5, 1000, 3000, True, None, 1)]
    assert launches.reasons == {6: "membership"}


@pytest.mark.parametrize(
    "event",
    [
        {},
        {"operation": "mine"},
        {"attempt": None},
        {"attempt": -1},
        {"attempt": 1 << 40},
        {"start_ns": "1000"},
        {"start_ns": 4000},
        {"end_ns": 1 << 63},
        {"event": "launch_restart", "reason": "mine"},
        {"event": "launch_restart", "reason": "failure", "attempt": True},
        {"event": "launch_metrics", "values": [1]},
        {"event": "launch_metrics", "values": {"a": "text", "b": True, "c": None}},
        {"event": "launch_event", "name": 7, "ts": 1},
        {"event": "launch_event", "name": "a\nb", "ts": 1},
        {"event": "launch_event", "name": "a", "ts": None},
        {"event": "another"},
    ],
)
def test_nonsense_is_left_out(event: dict[str, Any]) -> None:
    """A log can hold anything."""
    nonsense = {**DONE, **event} if event else {"event": "launch"}

    launches = taken(nonsense)

    assert (launches.done, launches.events, launches.reasons, launches.metrics) == ([], [], {}, {})


def test_launch_waits_until_its_attempt_is_known() -> None:
    """A trace without its root is shown with a warning: an attempt may have no rank."""
    launches = taken(DONE, {**DONE, "attempt": 2})

    first, second = launches.take_done({1}), launches.take_done({1})
    later = launches.take_done({1, 2})

    assert [[one.attempt for one in done] for done in (first, second, later)] == [[1], [], [2]]


def test_metrics_keep_their_last_value() -> None:
    """As a gauge has it."""
    launches = taken(
        {"event": "launch_metrics", "values": {"healthy": 1, "flakiness": 0}},
        {"event": "launch_metrics", "values": {"flakiness": 33.5}},
    )

    assert launches.metrics == {"healthy": 1, "flakiness": 33.5}


def test_span_lies_below_its_attempt() -> None:
    """The whole payload, once."""
    source = source_of(0)
    launch = Launch("start_workers", 2, 1500, 2500, False, 1, 2)

    span = launch_span(source, launch, source.resource)

    assert span is not None
    assert span.context is not None
    assert span.parent is not None
    assert (span.name, dict(span.attributes or {})) == (
        "training.launch",
        {"training.launch.operation": "start_workers", "training.node_rank": 1},
    )
    assert span.context.trace_id == trace_id_of("run-1", 2, "attempt")
    assert span.context.span_id == span_id_of("run-1", 2, "attempt", "node", 1, "start_workers", 1500)
    assert (span.parent.span_id, span.parent.is_remote) == (span_id_of("run-1", 2, "attempt"), True)
    assert ((span.start_time or 0) - UNIX_NS, (span.end_time or 0) - UNIX_NS) == (500, 1500)
    assert span.status.description == "an exception left the start_workers of the launcher"


def test_trace_of_many_nodes_stays_small() -> None:
    """Ten thousand launchers tell of four things each."""
    source = source_of(0)

    spans = [
        launch_span(source, Launch("rendezvous", 0, 1500, 2500, True, node, 10_000), source.resource)
        for node in range(10_000)
    ]

    told = [span for span in spans if span is not None]
    assert told[0] is spans[0]
    assert 4 * len(told) <= MOST_LAUNCHES


def test_event_is_a_record_of_its_own_name() -> None:
    """Who has looked for it in torchelastic's own log finds it here."""
    source = source_of(0)
    event = LaunchEvent("torchelastic.worker.status.FAILED", 1500, {"exit_code": 9})

    log = launch_record(source, event, source.resource, UNIX_NS + 900).log_record

    assert (log.event_name, log.body) == (event.name, event.name)
    assert dict(log.attributes or {}) == {"exit_code": 9}
    assert (log.severity_number, (log.timestamp or 0) - UNIX_NS) == (SeverityNumber.INFO, 500)
    assert (log.trace_id, log.span_id) == (trace_id_of("run-1", 0, "attempt"), span_id_of("run-1", 0, "attempt"))
