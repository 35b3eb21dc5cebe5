"""What is written to disk is OTLP JSON, and becomes the same objects again."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.attributes import BoundedAttributes
from opentelemetry.sdk._logs import ReadableLogRecord
from opentelemetry.sdk.metrics import Exemplar
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Buckets,
    ExponentialHistogram,
    ExponentialHistogramDataPoint,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util import BoundedList
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState

from trainspan.relay.otlp.destinations import SIGNALS, Signal
from trainspan.relay.otlp.json_values import MAX_DEPTH
from trainspan.relay.otlp.otlp_json import Unreadable, decode, encode

SCOPE = InstrumentationScope("trainspan", "0.1.0")
SAMPLED = TraceFlags(TraceFlags.SAMPLED)

words = st.text(max_size=12)
keys = st.text(min_size=1, max_size=12)
times = st.integers(0, 2**64 - 1)
counts = st.integers(0, 2**64 - 1)
floats = st.floats(width=64)
scalars = words | st.booleans() | st.integers(-(2**63), 2**63 - 1) | floats | st.binary(max_size=8) | st.none()
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3))
attributes = st.dictionaries(keys, values, max_size=4)
trace_ids = st.integers(1, 2**128 - 1)
span_ids = st.integers(1, 2**64 - 1)


@st.composite
def bounded_attributes(draw: st.DrawFn) -> BoundedAttributes:
    """Attributes of which the SDK dropped some."""
    kept = BoundedAttributes(attributes=draw(st.dictionaries(keys, st.integers(0, 9), max_size=2)))
    kept.dropped = draw(st.integers(0, 2**32 - 1))
    return kept


# Apart by name alone: the SDK's encoder groups equal resources and scopes, and so do we.
resources = st.builds(
    lambda name, more: Resource({**more, "service.name": name}, f"https://{name}"),
    st.sampled_from(["a", "b"]),
    st.just({"host": "h"}),
)
scopes = st.builds(
    lambda name: InstrumentationScope(name, "1", f"https://{name}", {"of": name}), st.sampled_from(["s", "t"])
)
contexts = st.builds(SpanContext, trace_ids, span_ids, st.booleans(), st.just(SAMPLED))
links = st.lists(st.builds(Link, contexts, attributes | bounded_attributes()), max_size=2)
events = st.lists(st.builds(Event, words, attributes | bounded_attributes(), times), max_size=2)


@st.composite
def dropped_from(draw: st.DrawFn, items: st.SearchStrategy[list[Any]]) -> Sequence[Any]:
    """A list of which the SDK dropped some."""
    kept = BoundedList.from_seq(None, draw(items))
    kept.dropped = draw(st.integers(0, 2**32 - 1))
    return kept


@st.composite
def spans(draw: st.DrawFn) -> ReadableSpan:
    """Any finished span."""
    trace_id = draw(trace_ids)
    state = TraceState([("vendor", "1"), ("other", "x")]) if draw(st.booleans()) else None
    parent = draw(st.none() | st.builds(SpanContext, st.just(trace_id), span_ids, st.booleans(), st.just(SAMPLED)))
    status = draw(
        st.sampled_from([Status(), Status(StatusCode.OK), Status(StatusCode.ERROR, "lost"), Status(StatusCode.ERROR)])
    )
    return ReadableSpan(
        name=draw(words),
        context=SpanContext(trace_id, draw(span_ids), False, SAMPLED, state),
        parent=parent,
        resource=draw(resources),
        attributes=draw(attributes | bounded_attributes()),
        events=draw(events | dropped_from(events)),
        links=draw(links | dropped_from(links)),
        kind=draw(st.sampled_from(SpanKind)),
        status=status,
        start_time=draw(times),
        end_time=draw(times),
        instrumentation_scope=draw(scopes | st.none()),
    )


@st.composite
def log_records(draw: st.DrawFn) -> ReadableLogRecord:
    """Any log record."""
    record = LogRecord(
        timestamp=draw(times | st.none()),
        observed_timestamp=draw(times),
        severity_text=draw(words | st.none()),
        severity_number=draw(st.sampled_from(SeverityNumber) | st.none()),
        body=draw(values),
        attributes=draw(attributes | bounded_attributes()),
        event_name=draw(words | st.none()),
    )
    record.trace_id = draw(trace_ids | st.just(0))
    record.span_id = draw(span_ids | st.just(0))
    record.trace_flags = TraceFlags(draw(st.integers(0, 255)))
    return ReadableLogRecord(record, draw(resources), draw(scopes | st.none()))


measured = floats | st.integers(-(2**63), 2**63 - 1)
exemplars = st.lists(
    st.builds(Exemplar, attributes, measured, times)
    | st.builds(Exemplar, attributes, measured, times, span_ids, trace_ids),
    max_size=2,
)
temporalities = st.sampled_from([AggregationTemporality.DELTA, AggregationTemporality.CUMULATIVE])
number_points = st.lists(st.builds(NumberDataPoint, attributes, times, times, measured, exemplars), max_size=2)
bucket_lists = st.lists(counts, max_size=4)
int32s = st.integers(-(2**31), 2**31 - 1)
histogram_points = st.builds(
    HistogramDataPoint,
    attributes,
    times,
    times,
    counts,
    floats | st.none(),
    bucket_lists,
    st.lists(floats, max_size=3),
    floats | st.none(),
    floats | st.none(),
    exemplars,
)
buckets = st.builds(lambda offset, found: Buckets(offset if found else 0, found), int32s, bucket_lists)
exponential_points = st.builds(
    ExponentialHistogramDataPoint,
    attributes,
    times,
    times,
    counts,
    floats | st.none(),
    int32s,
    counts,
    buckets,
    buckets,
    st.integers(0, 2**32 - 1),
    floats | st.none(),
    floats | st.none(),
    exemplars,
)
contents = (
    st.builds(Gauge, number_points)
    | st.builds(Sum, number_points, temporalities, st.booleans())
    | st.builds(Histogram, st.lists(histogram_points, max_size=2), temporalities)
    | st.builds(ExponentialHistogram, st.lists(exponential_points, max_size=2), temporalities)
)
metrics = st.lists(st.builds(Metric, words, words | st.none(), words | st.none(), contents), max_size=3)


@st.composite
def metrics_data(draw: st.DrawFn) -> MetricsData:
    """Any collection of metrics; a resource and a scope occur once, as the SDK has it."""
    scope = InstrumentationScope("s", None, "https://s")
    return MetricsData(
        [
            ResourceMetrics(
                Resource({"service.name": name}, "https://r"), [ScopeMetrics(scope, draw(metrics), "https://s")], ""
            )
            for name in draw(st.lists(st.sampled_from(["a", "b"]), min_size=1, unique=True))
        ]
    )


BATCHES: dict[Signal, st.SearchStrategy[Any]] = {
    "traces": st.lists(spans(), min_size=1, max_size=3),
    "metrics": metrics_data(),
    "logs": st.lists(log_records(), min_size=1, max_size=3),
}


@pytest.mark.parametrize("signal", SIGNALS)
@settings(max_examples=30)
@given(choice=st.data())
def test_round_trip_is_exact(signal: Signal, choice: st.DataObject) -> None:
    """What is delivered after an outage must be what would have been delivered without it."""
    line = encode(signal, choice.draw(BATCHES[signal]))

    again = encode(signal, decode(signal, line))

    assert again == line
    assert b"\n" not in line


def span(**fields: Any) -> ReadableSpan:
    """A span with what the reader of a test need not see."""
    context = SpanContext(0x0AF7651916CD43DD8448EB211C80319C, 0x00F067AA0BA902B7, False, SAMPLED)
    return ReadableSpan(
        "training.forward",
        context,
        resource=Resource({"service.name": "trainspan"}),
        instrumentation_scope=SCOPE,
        start_time=1_700_000_000_000_000_000,
        end_time=1_700_000_000_250_000_000,
        **fields,
    )


def test_line_is_otlp_json() -> None:
    """The Collector and Jaeger read these files; base64 ids or enum names would be refused or misread."""
    parent = SpanContext(0x0AF7651916CD43DD8448EB211C80319C, 0x00F067AA0BA902B8, True, SAMPLED)
    peer = SpanContext(0x1AF7651916CD43DD8448EB211C80319C, 0x10F067AA0BA902B8, True, SAMPLED)

    line = encode("traces", [span(parent=parent, attributes={"training.step": 7}, links=[Link(peer)])])

    assert json.loads(line) == {
        "resourceSpans": [
            {
                "resource": {"attributes": [{"key": "service.name", "value": {"stringValue": "trainspan"}}]},
                "scopeSpans": [
                    {
                        "scope": {"name": "trainspan", "version": "0.1.0"},
                        "spans": [
                            {
                                "traceId": "0af7651916cd43dd8448eb211c80319c",
                                "spanId": "00f067aa0ba902b7",
                                "parentSpanId": "00f067aa0ba902b8",
                                "flags": 0x300,
                                "name": "training.forward",
                                "kind": 1,
                                "startTimeUnixNano": "1700000000000000000",
                                "endTimeUnixNano": "1700000000250000000",
                                "attributes": [{"key": "training.step", "value": {"intValue": "7"}}],
                                "links": [
                                    {
                                        "traceId": "1af7651916cd43dd8448eb211c80319c",
                                        "spanId": "10f067aa0ba902b8",
                                        "flags": 0x300,
                                    }
                                ],
                                "status": {},
                            }
                        ],
                    }
                ],
            }
        ]
    }


@given(line=st.binary(max_size=200))
def test_foreign_bytes_are_told_not_raised(line: bytes) -> None:
    """A disk that lies must not stop the delivery of what is behind the damage."""
    decoded = decode("traces", line)

    assert isinstance(decoded, Unreadable)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
)


def _places(item: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) below `item`."""
    pairs = list(item.items() if isinstance(item, dict) else enumerate(item) if isinstance(item, list) else ())
    found = [(item, key) for key, _ in pairs]
    for _, inner in pairs:
        found += _places(inner)
    return found


