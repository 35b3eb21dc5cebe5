"""Numbers as a metric of the SDK: a sum where they are counted, a gauge where they are measured."""

from collections.abc import Sequence
from typing import Final

from opentelemetry.sdk.metrics.export import AggregationTemporality, Gauge, Metric, NumberDataPoint, Sum

from trainspan import names

CUMULATIVE: Final = AggregationTemporality.CUMULATIVE


def number_metric(metric: names.Metric, points: Sequence[NumberDataPoint]) -> list[Metric]:
    """`metric`, which is no histogram, with these points; nothing without points."""
    if not points:
        return []
    if metric.instrument == "gauge":
        held: Gauge | Sum = Gauge(points)
    else:
        held = Sum(points, CUMULATIVE, is_monotonic=metric.instrument == "counter")
    return [Metric(metric.name, metric.description, metric.unit, held)]
