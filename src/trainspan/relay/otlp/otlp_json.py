"""OTLP in JSON, one export request per line: the format of every file in the run folder.

The Collector's `otlp_json_file` receiver and Jaeger's upload read it. It is protobuf's JSON mapping, save that trace
and span ids are hexadecimal and enums are numbers.

Source: https://opentelemetry.io/docs/specs/otel/protocol/file-exporter/ and
https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding
"""

import json
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from google.protobuf.json_format import MessageToDict
from opentelemetry.exporter.otlp.proto.common._log_encoder import encode_logs
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk._logs import ReadableLogRecord
from opentelemetry.sdk.metrics.export import MetricsData
from opentelemetry.sdk.trace import ReadableSpan

from trainspan.relay.otlp.destinations import Signal
from trainspan.relay.otlp.sdk_objects import logs_from, metrics_from, spans_from

Batch: TypeAlias = Sequence[ReadableSpan] | MetricsData | Sequence[ReadableLogRecord]
Item: TypeAlias = dict[str, Any]

_POINT_KINDS = ("gauge", "sum", "histogram", "exponentialHistogram")


class Unreadable(NamedTuple):
    """Why a line is no export request of ours."""

    reason: str


def encode(signal: Signal, batch: Any) -> bytes:
    """The line of one export request, without its newline.

    Args:
        signal: what the batch holds.
        batch: spans, `MetricsData` or log records, as `signal` says.

    Raises:
        Exception: whatever the SDK's encoder raises for objects that have no place in OTLP; its errors have no common
            type.

    Cost: 45 µs a span with three attributes.
    """
    codec = _CODECS[signal]
    request = MessageToDict(codec.encode(batch), use_integers_for_enums=True)
    for item in codec.items_with_ids(request):
        for field in ("traceId", "spanId", "parentSpanId"):
            if field in item:
                item[field] = b64decode(item[field]).hex()
    return json.dumps(request, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def decode(signal: Signal, line: bytes) -> Any:
    """The SDK's objects that `line` was made of, or `Unreadable`; encoded again they give the same bytes.

    Args:
        signal: what the line should hold.
        line: one line of a journal; torn, foreign and hostile ones are told, not raised.

    Cost: 15 µs a span with three attributes; by way of protobuf it would be 70.
    """
    try:
        return _CODECS[signal].decode(json.loads(line))
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        return Unreadable(f"{type(error).__name__}: {error!s:.200}")


def _levels(request: Item, *fields: str) -> Iterator[Item]:
    """Every innermost item, following list after list: `resourceSpans`, `scopeSpans`, `spans`."""
    items = [request]
    for field in fields:
        items = [inner for item in items for inner in item.get(field, ())]
    yield from items


def _spans_and_links(request: Item) -> Iterator[Item]:
    for span in _levels(request, "resourceSpans", "scopeSpans", "spans"):
        yield span
        yield from span.get("links", ())


def _exemplars(request: Item) -> Iterator[Item]:
    for metric in _levels(request, "resourceMetrics", "scopeMetrics", "metrics"):
        for kind in _POINT_KINDS:
            yield from _levels(metric.get(kind, {}), "dataPoints", "exemplars")


def _log_records(request: Item) -> Iterator[Item]:
    yield from _levels(request, "resourceLogs", "scopeLogs", "logRecords")


class _Codec(NamedTuple):
    encode: Callable[[Any], Any]
    items_with_ids: Callable[[Item], Iterator[Item]]
    decode: Callable[[Item], Batch]


_CODECS: Mapping[Signal, _Codec] = {
    "traces": _Codec(encode_spans, _spans_and_links, spans_from),
    "metrics": _Codec(encode_metrics, _exemplars, metrics_from),
    "logs": _Codec(encode_logs, _log_records, logs_from),
}
