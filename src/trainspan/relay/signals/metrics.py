"""The relay's aggregates as the SDK's `MetricsData`: cumulative, in seconds, named in `names.METRICS`.

Series. A histogram of 19 bounds is 22 series, and a rank has one for its steps, one for each of up to 8 phases on each
clock, and those of its collectives and checkpoints: 500. Up to `PER_RANK_HISTOGRAMS` ranks each rank sends its own;
beyond, a node sends one set for its ranks. What tells ranks apart at any size are the other metrics of a rank, about 40
series. docs/scale.md has them counted.
Exponential histograms follow the same rule.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Final, NamedTuple

from opentelemetry.sdk.metrics.export import (
    ExponentialHistogram,
    ExponentialHistogramDataPoint,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
)
from opentelemetry.sdk.resources import Resource

from trainspan import names
from trainspan.relay.goodput.account import Account
from trainspan.relay.probes.probe import Reading
from trainspan.relay.signals.aggregates import (
    NS_PER_S,
    Aggregate,
    ExplicitAggregate,
    ExponentialAggregate,
    Point,
    StepAggregates,
    size_point,
)
from trainspan.relay.signals.contexts import SCOPE
from trainspan.relay.signals.devices import device_metrics
from trainspan.relay.signals.numbers import CUMULATIVE, number_metric
from trainspan.relay.timeline.own_time import OwnTime
from trainspan.relay.timeline.progress import Position
from trainspan.relay.timeline.scalars import Logged
from trainspan.relay.timeline.throughput import Work
from trainspan.settings import Problem

VARIABLE: Final = "OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION"
PER_RANK_HISTOGRAMS: Final = 64
"""World size up to which every rank has its own histograms."""

_KINDS: Final[Mapping[str, Callable[[], Aggregate]]] = {
    "explicit_bucket_histogram": ExplicitAggregate,
    "base2_exponential_bucket_histogram": ExponentialAggregate,
}
_DDP_PARTS: Final = {
    part: f"{part}_ns" for part in ("forward_compute", "backward_compute", "backward_comm", "backward_overlap")
}
_MEMORY_STATES: Final = {"reserved": "reserved_bytes", "active": "active_bytes", "allocated": "allocated_bytes"}


def histogram_kind_from(environ: Mapping[str, str]) -> tuple[Callable[[], Aggregate], list[Problem]]:
    """What makes a histogram's aggregate, as `environ` asks; what is not understood is a problem, and not set."""
    text = environ.get(VARIABLE, "").strip()
    kind = _KINDS.get(text.lower() or "explicit_bucket_histogram")
    if kind is None:
        return ExplicitAggregate, [Problem(VARIABLE, text, f"use {' or '.join(_KINDS)}; going on with the first")]
    return kind, []


def has_own_histograms(world_size: int) -> bool:
    """Whether a rank of a job this large sends its own histograms, or shares those of its node."""
    return world_size <= PER_RANK_HISTOGRAMS


@dataclass(slots=True)
class Health:
    """How the relay fares, counted from its start; the last five by signal: `traces`, `metrics`, `logs`.

    `misuse`: by kind, what the ranks have counted of the API's calls.
    `lag_s`: age of the oldest mark that the last look consumed; None before the first.
    """

    marks: int = 0
    marks_lost: int = 0
    events_dropped: int = 0
    recording_errors: int = 0
    spans_dropped: int = 0
    lag_s: float | None = None
    cpu_s: float = 0.0
    misuse: Mapping[str, int] = field(default_factory=dict)
    exports: Mapping[str, int] = field(default_factory=dict)
    export_failures: Mapping[str, int] = field(default_factory=dict)
    export_rejected: Mapping[str, int] = field(default_factory=dict)
    spool_bytes: Mapping[str, int] = field(default_factory=dict)
    spool_dropped: Mapping[str, int] = field(default_factory=dict)


