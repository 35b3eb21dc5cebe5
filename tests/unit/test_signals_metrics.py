"""The relay's aggregates become OTLP metrics: standard names, cumulative, few series, nothing undeclared."""

import json
from bisect import bisect_left
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.metrics.export import (
    ExponentialHistogramDataPoint,
    Gauge,
    HistogramDataPoint,
    Metric,
    NumberDataPoint,
    Sum,
)
from opentelemetry.sdk.resources import Resource

from tests.unit.gpu_machines import Host
from trainspan import names
from trainspan.names import Phase
from trainspan.relay.goodput.account import Account
from trainspan.relay.probes.probe import Reading
from trainspan.relay.signals.aggregates import (
    BOUNDS_S,
    MOST_EXPONENTIAL_BUCKETS,
    ExplicitAggregate,
    ExponentialAggregate,
    StepAggregates,
)
from trainspan.relay.signals.contexts import SCOPE
from trainspan.relay.signals.metrics import (
    Health,
    NodeReading,
    RankReading,
    SharedReading,
    has_own_histograms,
    histogram_kind_from,
    metrics_of,
    node_metrics,
    rank_metrics,
)
from trainspan.relay.timeline.checkpoints import Checkpoint
from trainspan.relay.timeline.collectives import Calls, Group, Kind
from trainspan.relay.timeline.own_time import OwnTime
from trainspan.relay.timeline.progress import Position
from trainspan.relay.timeline.records import phase_times_of
from trainspan.relay.timeline.scalars import Logged
from trainspan.relay.timeline.throughput import Work
from trainspan.testing.builders import rank_step

MS = 1_000_000
S = 1_000 * MS
START, NOW = 1_700_000_000 * S, 1_700_000_060 * S
VARIABLE = "OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION"
KINDS = "explicit_bucket_histogram or base2_exponential_bucket_histogram"

HEALTH = Health(
    marks=1200,
    marks_lost=3,
    events_dropped=1,
    recording_errors=2,
    misuse={"nested": 2},
    spans_dropped=5,
    lag_s=0.25,
    cpu_s=1.5,
    exports={"traces": 7, "metrics": 2},
    export_failures={"traces": 1},
    export_rejected={"metrics": 5},
    spool_bytes={"traces": 4096},
    spool_dropped={"logs": 1},
)


def reading_of(*, aggregates: StepAggregates | None, now_ns: int | None = 10 * S) -> RankReading:
    """A rank that began at 1 s, took two steps until 1.6 s, and is looked at at 10 s."""
    account = Account(1 * S)
    account.start(1 * S + 100 * MS)
    steps = [
        rank_step(n, [(Phase.DATA_WAIT, 50 * MS), (Phase.FORWARD, 200 * MS)], start_ns=1 * S + (100 + 250 * n) * MS)
        for n in range(2)
    ]
    for step in steps:
        account.charge(step, phase_times_of(step))
        if aggregates is not None:
            aggregates.fold(step, phase_times_of(step))
    return RankReading(
        *(Resource({"training.rank": 0}), START, 2, 1, steps[-1].end_ns, account, now_ns, aggregates),
        goodput={"run": 0.5, "attempt": 400 / 600},
        deviation_s=0.012,
        own=OwnTime(500 * MS),
    )


ALLOCATOR = {
    "reserved_bytes": 40 << 30,
    "active_bytes": 31 << 30,
    "allocated_bytes": 30 << 30,
    "allocated_peak_bytes": 39 << 30,
    "retries": 2,
    "ooms": 1,
}


def on_a_device(reading: RankReading) -> RankReading:
    """The same rank, with a device in use."""
    if reading.aggregates is not None:
        reading.aggregates.fold_device({Phase.FORWARD: 190 * MS})
    own = OwnTime(500 * MS, 190 * MS, 1)
    return reading._replace(
        allocator=ALLOCATOR, energy_j={"forward": 120.5, "backward": 230.0}, carbon_g=0.037, own=own
    )


def gpus() -> list[Reading]:
    """What a node with eight of them reads."""
    return list(Host("h100x8").look(0).values())


SAVE = Checkpoint("save", "blocking", True, 2 * S, 5 * S, "abc", 4096)


