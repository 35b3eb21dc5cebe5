"""What stayed on disk is delivered later, each batch once."""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, TraceFlags

from trainspan.errors import SettingError
from trainspan.relay.otlp.outlet import Outlet
from trainspan.relay.otlp.replay import Progress, ReplayReport, replay
from trainspan.relay.otlp.resource import HashedResource
from trainspan.testing.otlp_sink import Fault, OtlpSink, Protocol

PROTOCOLS: tuple[Protocol, ...] = ("http/protobuf", "grpc")
RESOURCE = HashedResource({"service.name": "trainspan"})
SCOPE = InstrumentationScope("trainspan")


def record(folder: Path, *numbers: int, node_rank: int = 0) -> None:
    """Leave one batch for each number in the run folder."""
    outlet = Outlet(folder, node_rank, {}, 64 << 20, print)
    for number in numbers:
        context = SpanContext(number + 1, number + 1, False, TraceFlags(1))
        outlet.put_spans([ReadableSpan(f"span {number}", context, resource=RESOURCE, instrumentation_scope=SCOPE)])
    outlet.close(timeout_s=0)


def names_at(sink: OtlpSink) -> list[str]:
    """The names of the spans that came in, in order."""
    return [one.item.name for one in sink.spans()]


def ignore(_: Progress) -> None:
    """Nobody is watching."""


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_everything_is_delivered_once(protocol: Protocol, tmp_path: Path) -> None:
    """`trainspan replay` may be typed twice, or run from a cron job."""
    record(tmp_path, 0, 1, 2)
    record(tmp_path, 3, node_rank=1)
    watched: list[Progress] = []

    with OtlpSink(protocol) as sink:
        first = replay(tmp_path, sink.environ, 20, watched.append)
        second = replay(tmp_path, sink.environ, 20, watched.append)

        names = names_at(sink)
    assert sorted(names) == ["span 0", "span 1", "span 2", "span 3"]
    assert first == ReplayReport(delivered=4, dropped=0, remaining_bytes=0, in_use=(), no_endpoint=(), problems=())
    assert first.complete
    assert second == replace(first, delivered=0)
    assert [one.file for one in watched] == ["traces.1.jsonl"] + ["traces.jsonl"] * 3
    assert watched[-1].done_bytes == watched[-1].total_bytes


def test_outage_in_the_middle_leaves_the_rest_for_the_next_call(tmp_path: Path) -> None:
    """What has arrived must not arrive again."""
    record(tmp_path, 0, 1, 2)

    with OtlpSink(faulty=lambda received: b"span 0" not in received.request.SerializeToString()) as sink:
        sink.fault = Fault.REFUSE
        first = replay(tmp_path, {**sink.environ, "OTEL_EXPORTER_OTLP_TIMEOUT": "0.5"}, 1, ignore)
        sink.fault = Fault.NONE
        second = replay(tmp_path, sink.environ, 20, ignore)

        names = names_at(sink)
    assert names == ["span 0", "span 1", "span 2"]
    assert (first.delivered, second.delivered) == (1, 2)
    assert not first.complete
    assert first.remaining_bytes > 0
    assert second.complete


def test_silent_endpoint_ends_at_the_timeout(tmp_path: Path) -> None:
    """Somebody is waiting at a prompt."""
    record(tmp_path, 0)

    with OtlpSink() as sink:
        sink.fault = Fault.SILENT
        report = replay(tmp_path, {**sink.environ, "OTEL_EXPORTER_OTLP_TIMEOUT": "60000"}, 0.5, ignore)

    assert report.delivered == 0
    assert not report.complete


def test_endpoint_that_refuses_is_not_asked_until_the_timeout(tmp_path: Path) -> None:
    """A wrong path is refused at once, and the answer should be there at once."""
    record(tmp_path, 0, 1)

    with OtlpSink() as sink:
        sink.fault = Fault.REJECT
        report = replay(tmp_path, sink.environ, 200, ignore)

    (problem,) = report.problems
    assert "HTTP 400" in problem
    assert report.dropped == 0
    assert not report.complete


def test_killed_relay_leaves_what_it_put(tmp_path: Path) -> None:
    """SIGKILL between the put and the delivery: the file holds it, and its lock died with the process."""
    program = (
        "import sys, time, pathlib; sys.path.insert(0, sys.argv[2]);"
        "from tests.integration.test_outlet_replay import leave_and_hang;"
        "leave_and_hang(pathlib.Path(sys.argv[1]), sys.argv[3])"
    )
    with OtlpSink() as sink:
        sink.fault = Fault.SILENT
        root = Path(__file__).resolve().parents[2]
        process = subprocess.Popen(
            [sys.executable, "-c", program, str(tmp_path), str(root), sink.endpoint], stdout=subprocess.PIPE
        )
        with process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"put\n"
            assert sink.wait_for(lambda sink: sink.attempts == 1, timeout_s=20)
            in_use = replay(tmp_path, sink.environ, 1, ignore).in_use
            os.kill(process.pid, signal.SIGKILL)
        sink.fault = Fault.NONE

        report = replay(tmp_path, sink.environ, 20, ignore)

        names = names_at(sink)
    assert in_use == ("logs.jsonl", "metrics.jsonl", "traces.jsonl")
    assert report.complete
    assert names == ["span 0", "span 1"]


def leave_and_hang(folder: Path, endpoint: str) -> None:
    """What the killed relay runs: two batches for a server that is silent."""
    outlet = Outlet(folder, 0, {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint}, 64 << 20, print)
    for number in range(2):
        context = SpanContext(number + 1, number + 1, False, TraceFlags(1))
        outlet.put_spans([ReadableSpan(f"span {number}", context, resource=RESOURCE, instrumentation_scope=SCOPE)])
    sys.stdout.write("put\n")
    sys.stdout.flush()
    signal.pause()


def test_without_endpoint_it_says_what_to_set(tmp_path: Path) -> None:
    """It must not look like success."""
    record(tmp_path, 0)

    with pytest.raises(SettingError, match="OTEL_EXPORTER_OTLP_ENDPOINT"):
        replay(tmp_path, {}, 1, ignore)


def test_signal_without_endpoint_is_named(tmp_path: Path) -> None:
    """It stays, and the report says so instead of a wrong `all delivered`."""
    record(tmp_path, 0)

    with OtlpSink() as sink:
        environ = {"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": f"{sink.endpoint}/v1/metrics"}
        report = replay(tmp_path, environ, 20, ignore)

    assert report.no_endpoint == ("logs.jsonl", "traces.jsonl")
    assert report.delivered == 0
