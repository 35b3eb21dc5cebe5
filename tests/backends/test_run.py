"""Real runs through the shipped configurations: what a person finds in Jaeger and Prometheus is what the rank did."""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanContext

from tests.backends import runs
from tests.backends import stack as stacks
from tests.backends.runs import Run
from tests.backends.stack import Stack
from tests.backends.telemetry import new_run
from tests.integration.relayed import command_line
from tests.ports import free_port
from trainspan import names
from trainspan.identity import span_id_of, trace_id_of

pytestmark = pytest.mark.backends("that a run's traces and metrics are found, complete and right, in real backends")

STEPS = 8
KILLED_IN_STEP = 6
OUTAGE_S = float(os.environ.get("TRAINSPAN_TEST_OUTAGE_S", "60"))
"""How long the collector is away. Longer than an attempt to deliver waits, and than the pauses between them."""
AFTERWARDS_S = 45.0
"""How long the run goes on: a relay that was refused for long tries again after 36 s at most."""
BY_RUN = {
    "inside_run": ("training.collective.", "training.ddp.", "training.compile.", "training.launch."),
    "gpu_run": ("training.allocator.", "training.energy", "training.carbon", "training.steps.timed", "hw."),
    "framework_run": ("training.progress.epoch",),
    "spoken_run": ("trainspan.misuse",),
    "stalled_run": ("training.stall.",),
}
"""Beginnings of the metrics that a plain script on a CPU does not send, and the run that does. None is left out."""
TYPES = {"histogram": "histogram", "counter": "counter", "gauge": "gauge", "updowncounter": "gauge"}
UNIT_SUFFIXES = {
    "s": "_seconds",
    "By": "_bytes",
    "1": "_ratio",
    "g": "_grams",
    "J": "_joules",
    "W": "_watts",
    "Cel": "_celsius",
    "Hz": "_hertz",
}


@pytest.mark.parametrize(("which", "steps"), [("demo_run", runs.DEMO_STEPS), ("ddp_run", STEPS)])
def test_a_sampled_step_is_one_trace_with_all_ranks(
    stack: Stack, request: pytest.FixtureRequest, which: str, steps: int
) -> None:
    """Jaeger must show what the relay wrote: every span, parent, link and time, and find nothing to warn about."""
    run: Run = request.getfixturevalue(which)
    written = run.written_spans()
    attempt = (f"{trace_id_of(run.name, 0, 'attempt'):032x}", f"{span_id_of(run.name, 0, 'attempt'):016x}")

    assert run.ended.exit_code == 0, run.ended.stderr
    for number in (0, steps - 1):
        trace_id = f"{trace_id_of(run.name, 0, 'step', number):032x}"
        trace = stack.trace(int(trace_id, 16), len(written[trace_id]))

        found = {span["spanID"]: span for span in trace["spans"]}
        rank_steps = [span for span in found.values() if span["operationName"] == names.SPAN_RANK_STEP]
        assert {key: _as_found(span) for key, span in found.items()} == {
            key: _as_written(span) for key, span in written[trace_id].items()
        }
        assert sorted(_tags(span)[names.RANK] for span in rank_steps) == [0, 1]
        assert all(attempt in _references(span, "FOLLOWS_FROM") for span in rank_steps)
        assert [span["warnings"] for span in found.values() if span["warnings"]] == []
    # What is linked to is there, with both processes.
    attempts = stack.trace(int(attempt[0], 16), len(written[attempt[0]]))
    assert attempt[1] in {span["spanID"] for span in attempts["spans"]}
    assert sum(span["operationName"] == names.SPAN_PROCESS for span in attempts["spans"]) == 2
    assert [span["warnings"] for span in attempts["spans"] if span["warnings"]] == []


def test_durations_in_jaeger_are_those_of_the_script(stack: Stack, ddp_run: Run) -> None:
    """The script's own clock is the judge; and no time of a step may be missing or counted twice."""
    clocked = {line["rank"]: line["steps"] for line in ddp_run.ended.lines}
    ratios: dict[str, list[float]] = {"forward": [], "backward": []}

    for number in (0, 1, 2, 3, 4, STEPS - 1):
        trace = stack.trace(trace_id_of(ddp_run.name, 0, "step", number), spans=3)
        phases: dict[str, list[dict[str, Any]]] = {}
        for span in trace["spans"]:
            for _, parent in _references(span, "CHILD_OF"):
                phases.setdefault(parent, []).append(span)
            if (phase := _tags(span).get(names.PHASE)) in ratios:
                own_us = clocked[_tags(span)[names.RANK]][number][f"{phase}_ns"] / 1000
                ratios[phase].append(span["duration"] / own_us)
        for step in (span for span in trace["spans"] if span["operationName"] == names.SPAN_RANK_STEP):
            parts = phases[step["spanID"]]
            # Jaeger cuts off below a microsecond, once for each span.
            assert 0 <= step["duration"] - sum(part["duration"] for part in parts) <= len(parts)

    assert {phase: len(found) for phase, found in ratios.items()} == {"forward": 12, "backward": 12}
    assert all(0.98 <= median(found) <= 1.0 for found in ratios.values()), ratios


