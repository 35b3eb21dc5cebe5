"""What a launcher tells of itself, taken with distrust, and as it goes on the wire."""

from typing import Any

import pytest
from opentelemetry._logs import SeverityNumber

from tests.unit.signal_shapes import UNIX_NS, source_of
from trainspan.identity import span_id_of, trace_id_of
from trainspan.relay.signals.launches import MOST_LAUNCHES, MOST_LINKS, launch_record, launch_span, launcher_spans
from trainspan.relay.timeline.launches import MOST_WAITING, Launch, Launches, LaunchEvent

BEGUN = {"event": "launch_begins", "operation": "rendezvous", "attempt": 1, "start_ns": 5000}
DONE = {"event": "launch", "operation": "rendezvous", "attempt": 1, "start_ns": 1000, "end_ns": 3000, "ok": True}


def taken(*events: dict[str, Any]) -> Launches:
    """What is made of these events."""
    launches = Launches(0)
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
        {"event": "launch_begins", "start_ns": -1},
        {"event": "launch_begins", "operation": 7},
        {"event": "worker_ended", "attempt": 0, "exit_code": "2", "signal": 9.0},
        {"event": "worker_ended", "attempt": "0", "exit_code": 2},
    ],
)
def test_nonsense_is_left_out(event: dict[str, Any]) -> None:
    """A log can hold anything."""
    nonsense = {**DONE, **event} if event else {"event": "launch"}

    launches = taken(nonsense)

    assert (launches.done, launches.events, launches.reasons, launches.metrics) == ([], [], {}, {})
    assert (launches.open, launches.attempt) == (None, 0)


def test_launch_waits_until_its_attempt_is_known() -> None:
    """A trace without its root is shown with a warning: an attempt may have no rank."""
    launches = taken(DONE, {**DONE, "attempt": 2})

    first, second = launches.take_done({1}), launches.take_done({1})
    later = launches.take_done({1, 2})

    assert [[one.attempt for one in done] for done in (first, second, later)] == [[1], [], [2]]


def test_what_a_launcher_was_doing_when_it_ended_is_told_as_failed() -> None:
    """A node that is killed while it waits for the others has this one thing to tell."""
    launches = taken(DONE, {**BEGUN, "attempt": 2})

    open_before = launches.open
    launches.end(9000)

    assert open_before == Launch("rendezvous", 2, 5000, 5000, False, None, 1)
    assert launches.open is None
    assert launches.done[1:] == [Launch("rendezvous", 2, 5000, 9000, False, None, 1)]
    assert (launches.attempt, launches.time_s()) == (2, {"rendezvous": 6e-6})


def test_what_is_done_is_not_open_any_more() -> None:
    """Its end must not be told a second time."""
    launches = taken(BEGUN, {**DONE, "start_ns": 5000, "end_ns": 7000})

    launches.end(9000)

    assert [(done.start_ns, done.end_ns) for done in launches.done] == [(5000, 7000)]


def test_exception_that_left_the_agent_is_kept() -> None:
    """SIGINT ends torchrun so, while nothing of what it does is under way."""
    launches = taken(DONE, {"event": "launch_failed", "error": "torch.SignalException"})

    assert launches.error == "torch.SignalException"


def test_workers_that_failed_are_counted_for_the_newest_attempt() -> None:
    """What became of earlier ones is in their ranks, or has been told."""
    failed = {"event": "worker_ended", "pid": 7, "exit_code": 2, "signal": None}

    launches = taken(
        {**failed, "attempt": 0},
        DONE,
        {**failed, "attempt": 0},
        {**failed, "attempt": 1},
        {**failed, "attempt": 1, "exit_code": -9, "signal": "SIGKILL"},
    )

    assert launches.worker_ends == {"exit code 2": 1, "SIGKILL": 1}


def test_what_nobody_takes_is_bounded_and_counted() -> None:
    """Workers that never come to train can be started anew for days."""
    launches = taken(*[{**DONE, "attempt": number} for number in range(MOST_WAITING + 3)])

    kept = [launch.attempt for launch in launches.done]

    assert (kept[0], len(kept), launches.cut) == (3, MOST_WAITING, 3)


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
    launch = Launch("start_workers", 2, 1500, 2500, False, 1, 2, "OSError")

    span = launch_span(source, launch, source.resource)

    assert span is not None
    assert span.context is not None
    assert span.parent is not None
    assert (span.name, dict(span.attributes or {})) == (
        "training.launch",
        {"training.launch.operation": "start_workers", "training.node_rank": 1, "error.type": "OSError"},
    )
    assert span.context.trace_id == trace_id_of("run-1", 2, "attempt")
    assert span.context.span_id == span_id_of("run-1", 2, "attempt", "node", 1, "start_workers", 1500)
    assert (span.parent.span_id, span.parent.is_remote) == (span_id_of("run-1", 2, "attempt"), True)
    assert ((span.start_time or 0) - UNIX_NS, (span.end_time or 0) - UNIX_NS) == (500, 1500)
    assert span.status.description == "OSError left the start_workers of the launcher"


def test_launcher_without_a_rank_has_a_trace_of_its_own() -> None:
    """The attempt's root is made elsewhere, if at all: it must neither be missing nor come twice."""
    source = source_of(0)
    waited = Launch("rendezvous", 2, 1500, 2500, False, None, 1)

    root, below = launcher_spans(source, (1000, 3000), [waited], "died", waited.sentence, source.resource)

    assert root.context is not None
    assert below.context is not None
    host, pid = source.identity.host, source.identity.pid
    assert root.context.trace_id == below.context.trace_id == trace_id_of("run-1", 0, "launcher", host, pid)
    assert (root.parent, below.parent) == (None, root.context)
    assert root.context.span_id == span_id_of("run-1", 0, "launcher", host, pid)
    assert below.context.span_id == span_id_of("run-1", 0, "launcher", host, pid, "rendezvous", 1500)
    assert (root.name, dict(root.attributes or {})) == ("training.launcher", {"training.end.reason": "died"})
    assert dict(below.attributes or {}) == {"training.launch.operation": "rendezvous"}
    assert [link.context.trace_id for link in root.links] == [trace_id_of("run-1", 2, "attempt")]
    assert root.status.description == below.status.description == "the launcher ended in its rendezvous"
    assert ((root.start_time or 0) - UNIX_NS, (root.end_time or 0) - UNIX_NS) == (0, 2000)


def test_launcher_links_a_bounded_number_of_attempts() -> None:
    """One that restarts for days is to be taken by any backend."""
    source = source_of(0)
    launches = [Launch("rendezvous", attempt, 1500, 2500, True, None, 1) for attempt in range(1000)]

    root, *_ = launcher_spans(source, (1000, 3000), launches, "closed", None, source.resource)

    assert len(root.links) == MOST_LINKS
    assert root.links[-1].context.trace_id == trace_id_of("run-1", 999, "attempt")


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
