"""`trainspan replay`: delivers what lies in a run folder and no endpoint has taken yet, each batch once."""

import argparse
import contextlib
import dataclasses
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, TaskID, TextColumn
from rich.progress import Progress as Bars

from trainspan.cli.command import FAILED, OK, add_dir, seconds, settings_of, with_dir
from trainspan.errors import InputError
from trainspan.relay.otlp.claims import journals_in
from trainspan.relay.otlp.replay import Progress, ReplayReport, replay
from trainspan.relay.process import fold_recordings
from trainspan.report.folder import find_run
from trainspan.report.quantities import size
from trainspan.settings import state_dir

EXAMPLES = """\
examples:
  OTEL_EXPORTER_OTLP_ENDPOINT=http://localhost:4318 trainspan replay
  OTEL_EXPORTER_OTLP_ENDPOINT=https://otlp.example.com trainspan replay llama-7
  trainspan replay /mnt/copied/llama-7 --json

Recordings that no relay has read (TRAINSPAN_RELAY=off) are folded into the run
folder first. What was delivered is remembered there: a second replay sends
nothing twice, and one that was interrupted goes on where it stopped.
"""

DEFAULT_TIMEOUT_S: Final = 600.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `trainspan replay`."""
    parser.add_argument(
        "run", nargs="?", metavar="RUN", help="a run id, the beginning of one, or a run folder (default: the newest)"
    )
    parser.add_argument("--json", action="store_true", help="the outcome as JSON")
    parser.add_argument(
        "--timeout",
        metavar="S",
        type=seconds,
        default=DEFAULT_TIMEOUT_S,
        help=f"seconds to try for (default: {DEFAULT_TIMEOUT_S:g}); the rest is left for the next time",
    )
    add_dir(parser)


def execute(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    """Fold, deliver, say how it went."""
    environ = with_dir(environ, arguments.dir)
    folder = find_run(Path(state_dir(settings_of(environ), environ)), arguments.run)
    if not (folder / "recordings").exists() and not journals_in(folder):
        raise InputError(f"{folder} is no run folder: it holds no recordings, and nothing to deliver")
    folded = fold(folder, environ)
    if folded:
        print(f"trainspan replay: read {folded} recording(s) that no relay had read", file=sys.stderr)
    with _bars() as on_progress:
        report = replay(folder, environ, arguments.timeout, on_progress)
    if arguments.json:
        print(json.dumps({"folder": str(folder), "complete": report.complete, **dataclasses.asdict(report)}, indent=2))
    else:
        _show(folder, report)
    return OK if report.complete else FAILED


def fold(folder: Path, environ: Mapping[str, str]) -> int:
    """Take over the recordings that no relay has read, into the run folder alone; how many there were."""
    # Delivering is another step, which counts and shows what it does.
    kept = {
        name: value
        for name, value in environ.items()
        if not name.endswith("_ENDPOINT") and not (name.endswith("_EXPORTER") and value.strip().lower() == "console")
    }
    return fold_recordings(folder, kept)


class _Bars:
    """A bar for each file; on a stream that is no terminal only the last state is printed.

    Nothing is shown before the first one: to show no bar takes an empty line.
    """

    def __init__(self, bars: Bars, shown: contextlib.ExitStack):
        self._bars = bars
        self._shown = shown
        self._tasks: dict[str, TaskID] = {}

    def __call__(self, progress: Progress) -> None:
        if not self._tasks:
            self._shown.enter_context(self._bars)
        if progress.file not in self._tasks:
            self._tasks[progress.file] = self._bars.add_task(progress.file, total=progress.total_bytes)
        self._bars.update(self._tasks[progress.file], completed=progress.done_bytes)


@contextlib.contextmanager
def _bars() -> Iterator[_Bars]:
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True))
    with contextlib.ExitStack() as shown:
        yield _Bars(Bars(*columns, console=Console(stderr=True)), shown)


def _show(folder: Path, report: ReplayReport) -> None:
    print(f"{folder}: {report.delivered} batch(es) delivered", end="")
    print(f", {report.dropped} refused or unreadable" if report.dropped else "")
    if report.no_endpoint:
        print(f"no endpoint is set for: {', '.join(report.no_endpoint)}")
    for problem in report.problems:
        print(f"trainspan replay: {problem}", file=sys.stderr)
    if report.in_use:
        print(f"trainspan replay: a relay is delivering these now: {', '.join(report.in_use)}", file=sys.stderr)
    if report.remaining_bytes:
        left = size(report.remaining_bytes)
        print(f"trainspan replay: {left} could not be delivered and stay; replay again later", file=sys.stderr)
