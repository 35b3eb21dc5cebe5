"""Every query of every dashboard and every rule, asked of the real Prometheus and Jaeger."""

import json
import time
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.metrics import Meter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.util.types import AnyValue

from tests.backends import stack as stacks
from tests.backends import telemetry
from tests.backends.runs import Run
from tests.backends.stack import Stack
from trainspan import names

pytestmark = pytest.mark.backends("that every panel and every rule has data in the real Prometheus and Jaeger")

DASHBOARDS = Path(__file__).resolve().parents[2] / "collector-config" / "grafana" / "dashboards"
# Computed every 5 minutes, so no test waits for its first value; that its expression has one is tested with the rules.
RARE = "job:training_goodput:ratio_1d"
VALUES = {
    names.PHASE: [phase.wire for phase in names.Phase],
    names.CLOCK: ["host", "device"],
    names.STATE: list(names.STATES),
    names.WINDOW: ["run", "attempt", "1h", "24h"],
    names.HW_TYPE: ["gpu"],
    names.HW_STATE: ["ok", "failed"],
    names.HW_GPU_TASK: ["general"],
    names.HW_GPU_CLOCK: ["sm"],
}
# Of a run without a GPU in which nothing goes wrong: what their panels are about did not happen.
NOT_ON_A_CPU = ("device", "allocator", "hw_", "energy", "carbon", "sampled.reason", "stall")
# Of a torch that only says that it uses a GPU, beside the two panels of errors that did not happen.
NOT_ON_RECORDED_GPUS = ("device", "allocator", "sampled.reason", "stall")
# What a run tells of only if its batches come from a DataLoader, or its script logs.
OF_WORK = ("samples", "tokens", "flops", "mfu", "scalar")


# Of what a plain script does not do.
INSIDE = ("training_collective", "training_compile")


class Asked(NamedTuple):
    """A query of a panel, as the file has it."""

    panel: str
    target: dict[str, Any]


@pytest.fixture(scope="module")
def everything(stack: Stack) -> str:
    """The id of a run that sent every metric of `names`, and a slow step."""
    run = telemetry.new_run()
    for rank in (0, 1):
        _send_every_metric(stack.otlp_http, run, rank)
    assert telemetry.send_spans(stack.otlp_http, telemetry.step_spans(run, "slow"))
    return run


def _send_every_metric(endpoint: str, run: str, rank: int) -> None:
    """One export of one rank, with a point for every value of every attribute."""
    identity: dict[str, AnyValue] = {
        names.RUN_ID: run,
        names.ATTEMPT: 0,
        names.RANK: rank,
        names.NODE_RANK: 0,
        names.WORLD_SIZE: 2,
    }
    resource = Resource.create({"service.name": "training", "service.instance.id": f"{run}/{rank}", **identity})
    exporter = OTLPMetricExporter(endpoint=f"{endpoint}/v1/metrics", timeout=telemetry.TIMEOUT_S)
    provider = MeterProvider([PeriodicExportingMetricReader(exporter)], resource=resource, shutdown_on_exit=False)
    meter = provider.get_meter(names.SCOPE)
    for metric in names.METRICS:
        add = _instrument(meter, metric)
        for attributes in _points(metric):
            add(0.25, attributes)
    # Prometheus counts in milliseconds: a counter must not begin in the one in which it is exported.
    time.sleep(0.01)
    provider.shutdown()


def _instrument(meter: Meter, metric: names.Metric) -> Callable[[float, dict[str, str]], None]:
    if metric.instrument == "histogram":
        boundaries = [0.1, 0.5, 1.0]
        return meter.create_histogram(metric.name, metric.unit, explicit_bucket_boundaries_advisory=boundaries).record
    if metric.instrument == "counter":
        return meter.create_counter(metric.name, metric.unit).add
    if metric.instrument == "updowncounter":
        return meter.create_up_down_counter(metric.name, metric.unit).add
    return meter.create_gauge(metric.name, metric.unit).set


def _points(metric: names.Metric) -> list[dict[str, str]]:
    points: list[dict[str, str]] = [{}]
    for attribute in metric.attributes:
        points = [{**point, attribute: value} for point in points for value in VALUES.get(attribute, ["some"])]
    return points


def test_every_panel_shows_data(stack: Stack, everything: str) -> None:
    """An empty panel cannot be told from a run in which nothing goes wrong."""
    waiting = _queries()
    assert len(waiting) >= 40
    deadline = time.monotonic() + stacks.PATIENCE_S

    while waiting and time.monotonic() < deadline:
        waiting = [asked for asked in waiting if not _data(stack, asked, everything, "training")]
        time.sleep(1.0)

    assert [(asked.panel, asked.target.get("expr", asked.target.get("tags"))) for asked in waiting] == []


def test_a_real_run_fills_every_panel_that_needs_no_gpu(stack: Stack, ddp_run: Run) -> None:
    """Synthetic telemetry has whatever labels the test gave it; a run has those that users get."""
    service = stack.series(f'last_over_time(training_steps_total{{training_run_id="{ddp_run.name}"}}[1h])')[0][
        "metric"
    ]["job"]
    absent = (*NOT_ON_A_CPU, *OF_WORK, *INSIDE)
    waiting = [a for a in _queries() if not any(word in json.dumps(a.target) for word in absent)]
    deadline = time.monotonic() + stacks.PATIENCE_S

    while waiting and time.monotonic() < deadline:
        waiting = [asked for asked in waiting if not _data(stack, asked, ddp_run.name, service)]
        time.sleep(1.0)

    assert [(asked.panel, asked.target.get("expr", asked.target.get("tags"))) for asked in waiting] == []


