"""What is put into the outlet arrives at a real endpoint, over both protocols."""

import json
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.context import Context
from opentelemetry.sdk._logs import ReadableLogRecord
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, TraceFlags

from trainspan.relay.otlp.otlp_json import decode, encode
from trainspan.relay.otlp.outlet import BATCH_POINTS, Outlet, SignalHealth
from trainspan.relay.otlp.resource import HashedResource
from trainspan.testing.otlp_sink import OtlpSink, Protocol

PROTOCOLS: tuple[Protocol, ...] = ("http/protobuf", "grpc")
SPOOL_BYTES = 64 << 20

RESOURCE = HashedResource({"service.name": "trainspan", "training.rank": 0})
SCOPE = InstrumentationScope("trainspan", "0.1.0")


def span(number: int) -> ReadableSpan:
    """A span that is told from others by its name."""
    return ReadableSpan(
        f"span {number}",
        SpanContext(number + 1, number + 1, False, TraceFlags(1)),
        resource=RESOURCE,
        attributes={"training.step": number},
        start_time=number,
        end_time=number + 1,
        instrumentation_scope=SCOPE,
    )


def counter(value: int, resource: HashedResource = RESOURCE, points: int = 1) -> ResourceMetrics:
    """One counter of one resource."""
    found = [NumberDataPoint({"n": n}, 1, 2, value) for n in range(points)]
    metric = Metric("training.steps", "", "{step}", Sum(found, AggregationTemporality.CUMULATIVE, is_monotonic=True))
    return ResourceMetrics(resource, [ScopeMetrics(SCOPE, [metric], "")], "")


def record(body: str) -> ReadableLogRecord:
    """A log record."""
    found = LogRecord(
        timestamp=1, observed_timestamp=2, context=Context(), severity_number=SeverityNumber.ERROR, body=body
    )
    return ReadableLogRecord(found, RESOURCE, SCOPE)


@pytest.fixture
def said() -> list[str]:
    """What an outlet has said."""
    return []


@pytest.fixture
def open_outlet(tmp_path: Path, said: list[str]) -> Callable[..., Outlet]:
    """Makes an outlet over this test's folder."""

    def make(environ: dict[str, str]) -> Outlet:
        return Outlet(tmp_path, 0, environ, SPOOL_BYTES, said.append)

    return make


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_all_signals_arrive(protocol: Protocol, open_outlet: Callable[..., Outlet], said: list[str]) -> None:
    """The whole way, from the SDK's objects to what a collector holds."""
    with OtlpSink(protocol) as sink:
        outlet = open_outlet(sink.environ)
        outlet.put_spans([span(7)])
        outlet.put_metrics(MetricsData([counter(42)]))
        outlet.put_logs([record("died")])

        delivered = outlet.close(timeout_s=20)

        ((span_in,), (metric_in,), (log_in,)) = sink.spans(), sink.metrics(), sink.logs()
    assert delivered
    assert said == []
    assert span_in.item.name == "span 7"
    assert span_in.item.trace_id.hex() == f"{8:032x}"
    assert span_in.resource == {"service.name": "trainspan", "training.rank": 0}
    assert span_in.scope == "trainspan"
    assert metric_in.item.sum.data_points[0].as_int == 42
    assert log_in.item.body.string_value == "died"
    assert outlet.health() == {signal: SignalHealth(delivered=1) for signal in ("traces", "metrics", "logs")}


def test_what_is_put_goes_out_at_once(open_outlet: Callable[..., Outlet]) -> None:
    """A long run is watched while it runs, not afterwards."""
    with OtlpSink() as sink:
        outlet = open_outlet(sink.environ)
        outlet.put_spans([span(0)])
        first = sink.wait_for(lambda sink: len(sink.spans()) == 1, timeout_s=20)
        outlet.put_spans([span(1)])
        second = sink.wait_for(lambda sink: len(sink.spans()) == 2, timeout_s=20)
        outlet.close(timeout_s=20)

    assert first
    assert second


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_headers_and_compression_are_used(protocol: Protocol, open_outlet: Callable[..., Outlet]) -> None:
    """Without its token a vendor takes nothing, and without gzip a cluster's uplink is full."""
    with OtlpSink(protocol) as sink:
        environ = {"OTEL_EXPORTER_OTLP_HEADERS": "x-token=a%20b", "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip"}
        outlet = open_outlet({**sink.environ, **environ})
        outlet.put_spans([span(number) for number in range(100)])

        outlet.close(timeout_s=20)

        (request,) = sink.received("traces")
    assert request.headers["x-token"] == "a b"
    # grpc keeps its own encoding to itself.
    assert protocol == "grpc" or request.headers["content-encoding"] == "gzip"
    assert len(request.request.resource_spans[0].scope_spans[0].spans) == 100


