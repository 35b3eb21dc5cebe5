"""What the outlet does when the endpoint is down, silent, busy or refuses: nothing is lost, and nobody waits."""

import json
import logging
import re
import time
from collections.abc import Callable
from email.utils import formatdate
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, TraceFlags

from trainspan.relay.otlp.outlet import Outlet
from trainspan.relay.otlp.resource import HashedResource
from trainspan.testing.otlp_sink import Fault, OtlpSink, Protocol, Received

PROTOCOLS: tuple[Protocol, ...] = ("http/protobuf", "grpc")

# So that the SDK's own retries, 1 s apart and more, leave the waiting to the outlet.
IMPATIENT = {"OTEL_EXPORTER_OTLP_TIMEOUT": "0.4"}

RESOURCE = HashedResource({"service.name": "trainspan"})
SCOPE = InstrumentationScope("trainspan")


def spans(*numbers: int, padding: int = 0) -> list[ReadableSpan]:
    """Spans that are told from others by their names."""
    return [
        ReadableSpan(
            f"span {number}",
            SpanContext(number + 1, number + 1, False, TraceFlags(1)),
            resource=RESOURCE,
            attributes={"padding": "." * padding},
            start_time=1,
            end_time=2,
            instrumentation_scope=SCOPE,
        )
        for number in numbers
    ]


def names_at(sink: OtlpSink) -> list[str]:
    """The names of the spans that came in, in order."""
    return [one.item.name for one in sink.spans()]


def names_on_disk(folder: Path) -> list[str]:
    """The names of the spans in the folder that are not delivered."""
    journal = folder / "traces.jsonl"
    cursor = folder / "traces.jsonl.cursor"
    offset = json.loads(cursor.read_text())["offset_bytes"] if cursor.exists() else 0
    lines = [json.loads(line) for line in journal.read_bytes()[offset:].splitlines()]
    return [
        one["name"]
        for line in lines
        for of_resource in line["resourceSpans"]
        for one in of_resource["scopeSpans"][0]["spans"]
    ]


@pytest.fixture
def said() -> list[str]:
    """What an outlet has said."""
    return []


@pytest.fixture
def open_outlet(tmp_path: Path, said: list[str]) -> Callable[..., Outlet]:
    """Makes an outlet over this test's folder."""

    def make(environ: dict[str, str], spool_bytes: int = 64 << 20) -> Outlet:
        return Outlet(tmp_path, 0, {**IMPATIENT, **environ}, spool_bytes, said.append)

    return make