def with_checkpoints(reading: RankReading) -> RankReading:
    """The same rank, which has saved twice; the second failed."""
    if reading.aggregates is not None:
        for checkpoint in (SAVE, SAVE._replace(ok=False, end_ns=3 * S)):
            reading.aggregates.fold_checkpoint(checkpoint)
    return reading._replace(checkpoint_bytes=4096)


OF_OWN_TIME = (names.OWN_TIME.name, names.STEPS_TIMED.name)
WORLD = Group("0", "default_pg", (0, 1))
GATHER = Kind("all_gather", WORLD, 5000)
GATHER_KEY = ("all_gather", "default_pg")
COMPILED = {"compilations": 5, "recompilations": 2, "graph_breaks": 3}
REDUCER = {
    "forward_compute_ns": 2 * MS,
    "backward_compute_ns": 6 * MS,
    "backward_comm_ns": 4 * MS,
    "backward_overlap_ns": 3 * MS,
    "bucket_bytes": 25 << 20,
}


def with_calls(reading: RankReading) -> RankReading:
    """The same rank, which has called collectives, a compiler, and DistributedDataParallel."""
    if reading.aggregates is not None:
        reading.aggregates.fold_collective(GATHER, 2 * MS)
        reading.aggregates.fold_wait(GATHER, 1 * MS)
        reading.aggregates.fold_calls(Calls(GATHER, 7))
        reading.aggregates.fold_calls(Calls(GATHER._replace(size_bytes=8 << 30), 1))
    return reading._replace(compiled=COMPILED, reducer=REDUCER)


def at_work(reading: RankReading) -> RankReading:
    """The same rank, which says what it works through, where it is and what it logs."""
    return reading._replace(
        work=Work(64, 4096, 1.5e12, 0.42), position=Position(1003, 2), logged=Logged({"loss": 0.5}, {"skipped": 3}, 1)
    )


def stalled(reading: RankReading) -> RankReading:
    """The same rank, which has given no sign for a minute."""
    return reading._replace(stalled_ns={"backward": 61 * S})


def values_of(metric: Metric) -> dict[tuple[str, ...], Any]:
    """Value by attribute values, for numbers; what else a point says is checked on the way."""
    values = {}
    for point in metric.data.data_points:
        assert (point.start_time_unix_nano, point.time_unix_nano) == (START, NOW)
        assert not isinstance(point, HistogramDataPoint | ExponentialHistogramDataPoint)
        values[tuple(str(value) for value in (point.attributes or {}).values())] = point.value
    return values


def test_a_ranks_metrics_as_they_go_on_the_wire() -> None:
    """The whole payload, once: numbers, units, temporality, attributes."""
    reading = reading_of(aggregates=StepAggregates(ExplicitAggregate))

    metrics = rank_metrics(reading, NOW)

    def histogram(attributes: dict[str, str], value_s: float) -> dict[str, Any]:
        counts = [0] * 20
        counts[bisect_left(BOUNDS_S, value_s)] = 2
        return {
            "attributes": attributes,
            "start_time_unix_nano": START,
            "time_unix_nano": NOW,
            "count": 2,
            "sum": 2 * value_s,
            "bucket_counts": counts,
            "explicit_bounds": list(BOUNDS_S),
            "min": value_s,
            "max": value_s,
            "exemplars": [],
        }

    def number(value: float, **attributes: str) -> dict[str, Any]:
        return {
            "attributes": {f"training.{key}": text for key, text in attributes.items()},
            "start_time_unix_nano": START,
            "time_unix_nano": NOW,
            "value": value,
            "exemplars": [],
        }

    def metric(declared: names.Metric, **data: Any) -> dict[str, Any]:
        return {"name": declared.name, "description": declared.description, "unit": declared.unit, "data": data}

    host = {"training.clock": "host"}
    counted = {"aggregation_temporality": 2, "is_monotonic": True}
    assert [json.loads(made.to_json()) for made in metrics] == [
        metric(names.STEP_DURATION, data_points=[histogram({}, 0.25)], aggregation_temporality=2),
        metric(
            names.PHASE_DURATION,
            data_points=[
                histogram({"training.phase": "forward", **host}, 0.2),
                histogram({"training.phase": "data_wait", **host}, 0.05),
            ],
            aggregation_temporality=2,
        ),
        metric(names.OWN_TIME, data_points=[number(0.5, clock="host")], **counted),
        metric(names.STEPS, data_points=[number(2)], **counted),
        metric(
            names.TIME,
            data_points=[
                number(0.1, state="init"),
                number(0.1, state="data_wait"),
                number(0.4, state="productive"),
            ],
            **counted,
        ),
        metric(names.GOODPUT, data_points=[number(0.5, window="run"), number(400 / 600, window="attempt")]),
        metric(names.STEP_DEVIATION, data_points=[number(0.012)]),
        metric(names.PROGRESS_STEP, data_points=[number(1)]),
        metric(names.LAST_STEP_AGE, data_points=[number(8.4)]),
        metric(names.STEPS_SKIPPED, data_points=[number(0)], **counted),
    ]