def test_signals_can_go_to_different_endpoints(open_outlet: Callable[..., Outlet]) -> None:
    """Metrics go to Prometheus and traces to Jaeger, over whatever each of them speaks."""
    with OtlpSink() as for_all, OtlpSink("grpc") as for_traces:
        environ = {
            **for_all.environ,
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": for_traces.endpoint,
            "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "grpc",
        }
        outlet = open_outlet(environ)
        outlet.put_spans([span(0)])
        outlet.put_metrics(MetricsData([counter(1)]))

        outlet.close(timeout_s=20)

        signals = [[one.signal for one in sink.received()] for sink in (for_all, for_traces)]
    assert signals == [["metrics"], ["traces"]]


def test_large_batches_are_split_in_order(open_outlet: Callable[..., Outlet]) -> None:
    """A request larger than 4 MiB is refused by every gRPC server, for ever."""
    others = [HashedResource({"training.rank": rank}) for rank in range(3)]
    with OtlpSink() as sink:
        outlet = open_outlet(sink.environ)
        outlet.put_spans([span(number) for number in range(1100)])
        outlet.put_metrics(MetricsData([counter(1, other, BATCH_POINTS // 2) for other in others]))

        outlet.close(timeout_s=20)

        names = [one.item.name for one in sink.spans()]
        requests = {signal: len(sink.received(signal)) for signal in ("traces", "metrics")}
        ranks = [one.resource["training.rank"] for one in sink.metrics()]
    assert names == [f"span {number}" for number in range(1100)]
    assert requests == {"traces": 3, "metrics": 2}
    assert ranks == [0, 1, 2]


def test_without_endpoint_the_files_are_the_output(
    tmp_path: Path, open_outlet: Callable[..., Outlet], said: list[str]
) -> None:
    """The embedded default: one line per batch, as the Collector and Jaeger read it."""
    outlet = open_outlet({})
    outlet.put_spans([span(0), span(1)])
    outlet.put_metrics(MetricsData([counter(1)]))
    outlet.put_logs([record("x")])

    done = outlet.close(timeout_s=0)

    contents = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert done
    assert said == []
    assert contents == {
        "traces.jsonl": encode("traces", [span(0), span(1)]) + b"\n",
        "metrics.jsonl": encode("metrics", MetricsData([counter(1)])) + b"\n",
        "logs.jsonl": encode("logs", [record("x")]) + b"\n",
    }


def test_without_endpoint_no_protocol_is_loaded(tmp_path: Path) -> None:
    """Each costs the relay 100 to 200 ms at its start, and grpc its own threads."""
    program = (
        "import sys, pathlib; from trainspan.relay.otlp.outlet import Outlet;"
        f"Outlet(pathlib.Path({str(tmp_path)!r}), 0, {{}}, 1 << 20, print).close(1);"
        "print([name for name in ('grpc', 'requests', 'torch') if name in sys.modules])"
    )

    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert ran.stdout == "[]\n"


@pytest.mark.parametrize(
    ("environ", "files"),
    [
        ({"OTEL_SDK_DISABLED": "true"}, []),
        ({"OTEL_TRACES_EXPORTER": "none"}, ["logs.jsonl", "metrics.jsonl"]),
    ],
)
def test_what_is_switched_off_leaves_nothing(
    tmp_path: Path, open_outlet: Callable[..., Outlet], environ: dict[str, str], files: list[str]
) -> None:
    """Neither on the network nor on the disk, and without an error."""
    with OtlpSink() as sink:
        outlet = open_outlet({**sink.environ, **environ})
        outlet.put_spans([span(0)])

        done = outlet.close(timeout_s=20)

        attempts = sink.attempts
    assert done
    assert attempts == 0
    assert sorted(path.name for path in tmp_path.glob("*.jsonl")) == files


def test_console_is_an_endpoint(open_outlet: Callable[..., Outlet], capfd: pytest.CaptureFixture[str]) -> None:
    """The quickest look at what would be sent."""
    outlet = open_outlet({"OTEL_TRACES_EXPORTER": "console"})
    outlet.put_spans([span(3)])

    outlet.close(timeout_s=20)

    assert json.loads(capfd.readouterr().out)["name"] == "span 3"


def test_of_a_list_of_exporters_otlp_is_served_and_the_rest_is_said(
    open_outlet: Callable[..., Outlet], said: list[str]
) -> None:
    """The list is the specification's; to serve none of it would be to lose what was asked for."""
    with OtlpSink() as sink:
        outlet = open_outlet({**sink.environ, "OTEL_TRACES_EXPORTER": "otlp,console"})
        outlet.put_spans([span(0)])

        outlet.close(timeout_s=20)

        arrived = len(sink.spans())
    assert arrived == 1
    assert said == [
        f"console of OTEL_TRACES_EXPORTER is not served by the relay: it takes traces to one place, {sink.endpoint}"
    ]


def test_variable_that_is_not_understood_keeps_everything(
    tmp_path: Path, open_outlet: Callable[..., Outlet], said: list[str]
) -> None:
    """A relay that ends over a typo would take the telemetry with it; so it can be replayed."""
    outlet = open_outlet({"OTEL_EXPORTER_OTLP_ENDPOINT": "collector:4318"})
    outlet.put_spans([span(0)])

    outlet.close(timeout_s=20)

    (message,) = said
    assert message.startswith("OTEL_EXPORTER_OTLP_ENDPOINT='collector:4318' is not understood")
    assert (tmp_path / "traces.jsonl").stat().st_size > 0


def test_what_cannot_be_encoded_is_counted(
    open_outlet: Callable[..., Outlet], said: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """A name from a user's code must not end the relay, and no traceback of the SDK's fill its log."""
    bad_name = span(0)
    bad_name._name = "\ud800"
    bad_value = span(1)
    bad_value._attributes = {"x": object(), "y": 1}  # type: ignore[dict-item]  # wrong on purpose
    outlet = open_outlet({})
    outlet.put_spans([bad_name])
    outlet.put_spans([bad_value])

    outlet.close(timeout_s=0)

    assert outlet.health()["traces"].dropped == 1
    assert len(said) == 2
    assert caplog.records == []


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_users_random_stream_is_not_drawn_from(protocol: Protocol, open_outlet: Callable[..., Outlet]) -> None:
    """In thread mode the exporters' retries run in the training process: a seeded run would no longer repeat."""
    random.seed(5)
    before = random.getstate()
    with OtlpSink(protocol) as sink:
        port = sink.port
    environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}", "OTEL_EXPORTER_OTLP_PROTOCOL": protocol}
    outlet = open_outlet({**environ, "OTEL_EXPORTER_OTLP_TIMEOUT": "0.3"})
    outlet.put_spans([span(0)])

    outlet.close(timeout_s=0.8)

    assert outlet.health()["traces"].failures >= 1
    assert random.getstate() == before


def test_files_are_what_was_sent(tmp_path: Path, open_outlet: Callable[..., Outlet]) -> None:
    """The run folder and the backend must tell the same story."""
    with OtlpSink() as sink:
        outlet = open_outlet(sink.environ)
        outlet.put_spans([span(0), span(1)])
        outlet.close(timeout_s=20)

        (request,) = sink.received("traces")

    kept: Any = decode("traces", (tmp_path / "traces.jsonl").read_bytes())
    assert [one.name for one in kept] == [one.item.name for one in sink.spans()]
    assert request.path == "/v1/traces"
