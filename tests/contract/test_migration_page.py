"""docs/migration.md covers what the others have, line by line, and names nothing of ours that is not there."""

import json
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import trainspan
from trainspan import names, settings
from trainspan.cli.main import COMMANDS

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = (REPOSITORY / "docs" / "migration.md").read_text(encoding="utf-8")
INVENTORY = json.loads((REPOSITORY / "tests" / "data" / "one_logger_inventory.json").read_text(encoding="utf-8"))
THEIRS = [
    name for library in INVENTORY.values() for kind, entries in library.items() if kind != "source" for name in entries
]
ROWS = [tuple(row) for row in re.findall(r"^\| (`.*) \| (.*) \|$", PAGE, re.MULTILINE)]
TICKED = re.compile(r"`([^`]+)`")

# What resources and log records carry, and the variables of OpenTelemetry, are no tables of ours.
SOURCES = ("src/trainspan/relay/otlp/resource.py", "src/trainspan/relay/signals/logs.py", "src/trainspan/placement.py")
LITERALS = {
    literal
    for source in SOURCES
    for literal in re.findall(r'"([a-z_]+(?:\.[a-z_]+)+)"', (REPOSITORY / source).read_text(encoding="utf-8"))
}
WIRE = (
    {row.name for table in (names.SPANS, names.RESOURCE_ATTRIBUTES, names.SPAN_ATTRIBUTES) for row in table}
    | {row.name for table in (names.METRIC_ATTRIBUTES, names.EVENTS, names.METRICS) for row in table}
    | {phase.wire for phase in names.Phase}
    | {phase.span for phase in names.Phase}
    | set(names.STATES)
    | {"custom.<name>"}
)
VARIABLES = {variable.name for variable in settings.VARIABLES}
COMMAND_NAMES = {command.name for command in COMMANDS if find_spec(command.module) is not None}


OTEL = {
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_METRIC_EXPORT_INTERVAL",
    "OTEL_RESOURCE_ATTRIBUTES",
    "OTEL_SERVICE_NAME",
    "OTEL_TRACES_SAMPLER",
    "OTEL_TRACES_SAMPLER_ARG",
}


def is_ours(text: str) -> bool:
    """Whether `text`, in code, is a name on the wire, a function, a variable or a command that exists."""
    if text.startswith("trainspan "):
        return text.removeprefix("trainspan ").split()[0] in COMMAND_NAMES
    if re.fullmatch(r"trainspan\.[a-z_]+", text) and text.removeprefix("trainspan.") in trainspan.__all__:
        return True
    return text in WIRE | VARIABLES | LITERALS or text in OTEL


LOOKS_LIKE_OURS = re.compile(
    r"(training|trainspan|hw|exception|host|slurm|telemetry)\.[\w.]+|TRAINSPAN_\w+|trainspan \w+"
)
# What stands in code and is no name: a value, a method of what a call gives, a shape.
BESIDE = re.compile(r"training\.tag\.<name>|trainspan\.phase\(.*\)")


WITHOUT_A_NAME = {
    "the times of the span, in ns; durations never by the wall clock",
    "a log record of the same name with the same values; or `trainspan.event`, without a time to give",
}
"""What is here and needs no name of its own."""


def rows_with(name: str) -> list[tuple[str, ...]]:
    """The rows whose first cell has this name."""
    return [row for row in ROWS if name in TICKED.findall(row[0])]


@pytest.mark.parametrize("name", sorted(set(THEIRS)))
def test_every_line_of_the_inventory_has_a_row(name: str) -> None:
    """Who comes from there looks for the name he knows."""
    assert rows_with(name) != []


@pytest.mark.parametrize("here", [row[1] for row in ROWS], ids=[row[0][:60] for row in ROWS])
def test_every_row_says_what_is_here_or_why_not(here: str) -> None:
    """A name that is not there, or a `no` without a reason, is worth nothing to who has to decide."""
    ticked = TICKED.findall(here)
    unknown = [text for text in ticked if LOOKS_LIKE_OURS.match(text) and not (is_ours(text) or BESIDE.match(text))]

    assert unknown == []
    if here.startswith("not here"):
        assert re.match(r"not here, because \w.{10,}", here)
    else:
        known = any(is_ours(text) for text in ticked)
        assert known or here in WITHOUT_A_NAME


def test_every_row_is_of_somebody() -> None:
    """A misspelt name would look like a line that nobody has."""
    listed = [name for row in ROWS for name in TICKED.findall(row[0])]

    assert sorted(set(listed) - set(THEIRS)) == []


def test_the_example_runs(tmp_path: Path) -> None:
    """The first lines that are moved over are copied from here."""
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    environ = {"TRAINSPAN_ENABLED": "1", "TRAINSPAN_RELAY": "off", "TRAINSPAN_DIR": str(tmp_path)}

    ran = subprocess.run([sys.executable, "-c", example], env=environ, capture_output=True, text=True, check=False)

    assert (ran.returncode, ran.stderr) == (0, "")


@pytest.mark.parametrize("text", ["training.nothing", "trainspan.nothing", "TRAINSPAN_NOTHING", "trainspan nothing"])
def test_what_is_not_there_is_found(text: str) -> None:
    """A check that accepts any name would pass for ever."""
    assert LOOKS_LIKE_OURS.match(text)
    assert not is_ours(text)
