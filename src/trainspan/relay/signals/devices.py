"""What the probes of a node have read of its devices, as metrics: `hw.*`, one point for each device and attribute."""

from collections import defaultdict
from collections.abc import Sequence

from opentelemetry.sdk.metrics.export import Metric, NumberDataPoint

from trainspan import names
from trainspan.relay.probes.probe import Reading
from trainspan.relay.signals.numbers import number_metric


def device_metrics(readings: Sequence[Reading], span: tuple[int, int]) -> list[Metric]:
    """The metrics of `readings`, at most one of each device.

    Args:
        readings: what was read.
        span: Unix ns since when counters count, and now.
    """
    points: dict[names.Metric, list[NumberDataPoint]] = defaultdict(list)
    for reading in readings:
        device = reading.gpu.attributes()
        for sample in reading.samples:
            points[sample.metric].append(NumberDataPoint({**device, **sample.attributes}, *span, sample.value))
    return [made for metric, found in points.items() for made in number_metric(metric, found)]
