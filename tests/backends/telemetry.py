"""Telemetry of one rank, as the OpenTelemetry SDK sends it."""

import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import requests
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import NonRecordingSpan, StatusCode, Tracer, set_span_in_context
from opentelemetry.util.types import AnyValue

from trainspan import names

TIMEOUT_S = 3.0


def resource(run: str) -> Resource:
    """Rank 3 of `run`."""
    rank: dict[str, AnyValue] = {names.RUN_ID: run, names.ATTEMPT: 0, names.RANK: 3, names.WORLD_SIZE: 4}
    return Resource.create({"service.name": "training", "service.instance.id": f"{run}/3", **rank})


def new_run() -> str:
    """An id that no other test uses."""
    return f"run-{secrets.token_hex(4)}"


def step_spans(
    run: str, reason: str, *, failed: bool = False, beside: ReadableSpan | None = None
) -> tuple[ReadableSpan, ...]:
    """A finished step of rank 3: its forward phase, then the step around it.

    Args:
        run: the run's id.
        reason: why the step has a trace.
        failed: whether the step has status ERROR.
        beside: a span of the trace to which the step belongs; a trace of its own if None.
    """
    parent = None if beside is None else set_span_in_context(NonRecordingSpan(beside.context))
    attributes: dict[str, AnyValue] = {names.STEP: 7, names.SAMPLED_BECAUSE: reason}
    with _recording(run) as (tracer, finished):
        with tracer.start_as_current_span(names.SPAN_RANK_STEP, parent, attributes=attributes) as step:
            with tracer.start_as_current_span(names.Phase.FORWARD.span):
                pass
            if failed:
                step.set_status(StatusCode.ERROR)
        return finished.get_finished_spans()


def attempt_spans(run: str) -> tuple[ReadableSpan, ...]:
    """The finished root of an attempt's trace."""
    with _recording(run) as (tracer, finished):
        tracer.start_span(names.SPAN_ATTEMPT).end()
        return finished.get_finished_spans()


@contextmanager
def _recording(run: str) -> Iterator[tuple[Tracer, InMemorySpanExporter]]:
    finished = InMemorySpanExporter()
    provider = TracerProvider(resource=resource(run), shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(finished))
    yield provider.get_tracer(names.SCOPE), finished
    provider.shutdown()


def send_spans(
    endpoint: str, spans: tuple[ReadableSpan, ...], *, tls: Path | None = None, client: str = "client"
) -> bool:
    """Whether the endpoint took them. `tls`: the folder of certificates; `client`: which one to show, or none."""
    session = requests.Session()
    # Else REQUESTS_CA_BUNDLE, where it is set, takes the place of `certificate_file`.
    session.trust_env = False
    shown = tls / client if tls is not None and client else None
    exporter = OTLPSpanExporter(
        endpoint=f"{endpoint}/v1/traces",
        timeout=TIMEOUT_S,
        session=session,
        certificate_file=None if tls is None else str(tls / "ca.crt"),
        client_certificate_file=None if shown is None else f"{shown}.crt",
        client_key_file=None if shown is None else f"{shown}.key",
    )
    try:
        return exporter.export(spans) is SpanExportResult.SUCCESS
    finally:
        exporter.shutdown()  # type: ignore[no-untyped-call]  # the exporter has no annotation there


def send_metrics(endpoint: str, run: str) -> None:
    """One export of rank 3: 12.5 s productive and 2 s waiting for input, a step of 0.25 s."""
    reader = PeriodicExportingMetricReader(OTLPMetricExporter(endpoint=f"{endpoint}/v1/metrics", timeout=TIMEOUT_S))
    provider = MeterProvider([reader], resource=resource(run), shutdown_on_exit=False)
    meter = provider.get_meter(names.SCOPE)
    time_spent = meter.create_counter(names.TIME.name, names.TIME.unit)
    time_spent.add(12.5, {names.STATE: "productive"})
    time_spent.add(2.0, {names.STATE: "data_wait"})
    meter.create_gauge(names.GOODPUT.name, names.GOODPUT.unit).set(0.86)
    meter.create_histogram(
        names.STEP_DURATION.name, names.STEP_DURATION.unit, explicit_bucket_boundaries_advisory=[0.1, 0.5, 1.0]
    ).record(0.25)
    # Prometheus counts in milliseconds: a counter must not begin in the one in which it is exported.
    time.sleep(0.01)
    provider.shutdown()
