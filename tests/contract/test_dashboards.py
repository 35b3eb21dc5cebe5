"""The dashboards as files: generated, complete, and asking only for what exists."""

import json
import re
import subprocess
import sys
from importlib import import_module
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from trainspan import names

ROOT = Path(__file__).resolve().parents[2]
GRAFANA = ROOT / "collector-config" / "grafana"
DASHBOARDS = sorted((GRAFANA / "dashboards").glob("*.json"))
SUFFIXES = {
    "s": "_seconds",
    "By": "_bytes",
    "1": "_ratio",
    "g": "_grams",
    "J": "_joules",
    "W": "_watts",
    "Cel": "_celsius",
    "Hz": "_hertz",
}
SERIES = {
    "histogram": ("_bucket", "_count", "_sum"),
    "counter": ("_total",),
    "gauge": ("",),
    "updowncounter": ("",),
}

RULES = ROOT / "collector-config" / "prometheus" / "rules"
OF_ONE = re.compile(r"\{\{(training_rank|training_node_rank|hw_name)\}\}")
"""In the legend of a query that draws a line for each rank, node or GPU."""

every_dashboard = pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)


def test_the_files_are_what_the_script_writes() -> None:
    """A panel that was clicked together in Grafana would be lost with the next one declared."""
    command = [sys.executable, str(ROOT / "scripts" / "dashboards"), "--check"]

    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr


def test_there_are_four_dashboards() -> None:
    """A link to a dashboard that is not there opens nothing."""
    found = {path.stem: json.loads(path.read_text()) for path in DASHBOARDS}

    assert {uid: dashboard["title"] for uid, dashboard in found.items()} == {
        "trainspan-run": "Run",
        "trainspan-step": "Step anatomy",
        "trainspan-gpu": "GPU & energy",
        "trainspan-fleet": "Fleet",
    }
    assert all(dashboard["uid"] == uid for uid, dashboard in found.items())


@every_dashboard
def test_grafana_knows_every_field(path: Path) -> None:
    """What Grafana's own model of a dashboard does not have, Grafana ignores without a word."""
    sdk = "grafana_foundation_sdk"
    pytest.importorskip(sdk, reason="Grafana's model of its files needs Python 3.11; would have shown it knows them")
    encoder, plugins = import_module(f"{sdk}.cog.encoder"), import_module(f"{sdk}.cog.plugins")
    models = import_module(f"{sdk}.models.dashboard")
    plugins.register_default_plugins()
    written = json.loads(path.read_text())

    read = json.loads(encoder.JSONEncoder().encode(models.Dashboard.from_json(written)))

    # What a variable asks, Grafana's editor writes a second time as a text, and the model leaves that out.
    unknown = [place for place in _differences(written, read) if not place.endswith("/definition")]
    assert unknown == []


@every_dashboard
def test_every_panel_can_be_seen_and_says_what_it_means(path: Path) -> None:
    """Grafana draws panels over each other, and takes two of one id for one, without a word."""
    panels = json.loads(path.read_text())["panels"]

    assert len({panel["id"] for panel in panels}) == len(panels)
    assert [panel["title"] for panel in panels if len(panel["description"]) < 40] == []
    assert [panel["title"] for panel in panels if panel["gridPos"]["x"] + panel["gridPos"]["w"] > 24] == []
    pairs = combinations(panels, 2)
    assert [(a["title"], b["title"]) for a, b in pairs if _overlap(a["gridPos"], b["gridPos"])] == []


@every_dashboard
def test_every_data_source_is_provisioned(path: Path) -> None:
    """A panel that asks a data source of another id shows an error and no more."""
    provisioned = set(re.findall(r"uid: (\S+)", (GRAFANA / "datasources" / "trainspan.yaml").read_text()))

    asked = set(_values_of("uid", [json.loads(path.read_text())[part] for part in ("panels", "templating")]))

    assert provisioned == {"prometheus", "jaeger"}
    assert asked
    assert asked <= provisioned


@every_dashboard
def test_every_metric_exists(path: Path) -> None:
    """A panel whose metric was renamed is empty for ever, and looks like a healthy run."""
    rules = (ROOT / "collector-config" / "prometheus" / "rules" / "recording.yaml").read_text()
    known = {series for metric in names.METRICS for series in _series_of(metric)}
    known |= set(re.findall(r"- record: (\S+)", rules))

    text = " ".join(_values_of("expr", json.loads(path.read_text())["panels"]))
    asked = set(re.findall(r"(?<!:)\b(?:training|trainspan|hw)_\w+(?=[\[{])|\b(?:job|rank):[\w:]+", text))

    assert asked
    assert asked - known == set()


def test_every_metric_is_shown_somewhere() -> None:
    """What is recorded, sent and stored, and then on no panel and in no rule, is found by nobody who needs it."""
    files = [*DASHBOARDS, *RULES.glob("*.yaml")]
    asked = set(re.findall(r"\b(?:training|trainspan|hw)_\w+", " ".join(path.read_text() for path in files)))

    assert [metric.name for metric in names.METRICS if not asked & set(_series_of(metric))] == []


@every_dashboard
def test_no_panel_draws_a_line_for_every_rank_of_a_large_job(path: Path) -> None:
    """A job of 16,000 ranks would stop the browser, and of 16,000 lines nobody can tell the one that matters."""
    targets = [target for panel in json.loads(path.read_text())["panels"] for target in panel["targets"]]

    unbounded = [
        target["expr"]
        for target in targets
        if OF_ONE.search(target.get("legendFormat", "")) and not re.search(r"\b(topk|bottomk)\b", target["expr"])
    ]

    assert unbounded == []


@every_dashboard
def test_what_is_asked_of_all_the_time_shown_is_asked_once(path: Path) -> None:
    """At every step of a graph it would read all of the time shown again; chosen once by `@ end()` it does not."""
    targets = [target for panel in json.loads(path.read_text())["panels"] for target in panel["targets"]]

    again = [
        target["expr"]
        for target in targets
        if target.get("range") and re.search(r"\[\$__range\](?! @ end\(\))", target["expr"])
    ]

    assert again == []


def _series_of(metric: names.Metric) -> list[str]:
    # Prometheus knows a share by its instrument: only of a gauge.
    plain = metric.unit == "1" and metric.instrument != "gauge"
    name = metric.name.replace(".", "_") + ("" if plain else SUFFIXES.get(metric.unit, ""))
    return [name + end for end in SERIES[metric.instrument]]


def _overlap(a: dict[str, int], b: dict[str, int]) -> bool:
    return (
        a["x"] < b["x"] + b["w"] and b["x"] < a["x"] + a["w"] and a["y"] < b["y"] + b["h"] and b["y"] < a["y"] + a["h"]
    )


def _values_of(key: str, found: Any) -> list[str]:
    """Every value under `key`, however deep."""
    if isinstance(found, list):
        return [value for one in found for value in _values_of(key, one)]
    if not isinstance(found, dict):
        return []
    here = [found[key]] if key in found else []
    return here + [value for one in found.values() for value in _values_of(key, one)]


def _differences(written: Any, read: Any, place: str = "") -> list[str]:
    """Where `read` lacks something of `written`, or has it otherwise."""
    if isinstance(written, dict) and isinstance(read, dict):
        inner = [(value, read.get(key), f"{place}/{key}") for key, value in written.items()]
    elif isinstance(written, list) and isinstance(read, list) and len(written) == len(read):
        inner = [(*pair, f"{place}/{number}") for number, pair in enumerate(zip(written, read, strict=True))]
    else:
        return [] if written == read else [place]
    return [found for one in inner for found in _differences(*one)]