class RankReading(NamedTuple):
    """What is known of a rank when the metrics are read.

    `resource`: of the rank.
    `start_unix_ns`: when its process began.
    `steps`: completed; `last_step`: number of the last, which ended at `last_step_end_ns`, both None before it.
    `now_ns`: monotonic time of the reading on the rank's host; None once the process has closed its recording, because
    the age of its last step means nothing then.
    `aggregates`: None if the rank shares those of its node.
    `allocator`: the counters of torch's allocator on the device, by the names the rank gives them; empty: not known.
    `goodput`: what the engine says of the rank, by window; `deviation_s`: of its newest steps from the ideal one.
    `checkpoint_bytes`: of the largest checkpoint it saved; None before one.
    `skipped`: steps whose optimizer a gradient scaler skipped.
    `compiled`: what the compiler has counted; `reducer`: what DDP's reducer has measured; empty: nothing.
    `energy_j`: of its GPU while it trained, by phase; empty: not known.
    `carbon_g`: what that amounts to; None: no estimate is wished, or there is no energy.
    `own`: the time of its steps in which it waited for no other rank.
    `work`: what its steps worked through; `position`: of the last, as its framework counts; `logged`: by the script.
    `stalled_ns`: for how long it has given no sign, by the phase it stands in; empty: it is not stalled.
    `since_unix_ns`: since when `aggregates`, `own`, `skipped` and the energy count, where this relay was not the first;
    None: since `start_unix_ns`, as everything else.
    """

    resource: Resource
    start_unix_ns: int
    steps: int
    last_step: int | None
    last_step_end_ns: int | None
    account: Account
    now_ns: int | None
    aggregates: StepAggregates | None
    allocator: Mapping[str, int] = {}
    goodput: Mapping[str, float] = {}
    deviation_s: float | None = None
    checkpoint_bytes: int | None = None
    skipped: int = 0
    compiled: Mapping[str, int] = {}
    reducer: Mapping[str, int] = {}
    energy_j: Mapping[str, float] = {}
    carbon_g: float | None = None
    own: OwnTime = OwnTime()
    work: Work = Work()
    position: Position = Position()
    logged: Logged = Logged()
    stalled_ns: Mapping[str, int] = {}
    since_unix_ns: int | None = None


class SharedReading(NamedTuple):
    """The distributions that the ranks of a node share in one attempt. `start_unix_ns`: when it was first seen."""

    resource: Resource
    start_unix_ns: int
    aggregates: StepAggregates


class NodeReading(NamedTuple):
    """What is known of the node.

    `start_unix_ns`: when the relay began.
    `restarts`: of the run so far, by reason; empty where another node tells them.
    `gpus`: what was read of those this relay speaks for.
    `launch_s`: time that the node's launcher took, by what it did; `launch_metrics`: what it says itself, by name.
    """

    resource: Resource
    start_unix_ns: int
    health: Health
    restarts: Mapping[str, int] = {}
    gpus: Sequence[Reading] = ()
    launch_s: Mapping[str, float] = {}
    launch_metrics: Mapping[str, float] = {}


def metrics_of(
    ranks: Sequence[RankReading],
    node: NodeReading,
    time_unix_ns: int,
    denied: Sequence[str] = (),
    shared: Sequence[SharedReading] = (),
) -> MetricsData:
    """Everything this node has to say at `time_unix_ns`, but for the metrics whose names are `denied` (`*`: anything).

    Args:
        ranks: each of them.
        node: beside them.
        time_unix_ns: now.
        denied: what is not to be sent.
        shared: by attempt, where the ranks have no distributions of their own.

    Cost: 0.1 ms a rank.
    """
    told = [
        *((rank.resource, rank_metrics(rank, time_unix_ns)) for rank in ranks),
        *((one.resource, _histograms(one.aggregates, (one.start_unix_ns, time_unix_ns))) for one in shared),
        (node.resource, node_metrics(node, time_unix_ns)),
    ]
    # The SDK's encoder keeps the last of those with the same resource: the node's relay and what its ranks share.
    allowed: dict[Resource, list[Metric]] = {}
    for resource, metrics in told:
        allowed.setdefault(resource, []).extend(_without(denied, metrics))
    return MetricsData([_under(resource, metrics) for resource, metrics in allowed.items() if metrics])


def _without(denied: Sequence[str], metrics: list[Metric]) -> list[Metric]:
    if not denied:
        return metrics
    return [metric for metric in metrics if not any(fnmatchcase(metric.name, pattern) for pattern in denied)]