@pytest.mark.parametrize("fault", [Fault.REFUSE, Fault.SILENT, Fault.FORBID])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_outage_delays_and_loses_nothing(
    protocol: Protocol,
    fault: Fault,
    open_outlet: Callable[..., Outlet],
    said: list[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A collector that restarts, hangs, or misses a token for a while: afterwards each span is there once, in order."""
    with OtlpSink(protocol) as sink:
        sink.fault = fault
        outlet = open_outlet(sink.environ)
        for number in range(5):
            outlet.put_spans(spans(number))
        assert sink.wait_for(lambda sink: sink.attempts >= 1, timeout_s=20)

        sink.fault = Fault.NONE
        assert sink.wait_for(lambda sink: len(sink.spans()) >= 5, timeout_s=20)
        delivered = outlet.close(timeout_s=20)

        names = names_at(sink)
    assert delivered
    assert names == [f"span {number}" for number in range(5)]
    assert sink.attempts > 5
    assert len(said) <= 1
    assert caplog.records == []


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_endpoint_that_comes_late_gets_everything(protocol: Protocol, open_outlet: Callable[..., Outlet]) -> None:
    """A job often starts before its collector."""
    with OtlpSink(protocol) as gone:
        port, environ = gone.port, gone.environ
    outlet = open_outlet(environ)
    outlet.put_spans(spans(0))
    outlet.put_spans(spans(1))
    while outlet.health()["traces"].failures < 1:
        time.sleep(0.05)

    with OtlpSink(protocol, port=port) as sink:
        arrived = sink.wait_for(lambda sink: len(sink.spans()) == 2, timeout_s=30)
        outlet.close(timeout_s=20)

        names = names_at(sink)
    assert arrived
    assert names == ["span 0", "span 1"]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_silent_endpoint_does_not_hold_up_the_end(
    protocol: Protocol, tmp_path: Path, open_outlet: Callable[..., Outlet]
) -> None:
    """The job's end must not depend on a hanging server, and what it did not take must be on disk."""
    with OtlpSink(protocol) as sink:
        sink.fault = Fault.SILENT
        outlet = open_outlet({**sink.environ, "OTEL_EXPORTER_OTLP_TIMEOUT": "60000"})
        outlet.put_spans(spans(0, 1))
        assert sink.wait_for(lambda sink: sink.attempts == 1, timeout_s=20)

        began = time.monotonic()
        delivered = outlet.close(timeout_s=0.5)
        took_s = time.monotonic() - began

    assert not delivered
    assert took_s < 30
    assert names_on_disk(tmp_path) == ["span 0", "span 1"]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_one_poisoned_batch_does_not_block_the_others(
    protocol: Protocol, open_outlet: Callable[..., Outlet], said: list[str]
) -> None:
    """An endpoint that chokes on one batch would otherwise be the end of all telemetry of the run."""

    def has_span_1(received: Received) -> bool:
        return b"span 1" in received.request.SerializeToString()

    with OtlpSink(protocol, faulty=has_span_1) as sink:
        sink.fault = Fault.REJECT
        outlet = open_outlet(sink.environ)
        for number in range(4):
            outlet.put_spans(spans(number))

        arrived = sink.wait_for(lambda sink: len(sink.spans()) == 3, timeout_s=30)
        delivered = outlet.close(timeout_s=20)

        names = names_at(sink)
    assert arrived
    assert delivered
    assert names == ["span 0", "span 2", "span 3"]
    assert outlet.health()["traces"].dropped == 1
    assert len(said) == 2


def test_endpoint_that_refuses_everything_costs_nothing(tmp_path: Path, open_outlet: Callable[..., Outlet]) -> None:
    """400 for all is a wrong address, not poison: the right one can still be told to `replay`."""
    with OtlpSink() as sink:
        sink.fault = Fault.REJECT
        outlet = open_outlet(sink.environ)
        outlet.put_spans(spans(0))
        outlet.put_spans(spans(1))
        # Three refusals of the first batch, and one of the second.
        assert sink.wait_for(lambda sink: sink.attempts >= 4, timeout_s=30)

        delivered = outlet.close(timeout_s=0)

    assert not delivered
    assert outlet.health()["traces"].dropped == 0
    assert names_on_disk(tmp_path) == ["span 0", "span 1"]


def test_spool_keeps_the_newest_within_its_bound(
    tmp_path: Path, open_outlet: Callable[..., Outlet], said: list[str]
) -> None:
    """A night without a collector fills neither the disk nor the memory, and what went is counted."""
    with OtlpSink() as sink:
        sink.fault = Fault.REFUSE
        outlet = open_outlet(sink.environ, spool_bytes=20_000)
        for number in range(100):
            outlet.put_spans(spans(number, padding=500))
        pending_bytes = outlet.health()["traces"].pending_bytes

        sink.fault = Fault.NONE
        delivered = outlet.close(timeout_s=30) or outlet.health()["traces"].pending_bytes == 0

        numbers = [int(name.removeprefix("span ")) for name in names_at(sink)]
    assert delivered
    assert 10_000 < pending_bytes <= 20_000
    assert (tmp_path / "traces.jsonl").stat().st_size <= 20_000
    assert len(numbers) + outlet.health()["traces"].dropped == 100
    assert numbers == list(range(100 - len(numbers), 100))
    assert any("full" in message for message in said)


def test_the_users_own_exporters_can_still_be_heard(
    open_outlet: Callable[..., Outlet], caplog: pytest.LogCaptureFixture
) -> None:
    """In thread mode the training script may use the SDK too, and its failures are its business."""
    outlet = open_outlet({})
    outlet.put_spans(spans(0))
    outlet.close(timeout_s=0)

    logging.getLogger("opentelemetry.exporter.otlp.proto.common._internal").error("theirs")

    assert [one.message for one in caplog.records] == ["theirs"]


def test_torn_file_of_the_run_before_is_delivered_up_to_the_tear(
    tmp_path: Path, open_outlet: Callable[..., Outlet], said: list[str]
) -> None:
    """The attempt before ended with the host; this one delivers what it could not."""
    before = open_outlet({})
    before.put_spans(spans(0))
    before.close(timeout_s=0)
    with (tmp_path / "traces.jsonl").open("ab") as journal:
        journal.write(b'{"resourceSpans":\nnot json either\n{"resourceSp')

    with OtlpSink() as sink:
        outlet = open_outlet(sink.environ)
        outlet.put_spans(spans(1))
        delivered = outlet.close(timeout_s=20)

        names = names_at(sink)
    assert delivered
    assert names == ["span 0", "span 1"]
    assert outlet.health()["traces"].dropped == 3
    assert len(said) == 2


@pytest.mark.parametrize("form", ["60", "date"])
def test_endpoint_that_asks_to_be_left_alone_is_left_alone(
    form: str, open_outlet: Callable[..., Outlet], said: list[str]
) -> None:
    """Who throttles and is asked again at once throttles everybody; and its word, not ours, is what helps."""
    with OtlpSink() as sink:
        sink.fault = Fault.THROTTLE
        sink.retry_after = formatdate(time.time() + 60, usegmt=True) if form == "date" else form
        outlet = open_outlet(sink.environ)

        outlet.put_spans(spans(0))
        assert sink.wait_for(lambda sink: sink.attempts >= 1, timeout_s=20)
        asked_more = sink.wait_for(lambda sink: sink.attempts >= 2, timeout_s=3)

        outlet.close(timeout_s=0.1)
    (message,) = said
    assert not asked_more
    assert re.search(r"does not take traces \(HTTP 429, try again after (59|60) s\)", message)


def test_what_an_endpoint_leaves_out_is_counted_said_once_and_not_sent_again(
    open_outlet: Callable[..., Outlet], said: list[str]
) -> None:
    """It would leave it out again, and take the rest twice."""
    with OtlpSink() as sink:
        sink.leaves_out = 2
        outlet = open_outlet(sink.environ)
        for number in range(3):
            outlet.put_spans(spans(number))

        delivered = outlet.close(timeout_s=20)

        attempts, health = sink.attempts, outlet.health()["traces"]
    assert delivered
    assert (attempts, health.delivered, health.dropped, health.rejected) == (3, 3, 0, 6)
    (message,) = said
    assert "took traces, but left out 2 of a batch (the test asked for it); they are not sent again" in message