def test_times_of_the_device_stand_beside_those_of_the_host() -> None:
    """What was launched in a forward takes the device as long as it takes."""
    reading = on_a_device(reading_of(aggregates=StepAggregates(ExplicitAggregate)))

    [durations] = [metric for metric in rank_metrics(reading, NOW) if metric.name == "training.phase.duration"]

    points = [point for point in durations.data.data_points if isinstance(point, HistogramDataPoint)]
    sums = {tuple((point.attributes or {}).values()): point.sum for point in points}
    assert sums[("forward", "host")] == pytest.approx(0.4)
    assert sums[("forward", "device")] == pytest.approx(0.19)
    made = {metric.name: values_of(metric) for metric in rank_metrics(reading, NOW) if metric.name in OF_OWN_TIME}
    assert made == {"training.step.own_time": {("host",): 0.5, ("device",): 0.19}, "training.steps.timed": {(): 1}}


def test_checkpoints_are_told_by_kind_part_and_outcome() -> None:
    """A save that fails after an hour is not a slow save."""
    reading = with_checkpoints(reading_of(aggregates=StepAggregates(ExplicitAggregate)))

    made = {metric.name: metric for metric in rank_metrics(reading, NOW)}

    points = made["training.checkpoint.duration"].data.data_points
    sums = {tuple((p.attributes or {}).values()): p.sum for p in points if isinstance(p, HistogramDataPoint)}
    assert sums == {("save", "blocking", "success"): 3.0, ("save", "blocking", "failure"): 1.0}
    assert values_of(made["training.checkpoint.size"]) == {(): 4096}


def test_collectives_are_told_by_operation_and_group() -> None:
    """How long a rank was held up, and how much went over the wire, are asked apart."""
    reading = with_calls(reading_of(aggregates=StepAggregates(ExplicitAggregate)))

    made = {metric.name: metric for metric in rank_metrics(reading, NOW)}

    [time] = made["training.collective.duration"].data.data_points
    [size] = made["training.collective.size"].data.data_points
    assert isinstance(time, HistogramDataPoint)
    assert isinstance(size, HistogramDataPoint)
    assert tuple((time.attributes or {}).values()) == tuple((size.attributes or {}).values()) == GATHER_KEY
    [wait] = made["training.collective.wait"].data.data_points
    assert isinstance(wait, HistogramDataPoint)
    assert (time.count, time.sum, wait.count, wait.sum) == (1, 0.002, 1, 0.001)
    assert (size.count, size.sum, size.min, size.max) == (8, 7 * 5000 + (8 << 30), 5000, 8 << 30)
    assert {bound: n for bound, n in zip(size.explicit_bounds, size.bucket_counts, strict=False) if n} == {
        16384.0: 7,
        float(16 << 30): 1,
    }


def test_compiler_and_reducer_are_told_as_they_count() -> None:
    """A recompilation is what a user can do something about; a first one is the price of compiling."""
    reading = with_calls(reading_of(aggregates=None))

    made = {metric.name: values_of(metric) for metric in rank_metrics(reading, NOW)}

    assert made["training.compile.count"] == {("first",): 3, ("recompilation",): 2}
    assert made["training.compile.graph_breaks"] == {(): 3}
    assert made["training.ddp.duration"] == {
        ("forward_compute",): 0.002,
        ("backward_compute",): 0.006,
        ("backward_comm",): 0.004,
        ("backward_overlap",): 0.003,
    }
    assert made["training.ddp.bucket.size"] == {(): 25 << 20}