def rank_metrics(rank: RankReading, time_unix_ns: int) -> list[Metric]:
    """The metrics of one rank."""
    span = (rank.start_unix_ns, time_unix_ns)
    since = (rank.start_unix_ns if rank.since_unix_ns is None else rank.since_unix_ns, time_unix_ns)
    age_s = None
    if rank.now_ns is not None and rank.last_step_end_ns is not None:
        age_s = max(0, rank.now_ns - rank.last_step_end_ns) / NS_PER_S
    states_s = {state: time_ns / NS_PER_S for state, time_ns in rank.account.states().items()}
    return [
        *_histograms(rank.aggregates, since),
        *_own_time(rank.own, since),
        *_numbers(names.STEPS, {None: rank.steps}, span),
        *_numbers(names.TIME, states_s, span),
        *_numbers(names.GOODPUT, rank.goodput, span),
        *_numbers(names.STEP_DEVIATION, {None: rank.deviation_s}, span),
        *_numbers(names.PROGRESS_STEP, {None: rank.last_step}, span),
        *_numbers(names.LAST_STEP_AGE, {None: age_s}, span),
        *_numbers(names.STALL_AGE, {phase: time_ns / NS_PER_S for phase, time_ns in rank.stalled_ns.items()}, span),
        *_numbers(names.CHECKPOINT_SIZE, {None: rank.checkpoint_bytes}, span),
        *_numbers(names.STEPS_SKIPPED, {None: rank.skipped}, since),
        *_compiled(rank.compiled, span),
        *_reducer(rank.reducer, span),
        *_work(rank, span),
        *_allocator(rank.allocator, span),
        *_numbers(names.ENERGY, rank.energy_j, since),
        *_numbers(names.CARBON, {None: rank.carbon_g}, since),
    ]


def node_metrics(node: NodeReading, time_unix_ns: int) -> list[Metric]:
    """The metrics of the node's relay."""
    span = (node.start_unix_ns, time_unix_ns)
    health = node.health
    return [
        *_numbers(names.RESTARTS, node.restarts, span),
        *_numbers(names.LAUNCH_TIME, node.launch_s, span),
        *_numbers(names.LAUNCH_METRIC, node.launch_metrics, span),
        *_numbers(names.MARKS, {None: health.marks}, span),
        *_numbers(names.MARKS_LOST, {None: health.marks_lost}, span),
        *_numbers(names.EVENTS_DROPPED, {None: health.events_dropped}, span),
        *_numbers(names.RECORDING_ERRORS, {None: health.recording_errors}, span),
        *_numbers(names.MISUSE, health.misuse, span),
        *_numbers(names.RELAY_LAG, {None: health.lag_s}, span),
        *_numbers(names.SPANS_DROPPED, {None: health.spans_dropped}, span),
        *_numbers(names.EXPORTS, health.exports, span),
        *_numbers(names.EXPORT_FAILURES, health.export_failures, span),
        *_numbers(names.EXPORT_REJECTED, health.export_rejected, span),
        *_numbers(names.SPOOL_SIZE, health.spool_bytes, span),
        *_numbers(names.SPOOL_DROPPED, health.spool_dropped, span),
        *_numbers(names.RELAY_CPU, {None: health.cpu_s}, span),
        *device_metrics(node.gpus, span),
    ]


def _under(resource: Resource, metrics: list[Metric]) -> ResourceMetrics:
    return ResourceMetrics(resource, [ScopeMetrics(SCOPE, metrics, "")], "")


def _histograms(aggregates: StepAggregates | None, span: tuple[int, int]) -> list[Metric]:
    if aggregates is None:
        return []
    phases = [
        by_phase[phase].point({names.PHASE: phase.wire, names.CLOCK: clock}, *span)
        for clock, by_phase in (("host", aggregates.phases), ("device", aggregates.device))
        for phase in sorted(by_phase, key=names.place_of)
    ]
    checkpoints = [
        aggregate.point(dict(zip(names.CHECKPOINT_DURATION.attributes, key, strict=True)), *span)
        for key, aggregate in aggregates.checkpoints.items()
    ]
    collectives = [
        aggregate.point(dict(zip(names.COLLECTIVE_DURATION.attributes, key, strict=True)), *span)
        for key, aggregate in aggregates.collectives.items()
    ]
    waits = [
        aggregate.point(dict(zip(names.COLLECTIVE_WAIT.attributes, key, strict=True)), *span)
        for key, aggregate in aggregates.waits.items()
    ]
    sizes = [
        size_point(counts, dict(zip(names.COLLECTIVE_SIZE.attributes, key, strict=True)), *span)
        for key, counts in aggregates.sizes.items()
    ]
    return [
        *_histogram(names.COLLECTIVE_DURATION, collectives),
        *_histogram(names.COLLECTIVE_WAIT, waits),
        *_histogram(names.COLLECTIVE_SIZE, sizes),
        *_histogram(names.STEP_DURATION, [aggregates.step.point({}, *span)]),
        *_histogram(names.PHASE_DURATION, phases),
        *_histogram(names.CHECKPOINT_DURATION, checkpoints),
    ]


