"""Every query of every dashboard and every rule, asked of the real Prometheus and Jaeger after real runs."""

import json
import time
import urllib.parse
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.backends import stack as stacks
from tests.backends.runs import Run
from tests.backends.stack import Stack

pytestmark = pytest.mark.backends("that every panel and every rule has data in the real Prometheus and Jaeger")

DASHBOARDS = Path(__file__).resolve().parents[2] / "collector-config" / "grafana" / "dashboards"
# Computed every 5 minutes, so no test waits for its first value; that its expression has one is tested with the rules.
RARE = "job:training_goodput:ratio_1d"
# It logs, counts and saves nothing, has no framework, no compiler, no collective of its own, and no slow step for sure.
NOT_IN_THE_DEMO = {
    *("Step of the run", "Epoch", "Checkpoint", "Saving and loading checkpoints", "Samples and tokens a second"),
    *("FLOP/s", "MFU by rank", "What is logged", "What is counted", "Calls and values that were not taken"),
    *("In collectives, by rank", "Waiting in collectives", "Bytes in collectives", "Compilation and skipped steps"),
    *("Slow steps", "Steps with a straggler", "Ranks that stand still"),
}


class Asked(NamedTuple):
    """A query of a panel, as the file has it."""

    panel: str
    target: dict[str, Any]

    @property
    def text(self) -> str:
        """What it asks."""
        said: str = self.target.get("expr") or self.target["tags"]
        return said


def test_every_panel_shows_data_of_a_run_that_exercises_it(stack: Stack, real_runs: list[Run]) -> None:
    """An empty panel cannot be told from a run in which nothing goes wrong."""
    services = {run.name: _service(stack, run) for run in real_runs}
    waiting = _queries()
    assert len(waiting) >= 80
    deadline = time.monotonic() + stacks.PATIENCE_S

    while waiting and time.monotonic() < deadline:
        waiting = [a for a in waiting if not any(_data(stack, a, run, of_run) for run, of_run in services.items())]
        time.sleep(1.0)

    assert [(asked.panel, asked.text) for asked in waiting] == []


def test_the_demo_is_on_screen(stack: Stack, demo_run: Run) -> None:
    """It is the first thing a stranger sees of the dashboards; and it has the labels that a user's own run has."""
    service = _service(stack, demo_run)
    shown = [asked for asked in _queries() if not asked.panel.startswith("trainspan-gpu")]
    waiting = [asked for asked in shown if asked.panel.partition(": ")[2] not in NOT_IN_THE_DEMO]
    assert len(waiting) >= 35
    deadline = time.monotonic() + stacks.PATIENCE_S

    while waiting and time.monotonic() < deadline:
        waiting = [asked for asked in waiting if not _data(stack, asked, demo_run.name, service)]
        time.sleep(1.0)

    assert [(asked.panel, asked.text) for asked in waiting] == []


def test_every_variable_offers_the_run(stack: Stack, ddp_run: Run) -> None:
    """Without a choice in `run` every panel below it is empty."""
    variables = {
        variable["name"]: variable["query"]["query"]
        for path in DASHBOARDS.glob("*.json")
        for variable in json.loads(path.read_text())["templating"]["list"]
    }

    offered = {name: _label_values(stack, query.replace("$run", ddp_run.name)) for name, query in variables.items()}

    assert ddp_run.name in offered.pop("run")
    assert offered == {"rank": ["0", "1"], "service": [_service(stack, ddp_run)]}


def test_every_recording_rule_has_data_of_a_run(stack: Stack, real_runs: list[Run]) -> None:
    """A rule whose labels do not match those of the Collector's series computes nothing, and is healthy."""
    of_runs = f'training_run_id=~"{"|".join(run.name for run in real_runs)}"'
    rules = {rule["name"]: rule["query"] for rule in _rules(stack, "record")}

    values = {
        name: stack.series(query if name == RARE else f"last_over_time({name}{{{of_runs}}}[15m])")
        for name, query in rules.items()
    }

    assert len(values) >= 19
    assert all(values.values())


def test_prometheus_can_evaluate_every_rule_over_real_series(stack: Stack, real_runs: list[Run]) -> None:
    """Two series where a rule expects one are an error that a unit test with too few series does not see."""
    assert real_runs
    before = {rule["name"]: rule["lastEvaluation"] for rule in _rules(stack)}

    def evaluated() -> list[dict[str, Any]] | None:
        rules = [rule for rule in _rules(stack) if rule["name"] != RARE]
        return rules if all(rule["lastEvaluation"] != before[rule["name"]] for rule in rules) else None

    rules = stacks.wait_for(evaluated)

    assert len(rules) >= 25
    assert [(rule["name"], rule.get("lastError")) for rule in rules if rule["health"] != "ok"] == []


def _rules(stack: Stack, kind: str = "") -> list[dict[str, Any]]:
    """The rules of that type, or all, as Prometheus has them."""
    found = stacks.get_json(f"{stack.prometheus}/api/v1/rules{f'?type={kind}' if kind else ''}")
    return [rule for group in found["data"]["groups"] for rule in group["rules"]]


def _service(stack: Stack, run: Run) -> str:
    """The `service.name` that it was sent under."""
    (series, *_) = stack.series(f'last_over_time(training_steps_total{{training_run_id="{run.name}"}}[1h])')
    job: str = series["metric"]["job"]
    return job


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