def _as_found(span: Mapping[str, Any]) -> tuple[Any, ...]:
    references = (_references(span, "CHILD_OF"), _references(span, "FOLLOWS_FROM"))
    return span["operationName"], span["startTime"], span["duration"], *references, _tags(span)[names.STEP]


def _as_written(span: ReadableSpan) -> tuple[Any, ...]:
    """The same of a span as the relay wrote it. Jaeger's unit is the microsecond."""
    parents = set() if span.parent is None else {_key(span.parent)}
    assert span.start_time is not None
    assert span.end_time is not None
    assert span.attributes is not None
    duration_us = (span.end_time - span.start_time) // 1000
    links = {_key(link.context) for link in span.links}
    return span.name, span.start_time // 1000, duration_us, parents, links, span.attributes[names.STEP]


def _key(context: SpanContext) -> tuple[str, str]:
    return f"{context.trace_id:032x}", f"{context.span_id:016x}"


def _references(span: Mapping[str, Any], kind: str) -> set[tuple[str, str]]:
    return {(ref["traceID"], ref["spanID"]) for ref in span["references"] if ref["refType"] == kind}


def _tags(span: Mapping[str, Any]) -> dict[str, Any]:
    return {tag["key"]: tag["value"] for tag in span["tags"]}


def test_the_phase_a_rank_was_killed_in_is_found_in_jaeger(stack: Stack, tmp_path: Path) -> None:
    """After a crash somebody opens Jaeger and looks for red."""
    environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": stack.otlp_http}

    run = runs.run("mortal.py", "backward", "kill", str(KILLED_IN_STEP), state=tmp_path, environ=environ)
    trace_id = trace_id_of(run.name, 0, "step", KILLED_IN_STEP)
    trace = stack.trace(trace_id, len(run.written_spans()[f"{trace_id:032x}"]))

    failed = {span["operationName"]: _tags(span) for span in trace["spans"] if _tags(span).get("error")}
    sentence = f"process ended in backward of step {KILLED_IN_STEP}"
    assert run.ended.exit_code == -9
    assert set(failed) == {names.SPAN_RANK_STEP, names.Phase.BACKWARD.span}
    assert {tags["otel.status_description"] for tags in failed.values()} == {sentence}
    assert failed[names.SPAN_RANK_STEP][names.END_REASON] == "died"
    assert [span["warnings"] for span in trace["spans"] if span["warnings"]] == []


def prometheus_name(metric: names.Metric) -> str:
    """What OTLP's translation makes of a metric's name, without what a histogram's series add to it.

    Source: OpenTelemetry specification, "Prometheus and OpenMetrics Compatibility".
    """
    unit = "" if metric.unit == "1" and metric.instrument != "gauge" else UNIT_SUFFIXES.get(metric.unit, "")
    total = "_total" if metric.instrument == "counter" else ""
    return metric.name.replace(".", "_") + unit + total


def metrics_of(which: str) -> list[names.Metric]:
    """What is looked for in the run of that fixture: in `paced_run` whatever is not looked for in another."""
    if which in BY_RUN:
        return [metric for metric in names.METRICS if metric.name.startswith(BY_RUN[which])]
    elsewhere = tuple(beginning for beginnings in BY_RUN.values() for beginning in beginnings)
    return [metric for metric in names.METRICS if not metric.name.startswith(elsewhere)]


@pytest.mark.parametrize("which", ["paced_run", *BY_RUN])
def test_prometheus_holds_every_metric_under_its_name(stack: Stack, request: pytest.FixtureRequest, which: str) -> None:
    """A metric that no run sends, or that arrives under another name, is a promise of names.py that is not kept."""
    run: Run = request.getfixturevalue(which)
    assert run.ended.exit_code == 0, run.ended.stderr
    of_run = f'training_run_id="{run.name}"'

    for metric in metrics_of(which):
        name = prometheus_name(metric)
        for suffix in ("_bucket", "_sum", "_count") if metric.instrument == "histogram" else ("",):
            # The age of the last step is not sent any more after the end.
            found = stack.series(f"last_over_time({name}{suffix}{{{of_run}}}[15m])")
            labels = {attribute.replace(".", "_") for attribute in metric.attributes}
            assert all(labels <= set(series["metric"]) for series in found), name