def _own_time(own: OwnTime, span: tuple[int, int]) -> list[Metric]:
    clocks = {"host": own.host_ns, "device": own.device_ns}
    return [
        *_numbers(names.OWN_TIME, {clock: ns / NS_PER_S for clock, ns in clocks.items() if ns is not None}, span),
        *_numbers(names.STEPS_TIMED, {None: own.timed or None}, span),
    ]


def _compiled(counts: Mapping[str, int], span: tuple[int, int]) -> list[Metric]:
    if not counts:
        return []
    again = counts.get("recompilations", 0)
    kinds = {"first": counts.get("compilations", 0) - again, "recompilation": again}
    return [
        *_numbers(names.COMPILATIONS, kinds, span),
        *_numbers(names.GRAPH_BREAKS, {None: counts.get("graph_breaks")}, span),
    ]


def _reducer(measured: Mapping[str, int], span: tuple[int, int]) -> list[Metric]:
    parts = {part: measured[name] / NS_PER_S for part, name in _DDP_PARTS.items() if name in measured}
    return [
        *_numbers(names.DDP_DURATION, parts, span),
        *_numbers(names.DDP_BUCKET_SIZE, {None: measured.get("bucket_bytes")}, span),
    ]


def _work(rank: RankReading, span: tuple[int, int]) -> list[Metric]:
    """What was worked through, where that has led, and what was logged of it."""
    return [
        *_numbers(names.SAMPLES, {None: rank.work.samples}, span),
        *_numbers(names.TOKENS, {None: rank.work.tokens}, span),
        *_numbers(names.FLOPS, {None: rank.work.flops}, span),
        *_numbers(names.MFU, {None: rank.work.mfu}, span),
        *_numbers(names.PROGRESS_EPOCH, {None: rank.position.epoch}, span),
        *_numbers(names.PROGRESS_GLOBAL_STEP, {None: rank.position.global_step}, span),
        *_numbers(names.SCALAR, rank.logged.values, span),
        *_numbers(names.COUNTER, rank.logged.counters, span),
        *_numbers(names.SCALARS_DROPPED, {None: rank.logged.dropped}, span),
    ]


def _allocator(counters: Mapping[str, int], span: tuple[int, int]) -> list[Metric]:
    usage = {state: counters[name] for state, name in _MEMORY_STATES.items() if name in counters}
    return [
        *_numbers(names.ALLOCATOR_USAGE, usage, span),
        *_numbers(names.ALLOCATOR_PEAK, {None: counters.get("allocated_peak_bytes")}, span),
        *_numbers(names.ALLOCATOR_RETRIES, {None: counters.get("retries")}, span),
        *_numbers(names.ALLOCATOR_OOMS, {None: counters.get("ooms")}, span),
    ]


def _histogram(metric: names.Metric, points: Sequence[Point | None]) -> list[Metric]:
    """`metric` as its points have it; nothing without points."""
    explicit = [point for point in points if isinstance(point, HistogramDataPoint)]
    exponential = [point for point in points if isinstance(point, ExponentialHistogramDataPoint)]
    kinds = (Histogram(explicit, CUMULATIVE), ExponentialHistogram(exponential, CUMULATIVE))
    return [Metric(metric.name, metric.description, metric.unit, kind) for kind in kinds if kind.data_points]


def _numbers(
    metric: names.Metric, values: Mapping[str, float] | Mapping[None, float | None], span: tuple[int, int]
) -> list[Metric]:
    """`metric`, a counter or gauge, by the value of its one attribute, if any. None was not measured."""
    points = [
        NumberDataPoint({} if key is None else {metric.attributes[0]: key}, *span, value)
        for key, value in values.items()
        if value is not None
    ]
    return number_metric(metric, points)
