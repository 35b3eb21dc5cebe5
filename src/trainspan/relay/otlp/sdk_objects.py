"""The SDK's objects out of parsed OTLP JSON, so that the SDK's exporters can send what was written to disk.

Strict, because the input is a file: whatever cannot be sent again raises here (ValueError, TypeError, KeyError,
AttributeError or OverflowError), so that no exporter ever meets it. What it returns is encoded to the bytes it came
from.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.context import Context
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
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState

from trainspan.relay.otlp.json_values import (
    Item,
    attributes_in,
    bounded,
    counts_in,
    id_in,
    measured_in,
    number,
    optional_number_in,
    signed_in,
    text_in,
    truth,
    unsigned_in,
    value_of,
)
from trainspan.relay.otlp.resource import HashedResource

_KINDS = {1: SpanKind.INTERNAL, 2: SpanKind.SERVER, 3: SpanKind.CLIENT, 4: SpanKind.PRODUCER, 5: SpanKind.CONSUMER}
_REMOTE_PARENT = 0x200
_W3C_FLAGS = 0xFF


def spans_from(request: Item) -> list[ReadableSpan]:
    """The spans of one parsed line of `traces.jsonl`."""
    return [
        _span(span, resource, scope)
        for resource, scope, span in _in_scopes(request, "resourceSpans", "scopeSpans", "spans")
    ]


def logs_from(request: Item) -> list[ReadableLogRecord]:
    """The log records of one parsed line of `logs.jsonl`."""
    return [
        ReadableLogRecord(_log_record(record), resource, scope)
        for resource, scope, record in _in_scopes(request, "resourceLogs", "scopeLogs", "logRecords")
    ]


def metrics_from(request: Item) -> MetricsData:
    """The metrics of one parsed line of `metrics.jsonl`."""
    return MetricsData([_resource_metrics(item) for item in request["resourceMetrics"]])


def _in_scopes(request: Item, of_resource: str, of_scope: str, field: str) -> Iterator[tuple[Resource, Any, Item]]:
    for in_resource in request[of_resource]:  # what makes it a line of this signal
        resource = _resource(in_resource)
        for in_scope in in_resource.get(of_scope, ()):
            scope = _scope(in_scope)
            for item in in_scope.get(field, ()):
                yield resource, scope, item


def _resource(item: Item) -> HashedResource:
    return HashedResource(attributes_in(item.get("resource", {})), text_in(item, "schemaUrl"))


def _scope(item: Item) -> InstrumentationScope:
    scope = item.get("scope", {})
    return InstrumentationScope(
        text_in(scope, "name"),
        text_in(scope, "version"),
        text_in(item, "schemaUrl"),
        attributes_in(scope),
    )


def _span(item: Item, resource: Resource, scope: InstrumentationScope) -> ReadableSpan:
    trace_id = id_in(item, "traceId", 16)
    flags = unsigned_in(item, "flags", 32)
    own_flags = TraceFlags(flags & _W3C_FLAGS)
    parent = None
    if item.get("parentSpanId"):
        parent = SpanContext(trace_id, id_in(item, "parentSpanId", 8), bool(flags & _REMOTE_PARENT), own_flags)
    return ReadableSpan(
        name=text_in(item, "name"),
        context=SpanContext(
            trace_id, id_in(item, "spanId", 8), False, own_flags, TraceState.from_header([text_in(item, "traceState")])
        ),
        parent=parent,
        resource=resource,
        attributes=attributes_in(item),
        events=bounded(list(map(_event, item.get("events", ()))), unsigned_in(item, "droppedEventsCount", 32)),
        links=bounded(list(map(_link, item.get("links", ()))), unsigned_in(item, "droppedLinksCount", 32)),
        kind=_KINDS[item.get("kind", 1)],
        status=_status(item.get("status", {})),
        start_time=unsigned_in(item, "startTimeUnixNano"),
        end_time=unsigned_in(item, "endTimeUnixNano"),
        instrumentation_scope=scope,
    )


def _event(item: Item) -> Event:
    return Event(text_in(item, "name"), attributes_in(item), unsigned_in(item, "timeUnixNano"))


def _link(item: Item) -> Link:
    flags = unsigned_in(item, "flags", 32)
    context = SpanContext(
        id_in(item, "traceId", 16),
        id_in(item, "spanId", 8),
        bool(flags & _REMOTE_PARENT),
        TraceFlags(flags & _W3C_FLAGS),
    )
    return Link(context, attributes_in(item))


def _status(item: Item) -> Status:
    code = StatusCode(item.get("code", 0))
    message = text_in(item, "message")
    if message and code is not StatusCode.ERROR:
        raise ValueError(f"a status of {code.name} with a message")
    return Status(code, message or None)


def _log_record(item: Item) -> LogRecord:
    record = LogRecord(
        timestamp=unsigned_in(item, "timeUnixNano"),
        observed_timestamp=unsigned_in(item, "observedTimeUnixNano"),
        context=Context(),
        severity_text=text_in(item, "severityText"),
        severity_number=SeverityNumber(item.get("severityNumber", 0)),
        body=value_of(item.get("body", {})),
        attributes=attributes_in(item),
        event_name=text_in(item, "eventName"),
    )
    # After the fact: the constructor would take what is missing here from whatever span is current.
    record.trace_id = id_in(item, "traceId", 16) if item.get("traceId") else 0
    record.span_id = id_in(item, "spanId", 8) if item.get("spanId") else 0
    record.trace_flags = TraceFlags(unsigned_in(item, "flags", 32))
    return record


def _resource_metrics(item: Item) -> ResourceMetrics:
    schema_url = text_in(item, "schemaUrl")
    return ResourceMetrics(
        _resource(item), [_scope_metrics(scope) for scope in item.get("scopeMetrics", ())], schema_url
    )


def _scope_metrics(item: Item) -> ScopeMetrics:
    return ScopeMetrics(
        _scope(item), [_metric(metric) for metric in item.get("metrics", ())], text_in(item, "schemaUrl")
    )


def _metric(item: Item) -> Metric:
    found = [kind for kind in ("gauge", "sum", "histogram", "exponentialHistogram", "summary") if kind in item]
    if len(found) > 1:
        raise ValueError(f"one metric with {' and '.join(found)}")
    # The SDK writes no kind at all for a metric without points.
    kind = found[0] if found else "gauge"
    contents = item.get(kind, {})
    return Metric(text_in(item, "name"), text_in(item, "description"), text_in(item, "unit"), _CONTENTS[kind](contents))


def _gauge(item: Item) -> Gauge:
    return Gauge([_number_point(point) for point in item.get("dataPoints", ())])


def _sum(item: Item) -> Sum:
    return Sum(
        [_number_point(point) for point in item.get("dataPoints", ())],
        _temporality(item),
        truth(item.get("isMonotonic", False)),
    )


def _histogram(item: Item) -> Histogram:
    return Histogram([_histogram_point(point) for point in item.get("dataPoints", ())], _temporality(item))


def _exponential_histogram(item: Item) -> ExponentialHistogram:
    return ExponentialHistogram([_exponential_point(point) for point in item.get("dataPoints", ())], _temporality(item))


_CONTENTS: Mapping[str, Callable[[Item], Any]] = {
    "gauge": _gauge,
    "sum": _sum,
    "histogram": _histogram,
    "exponentialHistogram": _exponential_histogram,
}


def _temporality(item: Item) -> AggregationTemporality:
    return AggregationTemporality(item.get("aggregationTemporality", 0))


def _number_point(item: Item) -> NumberDataPoint:
    return NumberDataPoint(
        attributes=attributes_in(item),
        start_time_unix_nano=unsigned_in(item, "startTimeUnixNano"),
        time_unix_nano=unsigned_in(item, "timeUnixNano"),
        value=measured_in(item),
        exemplars=_exemplars(item),
    )


def _histogram_point(item: Item) -> HistogramDataPoint:
    return HistogramDataPoint(
        attributes=attributes_in(item),
        start_time_unix_nano=unsigned_in(item, "startTimeUnixNano"),
        time_unix_nano=unsigned_in(item, "timeUnixNano"),
        count=unsigned_in(item, "count"),
        sum=optional_number_in(item, "sum"),
        bucket_counts=counts_in(item),
        explicit_bounds=[number(bound) for bound in item.get("explicitBounds", ())],
        min=optional_number_in(item, "min"),
        max=optional_number_in(item, "max"),
        exemplars=_exemplars(item),
    )


def _exponential_point(item: Item) -> ExponentialHistogramDataPoint:
    return ExponentialHistogramDataPoint(
        attributes=attributes_in(item),
        start_time_unix_nano=unsigned_in(item, "startTimeUnixNano"),
        time_unix_nano=unsigned_in(item, "timeUnixNano"),
        count=unsigned_in(item, "count"),
        sum=optional_number_in(item, "sum"),
        scale=signed_in(item, "scale"),
        zero_count=unsigned_in(item, "zeroCount"),
        positive=_buckets(item.get("positive", {})),
        negative=_buckets(item.get("negative", {})),
        flags=unsigned_in(item, "flags", 32),
        min=optional_number_in(item, "min"),
        max=optional_number_in(item, "max"),
        exemplars=_exemplars(item),
    )


def _buckets(item: Item) -> Buckets:
    return Buckets(signed_in(item, "offset"), counts_in(item))


def _exemplars(item: Item) -> list[Exemplar]:
    return [
        Exemplar(
            filtered_attributes=attributes_in(exemplar, "filteredAttributes"),
            value=measured_in(exemplar),
            time_unix_nano=unsigned_in(exemplar, "timeUnixNano"),
            span_id=id_in(exemplar, "spanId", 8) if "spanId" in exemplar else None,
            trace_id=id_in(exemplar, "traceId", 16) if "traceId" in exemplar else None,
        )
        for exemplar in item.get("exemplars", ())
    ]