def test_prometheus_holds_what_the_script_names_and_gets_wrong(stack: Stack, spoken_run: Run) -> None:
    """A phase of the user's own is in the account and in the distributions under its name; so is the mistake."""
    of_run = f'training_run_id="{spoken_run.name}"'

    assert spoken_run.ended.exit_code == 0, spoken_run.ended.stderr
    (mistakes,) = stack.series(f"last_over_time(trainspan_misuse_total{{{of_run}}}[15m])")
    states = stack.series(f"last_over_time(training_time_seconds_total{{{of_run}}}[15m])")
    phases = stack.series(f"last_over_time(training_phase_duration_seconds_count{{{of_run}}}[15m])")
    assert (mistakes["metric"]["kind"], mistakes["value"][1]) == ("names", "9")
    assert {"custom.item_0", "custom.item_30", "custom.other"} <= {
        found["metric"]["training_state"] for found in states
    }
    assert {"custom.item_0", "custom.item_30", "custom.other"} <= {
        found["metric"]["training_phase"] for found in phases
    }


def test_every_gpu_of_the_node_is_told(stack: Stack, gpu_run: Run) -> None:
    """Eight GPUs are eight series of each metric, and the energy charged to the work is no more than was drawn."""
    of_run = f'training_run_id="{gpu_run.name}"'

    for metric in (metric for metric in names.METRICS if metric.name.startswith("hw.")):
        found = stack.series(f"last_over_time({prometheus_name(metric)}{{{of_run}}}[15m])")
        assert len({series["metric"]["hw_id"] for series in found}) == 8, metric.name
    (energy,) = stack.series(f"sum(last_over_time(training_energy_joules_total{{{of_run}}}[15m]))")
    (drawn,) = stack.series(f'last_over_time(hw_energy_joules_total{{{of_run},hw_name="GPU 0"}}[15m])')
    assert 0 < float(energy["value"][1]) <= float(drawn["value"][1])


def test_prometheus_knows_type_and_unit_of_every_metric(real_runs: list[Run], tmp_path: Path) -> None:
    """`rate` of a gauge is nonsense; who asks for the type must get that of names.py.

    Prometheus keeps type and unit of pushed metrics only with a feature that is off in the shipped configuration,
    because it adds two labels to every series. So a second one has it on, and gets the same runs by `trainspan replay`.
    """
    with _typed_prometheus(tmp_path) as address:
        environ = {"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": f"{address}/api/v1/otlp/v1/metrics"}
        replayed = {run.name: _replay(run, tmp_path / run.name, environ) for run in real_runs}
        typed = Stack(tmp_path, "", "", "", address)
        found = {metric.name: _types_of(typed, metric) for metric in names.METRICS}

    assert set(replayed.values()) == {0}
    assert found == {metric.name: {(TYPES[metric.instrument], _unit_of(metric))} for metric in names.METRICS}


def _replay(run: Run, folder: Path, environ: Mapping[str, str]) -> int:
    """The exit code of a replay of a copy that knows of no earlier delivery."""
    shutil.copytree(run.folder, folder, ignore=shutil.ignore_patterns("*.cursor"))
    return command_line("replay", "--json", str(folder), environ=environ)


def _unit_of(metric: names.Metric) -> str | None:
    """As Prometheus says it. A share has none there; its name ends in `_ratio`."""
    return UNIT_SUFFIXES[metric.unit].removeprefix("_") if metric.unit in UNIT_SUFFIXES.keys() - {"1"} else None


def _types_of(stack: Stack, metric: names.Metric) -> set[tuple[str | None, str | None]]:
    suffix = "_count" if metric.instrument == "histogram" else ""
    found = stack.series(f"last_over_time({prometheus_name(metric)}{suffix}[15m])")
    return {(series["metric"].get("__type__"), series["metric"].get("__unit__")) for series in found}