def test_memory_of_the_allocator_is_told_as_far_as_it_is_known() -> None:
    """What was not measured is no zero."""
    allocator = {
        name: ALLOCATOR[name] for name in ("reserved_bytes", "allocated_bytes", "allocated_peak_bytes", "ooms")
    }
    reading = reading_of(aggregates=None)._replace(allocator=allocator)

    made = {metric.name: values_of(metric) for metric in rank_metrics(reading, NOW)}

    assert made["training.allocator.memory.usage"] == {("reserved",): 40 << 30, ("allocated",): 30 << 30}
    assert made["training.allocator.memory.peak"] == {(): 39 << 30}
    assert made["training.allocator.ooms"] == {(): 1}
    assert "training.allocator.retries" not in made


def test_a_rank_that_has_done_nothing_says_only_that() -> None:
    """Zero steps is a measurement; a goodput or an age of nothing is not."""
    reading = RankReading(Resource({}), START, 0, None, None, Account(0), 10 * S, StepAggregates(ExplicitAggregate))

    metrics = rank_metrics(reading, NOW)

    assert [(metric.name, values_of(metric)) for metric in metrics] == [
        ("training.steps", {(): 0}),
        ("training.steps.skipped", {(): 0}),
    ]


def test_a_rank_that_has_closed_has_no_age() -> None:
    """An alert on the age of the last step must not ring for jobs that are done."""
    metrics = rank_metrics(reading_of(aggregates=None, now_ns=None), NOW)

    assert "training.last_step.age" not in [metric.name for metric in metrics]


def test_only_a_stalled_rank_has_an_age_of_its_stall() -> None:
    """The alert that names a rank and its phase rings for whatever has this series."""
    goes_on = rank_metrics(reading_of(aggregates=None), NOW)
    stands = rank_metrics(stalled(reading_of(aggregates=None)), NOW)

    assert "training.stall.age" not in [metric.name for metric in goes_on]
    assert values_of({metric.name: metric for metric in stands}["training.stall.age"]) == {("backward",): 61.0}


def test_what_a_rank_works_through_is_told_where_it_is_known() -> None:
    """A rank whose batches say nothing has no samples; none at all is not the same as zero."""
    silent = {metric.name for metric in rank_metrics(reading_of(aggregates=None), NOW)}

    told = {metric.name: values_of(metric) for metric in rank_metrics(at_work(reading_of(aggregates=None)), NOW)}

    worked = {name: values for name, values in told.items() if name not in silent}
    assert worked == {
        "training.samples": {(): 64},
        "training.tokens": {(): 4096},
        "training.flops": {(): 1.5e12},
        "training.mfu": {(): 0.42},
        "training.progress.epoch": {(): 2},
        "training.progress.global_step": {(): 1003},
        "training.scalar": {("loss",): 0.5},
        "training.counter": {("skipped",): 3},
        "trainspan.scalars.dropped": {(): 1},
    }


def test_a_nodes_metrics_are_the_relays_own_health() -> None:
    """What the relay lost or could not deliver is published, signal by signal."""
    node = NodeReading(Resource({}), START, HEALTH)

    metrics = node_metrics(node, NOW)

    assert {metric.name: values_of(metric) for metric in metrics} == {
        "trainspan.misuse": {("nested",): 2},
        "trainspan.marks": {(): 1200},
        "trainspan.marks.lost": {(): 3},
        "trainspan.events.dropped": {(): 1},
        "trainspan.recording.errors": {(): 2},
        "trainspan.relay.lag": {(): 0.25},
        "trainspan.spans.dropped": {(): 5},
        "trainspan.exports": {("traces",): 7, ("metrics",): 2},
        "trainspan.export.failures": {("traces",): 1},
        "trainspan.export.rejected": {("metrics",): 5},
        "trainspan.spool.size": {("traces",): 4096},
        "trainspan.spool.dropped": {("logs",): 1},
        "trainspan.relay.cpu.time": {(): 1.5},
    }


