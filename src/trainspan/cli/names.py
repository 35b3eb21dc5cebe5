"""`trainspan names`: every table of names and variables, to read or to feed to another program."""

import argparse
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich.console import Console
from rich.padding import Padding
from rich.table import Table

from trainspan import names
from trainspan.cli.command import OK
from trainspan.otel_variables import OTEL_VARIABLES
from trainspan.settings import VARIABLES

EXAMPLES = """\
examples:
  trainspan names                                        everything, as tables
  trainspan names metrics                                one table
  trainspan names --json | jq -r '.metrics[].name'
"""

WIDEST_NAME: Final = 44
"""Beside a longer one, what is said of it would be a column of single words."""

_ABOUT: Final = {
    "spans": "Spans: a sampled step's trace, and the attempt's trace.",
    "attributes": "Attributes. `on` says what carries them.",
    "metrics": "Metrics: always on, never sampled.",
    "events": "Events: names of log records.",
    "states": "States a rank's wall clock is charged to; together the elapsed time.",
    "settings": "Settings: every TRAINSPAN_* variable.",
    "otel": "Every OTEL_* variable that is read, and where it differs from the specification.",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `trainspan names`."""
    parser.add_argument("table", nargs="?", choices=sorted(_ABOUT), help="only this table")
    parser.add_argument("--json", action="store_true", help="as JSON: an object of tables, each a list of objects")


def execute(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:  # noqa: ARG001  # as all commands
    """Print the tables."""
    wanted = {title: rows for title, rows in tables().items() if arguments.table in (None, title)}
    if arguments.json:
        print(json.dumps(wanted, indent=2))
        return OK
    console = Console(highlight=False, emoji=False, markup=False)
    for number, (title, rows) in enumerate(wanted.items()):
        console.print(("\n" if number else "") + _ABOUT[title], style="bold")
        console.print(_listing(title, rows))
    return OK


def tables() -> dict[str, list[dict[str, Any]]]:
    """Every table, its rows in order; a row's first value is the name."""
    phases = [(phase.span, f"One stay in the phase {phase.wire!r} of a sampled step.") for phase in names.Phase]
    attributes = (
        ("resource", names.RESOURCE_ATTRIBUTES),
        ("span", names.SPAN_ATTRIBUTES),
        ("metric", names.METRIC_ATTRIBUTES),
    )
    return {
        "spans": [{"name": name, "meaning": meaning} for name, meaning in [*names.SPANS, *phases]],
        "attributes": [
            {"name": row.name, "on": on, "meaning": row.meaning} for on, table in attributes for row in table
        ],
        "metrics": [
            {
                "name": metric.name,
                "instrument": metric.instrument,
                "unit": metric.unit,
                "attributes": list(metric.attributes),
                "meaning": metric.description,
            }
            for metric in names.METRICS
        ],
        "events": [{"name": name, "meaning": meaning} for name, meaning in names.EVENTS],
        "states": [{"name": state} for state in names.STATES],
        "settings": [
            {
                "name": variable.name,
                "default": variable.default or None,
                "accepted": variable.accepted,
                "meaning": variable.meaning,
            }
            for variable in VARIABLES
        ],
        "otel": [
            {
                "name": variable.name,
                "default": variable.default or None,
                "each_signal": variable.each_signal,
                "meaning": variable.meaning,
                "differs": variable.differs or None,
            }
            for variable in OTEL_VARIABLES
        ],
    }


def _listing(title: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    """Names in full, for they are there to be copied; what is said of them wraps beside, or below long ones."""
    longest = max(len(row["name"]) for row in rows)
    if longest > WIDEST_NAME:
        listing = Table(box=None, show_header=False, padding=(0, 2, 0, 2))
        for row in rows:
            listing.add_row(row["name"])
            listing.add_row(Padding(_said_of(title, row), (0, 0, 0, 4)))
        return listing
    listing = Table(box=None, show_header=False, padding=(0, 2, 0, 2))
    listing.add_column(no_wrap=True)
    listing.add_column()
    for row in rows:
        listing.add_row(row["name"], _said_of(title, row))
    return listing


def _said_of(title: str, row: Mapping[str, Any]) -> str:
    if title == "attributes":
        return f"{row['on']}: {row['meaning']}"
    if title == "metrics":
        by = f", by {', '.join(row['attributes'])}" if row["attributes"] else ""
        return f"{row['meaning']} {row['instrument'].capitalize()}, {row['unit']}{by}."
    if title == "settings":
        default = f"; default {row['default']}" if row["default"] else ""
        return f"{row['meaning']} ({row['accepted']}{default})"
    if title == "otel":
        default = f" Default {row['default']}." if row["default"] else ""
        return f"{row['meaning']}{default}" + (f" {row['differs']}" if row["differs"] else "")
    return str(row.get("meaning", ""))