@pytest.mark.parametrize("signal", SIGNALS)
@settings(max_examples=30)
@given(choice=st.data())
def test_what_is_decoded_can_be_sent(signal: Signal, choice: st.DataObject) -> None:
    """A damaged value that got through would be refused by the exporter, again and again, and block the spool."""
    request = json.loads(encode(signal, choice.draw(BATCHES[signal])))
    container, key = choice.draw(st.sampled_from([*_places(request), (request, "x")]))
    container[key] = choice.draw(json_values)
    line = json.dumps(request).encode()

    decoded = decode(signal, line)

    if not isinstance(decoded, Unreadable):
        assert decode(signal, encode(signal, decoded)) is not None


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"null",
        b"[]",
        b'{"resourceSpans":',
        b'{"resourceSpans":3}',
        b'{"resourceMetrics":[]}',
        b"\0" * 64,
        b"[" * 100_000,
        b'{"resourceSpans":[{"scopeSpans":[{"scope":{"name":"\\ud800"},"spans":[{"traceId":"%032x","spanId":"%016x"}]}]}]}'
        % (1, 1),
        b'{"resourceSpans":[{"scopeSpans":[{"spans":[{"traceId":"00","spanId":"00f067aa0ba902b7"}]}]}]}',
    ],
)
def test_hostile_line_is_unreadable(line: bytes) -> None:
    """Each of these was, or could be, the end of a file after a crash or a full disk."""
    decoded = decode("traces", line)

    assert isinstance(decoded, Unreadable)
    assert decoded.reason


def test_number_beyond_a_float_is_unreadable() -> None:
    """JSON knows no bound, and one that raised would stop the delivery of all that is behind it."""
    point = b'{"timeUnixNano":"1","asDouble":%s}' % (b"9" * 400)
    line = b'{"resourceMetrics":[{"scopeMetrics":[{"metrics":[{"name":"x","gauge":{"dataPoints":[%s]}}]}]}]}' % point

    decoded = decode("metrics", line)

    assert isinstance(decoded, Unreadable)


def test_nesting_beyond_protobuf_is_unreadable() -> None:
    """Protobuf refuses to send what is nested too deep, so it must not reach an exporter."""
    deep: Any = 1
    for _ in range(MAX_DEPTH + 1):
        deep = [deep]
    line = encode("traces", [span(attributes={"deep": deep})])

    decoded = decode("traces", line)

    assert isinstance(decoded, Unreadable)
