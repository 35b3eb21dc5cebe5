"""`trainspan report`: what a run did, where its time went, which steps were slow, and how each rank ended."""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path

from trainspan.cli.command import OK, add_dir, settings_of, with_dir
from trainspan.report.build import build_report
from trainspan.report.folder import find_run, load_run
from trainspan.report.model import RunReport, to_json
from trainspan.report.render import console_for, render
from trainspan.settings import state_dir

EXAMPLES = """\
examples:
  trainspan report                          the newest run, also while it runs
  trainspan report 20261121-0040            the run whose id begins so
  trainspan report /mnt/runs/llama-7        a run folder from somewhere else
  trainspan report --json | jq '.ranks[] | {rank, steps_per_s}'

p50, p95 and max are over steps; a phase's time is its own, without the phases
in it, so the shares of all phases add up to the step. `longer than usual` names
the phase that made a step slow; where ranks wait for each other, the rank alone
in its line is the one that was late.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `trainspan report`."""
    parser.add_argument(
        "run", nargs="?", metavar="RUN", help="a run id, the beginning of one, or a run folder (default: the newest)"
    )
    parser.add_argument("--json", action="store_true", help="as JSON; seconds end in _s, shares in _ratio")
    add_dir(parser)


def execute(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    """Print the report."""
    environ = with_dir(environ, arguments.dir)
    folder = find_run(Path(state_dir(settings_of(environ), environ)), arguments.run)
    report = report_of(folder)
    if arguments.json:
        print(json.dumps(to_json(report), indent=2))
    else:
        console_for().print(render(report))
    return OK


def report_of(folder: Path) -> RunReport:
    """The report of the run in `folder`, as far as it has come.

    Raises:
        RunNotFound: nothing is there to report yet.
        RecordingError: a summary cannot be read.
    """
    loaded = load_run(folder)
    return build_report(loaded.summary, folder, loaded.silent_s)