def test_a_run_with_collectives_and_a_compiler_fills_their_panels(stack: Stack, inside_run: Run) -> None:
    """The same of what only some scripts do."""
    waiting = [asked for asked in _queries() if any(word in json.dumps(asked.target) for word in INSIDE)]
    assert len(waiting) >= 3
    deadline = time.monotonic() + stacks.PATIENCE_S

    while waiting and time.monotonic() < deadline:
        waiting = [asked for asked in waiting if not _data(stack, asked, inside_run.name, "")]
        time.sleep(1.0)

    assert [(asked.panel, asked.target["expr"]) for asked in waiting] == []


def test_a_run_on_recorded_gpus_fills_the_panels_of_gpus(stack: Stack, gpu_run: Run) -> None:
    """The same of what only a machine with GPUs sends."""
    of_gpus = [asked for asked in _queries() if asked.panel.startswith("trainspan-gpu")]
    waiting = [a for a in of_gpus if not any(word in json.dumps(a.target) for word in NOT_ON_RECORDED_GPUS)]
    assert len(waiting) >= 12
    deadline = time.monotonic() + stacks.PATIENCE_S

    while waiting and time.monotonic() < deadline:
        waiting = [asked for asked in waiting if not _data(stack, asked, gpu_run.name, "")]
        time.sleep(1.0)

    assert [(asked.panel, asked.target.get("expr", asked.target.get("tags"))) for asked in waiting] == []


def test_a_run_that_tells_its_work_fills_the_panels_of_it(stack: Stack, paced_run: Run) -> None:
    """Its batches have tokens, its script logs, and the FLOPs of a token are known."""
    of_work = [asked for asked in _queries() if any(word in json.dumps(asked.target) for word in OF_WORK)]
    waiting = [asked for asked in of_work if "energy" not in json.dumps(asked.target)]
    assert len(waiting) >= 6
    deadline = time.monotonic() + stacks.PATIENCE_S

    while waiting and time.monotonic() < deadline:
        waiting = [asked for asked in waiting if not _data(stack, asked, paced_run.name, "training")]
        time.sleep(1.0)

    assert [(asked.panel, asked.target["expr"]) for asked in waiting] == []


def test_every_variable_offers_the_run(stack: Stack, everything: str) -> None:
    """Without a choice in `run` every panel below it is empty."""
    variables = {
        variable["name"]: variable["query"]["query"]
        for path in DASHBOARDS.glob("*.json")
        for variable in json.loads(path.read_text())["templating"]["list"]
    }

    offered = {name: _label_values(stack, query.replace("$run", everything)) for name, query in variables.items()}

    assert everything in offered.pop("run")
    assert offered == {"rank": ["0", "1"], "service": ["training"]}


def test_every_recording_rule_has_data(stack: Stack, everything: str) -> None:
    """A rule whose labels do not match those of the Collector's series computes nothing, and is healthy."""
    stack.series(f'training_steps_total{{training_run_id="{everything}"}}')
    found = stacks.get_json(f"{stack.prometheus}/api/v1/rules?type=record")
    rules = {rule["name"]: rule["query"] for group in found["data"]["groups"] for rule in group["rules"]}

    values = {name: stack.series(query) for name, query in rules.items()}

    assert len(values) >= 10
    assert all(values.values())


def _queries() -> list[Asked]:
    """What every panel asks, without what is computed too rarely for a test."""
    return [
        Asked(f"{path.stem}: {panel['title']}", target)
        for path in sorted(DASHBOARDS.glob("*.json"))
        for panel in json.loads(path.read_text())["panels"]
        for target in panel["targets"]
        if RARE not in target.get("expr", "")
    ]


def _data(stack: Stack, asked: Asked, run: str, service: str) -> list[Any]:
    """What Grafana would draw of a run of the last 15 minutes, with its variables filled in as Grafana does."""
    if asked.target["datasource"]["uid"] == "jaeger":
        return _traces(stack, asked.target["tags"].replace("$run", run), service)
    promql = asked.target["expr"]
    for variable, value in {"run": run, "rank": ".*", "__range": "15m", "__rate_interval": "4m"}.items():
        promql = promql.replace(f"${variable}]", f"{value}]").replace(f'"${variable}"', f'"{value}"')
    assert "$" not in promql
    now = time.time()
    when = {"time": now} if asked.target["instant"] else {"start": now - 900, "end": now, "step": 15}
    path = "query" if asked.target["instant"] else "query_range"
    query = urllib.parse.urlencode({"query": promql, **when})
    return stacks.get_json(f"{stack.prometheus}/api/v1/{path}?{query}")["data"]["result"]


def _traces(stack: Stack, logfmt: str, service: str) -> list[Any]:
    """What Jaeger finds; Grafana turns `key="value"` into JSON just so."""
    tags = dict(pair.replace('"', "").split("=") for pair in logfmt.split())
    query = urllib.parse.urlencode({"service": service, "tags": json.dumps(tags), "limit": 50, "lookback": "1h"})
    found = stacks.get_json(f"{stack.jaeger}/api/traces?{query}")
    return found["data"] if found else []


def _label_values(stack: Stack, query: str) -> list[str]:
    """Grafana's `label_values(selector, label)`."""
    selector, label = query.removeprefix("label_values(").removesuffix(")").rsplit(", ", 1)
    match = urllib.parse.urlencode({"match[]": selector})
    return stacks.wait_for(
        lambda: stacks.get_json(f"{stack.prometheus}/api/v1/label/{label}/values?{match}")["data"] or None
    )