@pytest.mark.parametrize("kind", [ExplicitAggregate, ExponentialAggregate])
def test_every_declared_metric_is_sent_and_no_other(kind: type[ExplicitAggregate] | type[ExponentialAggregate]) -> None:
    """The table of names is the contract: with it agree name, unit, description, instrument and attributes."""
    shared = StepAggregates(kind)
    rank = stalled(at_work(with_calls(with_checkpoints(on_a_device(reading_of(aggregates=shared))))))
    launched = {"rendezvous": 1.5}, {"flakiness": 0.0}
    node = NodeReading(Resource({}), START, HEALTH, {"failure": 2, "planned": 0}, gpus(), *launched)

    sent = metrics_of([rank], node, NOW, shared=[SharedReading(Resource({}), START, shared)])

    declared = {metric.name: metric for metric in names.METRICS}
    metrics = [metric for under in sent.resource_metrics for scope in under.scope_metrics for metric in scope.metrics]
    assert {metric.name for metric in metrics} == set(declared)
    for metric in metrics:
        row = declared[metric.name]
        assert (metric.unit, metric.description) == (row.unit, row.description)
        instrument = {Sum: "counter", Gauge: "gauge"}.get(type(metric.data), "histogram")
        if isinstance(metric.data, Sum) and not metric.data.is_monotonic:
            instrument = "updowncounter"
        assert instrument == row.instrument
        assert {tuple(point.attributes or {}) for point in metric.data.data_points} == {row.attributes}


def test_what_is_denied_is_not_sent() -> None:
    """Who pays by the series says which ones; whoever has none left sends nothing, not an empty resource."""
    rank = with_calls(reading_of(aggregates=StepAggregates(ExplicitAggregate)))
    node = NodeReading(Resource({"node": 0}), START, HEALTH, gpus=gpus())

    whole = metrics_of([rank], node, NOW)
    sent = metrics_of([rank], node, NOW, ("training.phase.duration", "trainspan.*", "hw.*"))

    kept = [
        [metric.name for scope in under.scope_metrics for metric in scope.metrics] for under in sent.resource_metrics
    ]
    told = [metric.name for scope in whole.resource_metrics[0].scope_metrics for metric in scope.metrics]
    assert "training.phase.duration" in told
    assert kept == [[name for name in told if name != "training.phase.duration" and not name.startswith("trainspan.")]]


def test_every_gpu_of_a_node_has_its_points() -> None:
    """Two GPUs that share a series are one GPU that jumps."""
    node = NodeReading(Resource({}), START, HEALTH, gpus=gpus())

    metrics = {metric.name: metric for metric in node_metrics(node, NOW)}

    points = [p for p in metrics["hw.power"].data.data_points if isinstance(p, NumberDataPoint)]
    power = {str((p.attributes or {})["hw.name"]): p.value for p in points}
    assert power == {f"GPU {n}": w for n, w in enumerate((652, 648, 655, 641, 650, 639, 658, 645))}
    assert len(metrics["hw.status"].data.data_points) == 24
    assert len({str(p.attributes) for m in metrics.values() for p in m.data.data_points}) >= 8 * 20


def test_ranks_and_node_send_under_their_own_resource() -> None:
    """What tells ranks apart is in the resource, so it must be the right one."""
    first, second = reading_of(aggregates=None), reading_of(aggregates=None)._replace(resource=Resource({"r": 1}))

    sent = metrics_of([first, second], NodeReading(Resource({"node": 0}), START, HEALTH), NOW)

    assert [dict(under.resource.attributes) for under in sent.resource_metrics] == [
        {"training.rank": 0},
        {"r": 1},
        {"node": 0},
    ]
    assert [scope.scope for under in sent.resource_metrics for scope in under.scope_metrics] == [SCOPE] * 3


def test_in_a_large_job_the_ranks_of_a_node_share_its_histograms() -> None:
    """200 series for each of a thousand ranks are more than a Prometheus takes; who is late is told of each rank."""
    shared = StepAggregates(ExplicitAggregate)
    reading_of(aggregates=shared)
    reading_of(aggregates=shared)

    rank = rank_metrics(reading_of(aggregates=None), NOW)
    of_node = SharedReading(Resource({"node": 0}), START + 1, shared)
    node = NodeReading(Resource({"node": 0}), START, HEALTH)
    (sent,) = metrics_of([], node, NOW, shared=[of_node]).resource_metrics

    assert (has_own_histograms(64), has_own_histograms(65)) == (True, False)
    assert {metric.name for metric in rank} >= {names.OWN_TIME.name, names.STEPS.name, names.TIME.name}
    assert not any(metric.name in (names.STEP_DURATION.name, names.PHASE_DURATION.name) for metric in rank)
    told = {metric.name: metric for metric in sent.scope_metrics[0].metrics}
    point = told["training.step.duration"].data.data_points[0]
    assert isinstance(point, HistogramDataPoint)
    assert (point.count, point.start_time_unix_nano) == (4, START + 1)
    assert names.MARKS.name in told