@contextmanager
def _typed_prometheus(folder: Path) -> Iterator[str]:
    address = f"127.0.0.1:{free_port()}"
    configuration = Path(__file__).resolve().parents[2] / "collector-config" / "prometheus" / "prometheus.yaml"
    command = [
        stacks.status(folder)["binaries"]["prometheus"],
        f"--config.file={configuration}",
        f"--storage.tsdb.path={folder / 'typed'}",
        f"--web.listen-address={address}",
        "--web.enable-otlp-receiver",
        "--enable-feature=type-and-unit-labels",
    ]
    with (folder / "typed.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        stacks.wait_for(lambda: stacks.get_json(f"http://{address}/api/v1/status/buildinfo"))
        yield f"http://{address}"
    finally:
        process.terminate()
        process.wait()


def test_the_goodput_rule_says_what_the_report_says(stack: Stack, paced_run: Run) -> None:
    """Two numbers of the same name that differ are two numbers nobody believes.

    `rate` extrapolates by half the distance of its points, so the run must have many of them.
    """
    reported = paced_run.report()["goodput_ratio"]
    goodput = f'job:training_goodput:ratio_5m{{training_run_id="{paced_run.name}"}}'

    # Evaluated every 15 s: the first value may be of the middle of the run.
    ruled = _once_near(stack, goodput, reported, 0.01)

    assert ruled == pytest.approx(reported, rel=0.01)


def _once_near(stack: Stack, promql: str, expected: float, tolerance: float) -> float:
    """The value of one series once it is near; otherwise the last one seen when patience ends."""
    deadline = time.monotonic() + stacks.PATIENCE_S
    while True:
        (series,) = stack.series(promql)
        value = float(series["value"][1])
        if abs(value - expected) <= tolerance * expected or time.monotonic() > deadline:
            return value
        time.sleep(0.5)


def assert_all_found(stack: Stack, run: Run, steps: int) -> None:
    """Every span the relay wrote is in Jaeger, once, and the counter in Prometheus ends with the last step."""
    written = run.written_spans()
    rank_steps = [s for spans in written.values() for s in spans.values() if s.name == names.SPAN_RANK_STEP]
    assert len(rank_steps) == steps
    for trace_id, spans in written.items():
        trace = stack.trace(int(trace_id, 16), len(spans))
        assert sorted(span["spanID"] for span in trace["spans"]) == sorted(spans)
    counted = f'last_over_time(training_steps_total{{training_run_id="{run.name}"}}[15m])'
    stacks.wait_for(lambda: float(stack.series(counted)[0]["value"][1]) == steps or None)


def accepted_spans(stack: Stack, since_unix_s: float) -> float:
    """How many spans the collector has accepted, restarts included, by a count that it made after that time."""

    def counts() -> list[tuple[float, float]] | None:
        (series,) = stack.series("otelcol_receiver_accepted_spans_total[30m]")
        found = [(float(at_s), float(count)) for at_s, count in series["values"]]
        return found if found[-1][0] > since_unix_s else None

    total = before = 0.0
    for _, count in stacks.wait_for(counts):
        total += count - before if count >= before else count
        before = count
    return total


def test_a_collector_that_is_away_for_a_while_loses_nothing(own_stack: Stack, tmp_path: Path) -> None:
    """It is restarted for an upgrade in the middle of a run: nothing lost, nothing twice, and training not delayed."""
    environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": own_stack.otlp_http, "OTEL_TRACES_SAMPLER": "always_on"}
    # A fifth of a second: all that is written stays below the 4 MiB from which a delivered file begins anew.
    arguments = (str(OUTAGE_S + AFTERWARDS_S), "0.2", str(tmp_path / "model.pt"))
    name = new_run()

    with ThreadPoolExecutor() as beside:
        training = beside.submit(runs.run, "paced.py", *arguments, state=tmp_path / "state", environ=environ, name=name)
        own_stack.trace(trace_id_of(name, 0, "step", 3))
        stacks.run("down", own_stack.folder, "--only", "collector")
        time.sleep(OUTAGE_S)
        again = stacks.up(own_stack.folder)
        run = training.result()

    (said,) = run.ended.lines
    written = sum(len(spans) for spans in run.written_spans().values())
    assert again == own_stack
    assert run.ended.exit_code == 0, run.ended.stderr
    assert said["steps"] > 3 * OUTAGE_S
    assert_all_found(own_stack, run, said["steps"])
    # Jaeger shows a span that came twice once.
    assert accepted_spans(own_stack, time.time()) == written


def test_a_run_that_found_no_collector_is_delivered_afterwards(stack: Stack, tmp_path: Path) -> None:
    """The collector was down all night: in the morning `trainspan replay` brings everything, and only once."""
    environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_TRACES_SAMPLER": "always_on"}
    run = runs.run("paced.py", "2", "0.05", str(tmp_path / "model.pt"), state=tmp_path / "state", environ=environ)
    to_the_stack = {"OTEL_EXPORTER_OTLP_ENDPOINT": stack.otlp_http}

    first = command_line("replay", "--json", str(run.folder), environ=to_the_stack)
    second = command_line("replay", "--json", str(run.folder), environ=to_the_stack)

    assert (first, second) == (0, 0)
    assert_all_found(stack, run, run.ended.lines[0]["steps"])
