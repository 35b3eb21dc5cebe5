"""`trainspan doctor`: what works here, what would be exported where, and what is missing and how to get it."""

import argparse
import dataclasses
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from rich.console import Console
from rich.table import Table

from trainspan import settings
from trainspan.cli.checks import endpoints, gpus, installation, job, signals, storage
from trainspan.cli.checks.finding import Finding
from trainspan.cli.command import FAILED, OK, USAGE, add_dir, with_dir
from trainspan.report.render import console_for

EXAMPLES = """\
examples:
  trainspan doctor
  OTEL_EXPORTER_OTLP_ENDPOINT=http://localhost:4318 trainspan doctor
  trainspan doctor --json | jq '.findings[] | select(.state == "problem")'

Each endpoint gets one real OTLP request with nothing in it. Header values are
never shown.
"""

SCHEMA: Final = "trainspan.doctor"
VERSION: Final = 1

_STYLES: Final = {"ok": "green", "note": "yellow", "problem": "bold red"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `trainspan doctor`."""
    parser.add_argument("--json", action="store_true", help="as JSON: a list of findings")
    add_dir(parser)


def execute(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    """Print the findings; the exit code says whether anything is in the way."""
    # gRPC's own log would mix with ours; it says again what the answer holds.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    environ = with_dir(environ, arguments.dir)
    in_force, problems = settings.load(environ)
    findings = [*_settings_findings(problems), *_findings(in_force, environ)]
    code = USAGE if problems else FAILED if any(finding.state == "problem" for finding in findings) else OK
    if arguments.json:
        written = [dataclasses.asdict(finding) for finding in findings]
        print(json.dumps({"schema": SCHEMA, "version": VERSION, "ok": code == OK, "findings": written}, indent=2))
    else:
        _show(console_for(), findings)
    return code


def _settings_findings(problems: Sequence[settings.Problem]) -> Iterator[Finding]:
    for problem in problems:
        yield Finding("settings", "problem", str(problem), facts=problem._asdict())


def _findings(in_force: settings.Settings, environ: Mapping[str, str]) -> Iterator[Finding]:
    yield from installation.check(environ)
    yield from gpus.check(gpus.probes())
    yield from job.check(in_force, environ)
    yield from storage.check(in_force, environ)
    yield from signals.check(environ)
    yield from endpoints.check(environ)


def _show(console: Console, findings: Sequence[Finding]) -> None:
    for area in dict.fromkeys(finding.area for finding in findings):
        console.print(area, style="bold")
        table = Table(box=None, show_header=False, padding=(0, 0, 0, 2), pad_edge=True)
        table.add_column(no_wrap=True, width=len("problem"))
        table.add_column(overflow="fold")
        for finding in findings:
            if finding.area == area:
                table.add_row(
                    finding.state, finding.text, style=None if finding.state == "ok" else _STYLES[finding.state]
                )
                if finding.advice:
                    table.add_row("", f"-> {finding.advice}")
        console.print(table)
    wrong = sum(finding.state == "problem" for finding in findings)
    console.print()
    console.print(
        f"{wrong} in the way" if wrong else "everything is in place", style=_STYLES["problem" if wrong else "ok"]
    )