@given(st.lists(st.integers(0, 700 * S), min_size=1))
def test_an_explicit_histogram_counts_each_value_below_its_bound(values_ns: list[int]) -> None:
    """A bound belongs to the bucket below it (OTLP); a count on the wrong side moves every quantile."""
    aggregate = ExplicitAggregate()
    for value_ns in values_ns:
        aggregate.add(value_ns)

    point = aggregate.point({}, START, NOW)

    assert isinstance(point, HistogramDataPoint)
    for place, bound in enumerate(BOUNDS_S):
        assert sum(point.bucket_counts[: place + 1]) == sum(value_ns <= bound * S for value_ns in values_ns)
    assert point.count == sum(point.bucket_counts) == len(values_ns)
    assert (point.min, point.max) == (min(values_ns) / S, max(values_ns) / S)
    assert point.sum == sum(values_ns) / S


@given(st.lists(st.integers(0, 700 * S), min_size=1))
def test_an_exponential_histogram_counts_each_value_in_its_bucket(values_ns: list[int]) -> None:
    """The backend computes the bounds from scale and offset: one off, and all times are wrong."""
    aggregate = ExponentialAggregate()
    for value_ns in values_ns:
        aggregate.add(value_ns)

    point = aggregate.point({}, START, NOW)

    assert isinstance(point, ExponentialHistogramDataPoint)
    counts = point.positive.bucket_counts
    assert len(counts) <= MOST_EXPONENTIAL_BUCKETS
    assert point.count == point.zero_count + sum(counts) == len(values_ns)
    assert point.zero_count == values_ns.count(0)
    base = 2**2**-point.scale
    for place in range(len(counts)):
        upper_s = base ** (point.positive.offset + place + 1)
        below = sum(value_ns / S <= upper_s * (1 + 1e-13) for value_ns in values_ns)
        assert point.zero_count + sum(counts[: place + 1]) == below


@pytest.mark.parametrize(("buckets", "scale"), [(MOST_EXPONENTIAL_BUCKETS, 6), (MOST_EXPONENTIAL_BUCKETS + 1, 5)])
def test_an_exponential_histogram_is_coarsened_only_when_it_must_be(buckets: int, scale: int) -> None:
    """Every halving of the scale doubles the error of a quantile."""
    aggregate = ExponentialAggregate()
    for index in (0, buckets - 1):
        aggregate.add(round(2 ** ((index + 0.5) / 64) * S))

    point = aggregate.point({}, START, NOW)

    assert isinstance(point, ExponentialHistogramDataPoint)
    assert point.scale == scale


@pytest.mark.parametrize(
    ("text", "kind", "says"),
    [
        (None, ExplicitAggregate, []),
        ("", ExplicitAggregate, []),
        ("explicit_bucket_histogram", ExplicitAggregate, []),
        ("base2_exponential_bucket_histogram", ExponentialAggregate, []),
        (
            "linear",
            ExplicitAggregate,
            [
                f"{VARIABLE}='linear' is not understood: use {KINDS}; going on with the first",
            ],
        ),
    ],
)
def test_the_standard_variable_chooses_the_histogram(text: str | None, kind: type, says: list[str]) -> None:
    """Prometheus' native histograms need the exponential form; a typing error must not change it silently."""
    chosen, problems = histogram_kind_from({} if text is None else {VARIABLE: text})

    assert chosen is kind
    assert [str(problem) for problem in problems] == says


def test_what_a_relay_counts_anew_says_since_when() -> None:
    """Totals go on over relays; a distribution that began later would look as if it had fallen."""
    reading = on_a_device(reading_of(aggregates=StepAggregates(ExplicitAggregate)))._replace(skipped=1)

    metrics = rank_metrics(reading._replace(since_unix_ns=START + 5 * S), NOW)

    points = [(metric.name, point) for metric in metrics for point in metric.data.data_points]
    anew = {name for name, point in points if point.start_time_unix_nano == START + 5 * S}
    whole = {name for name, point in points if point.start_time_unix_nano == START}
    assert anew == {
        names.STEP_DURATION.name,
        names.PHASE_DURATION.name,
        names.OWN_TIME.name,
        names.STEPS_TIMED.name,
        names.STEPS_SKIPPED.name,
        names.ENERGY.name,
        names.CARBON.name,
    }
    assert {names.STEPS.name, names.TIME.name} < whole
    assert not anew & whole
