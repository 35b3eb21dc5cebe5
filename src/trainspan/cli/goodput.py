"""`trainspan goodput`: where the time of a run went, in any window, live or afterwards, from its ledger or a log."""

import argparse
import contextlib
import json
import math
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from trainspan.cli.command import OK, add_dir, settings_of, with_dir
from trainspan.errors import SettingError, TrainspanError
from trainspan.relay.goodput.queries import Window
from trainspan.report.folder import find_run
from trainspan.report.goodput import Question, Source, answer, from_ledger, from_ml_goodput, to_json
from trainspan.report.goodput_picture import picture
from trainspan.report.goodput_tensorboard import write_scalars
from trainspan.report.goodput_view import WIDEST, render
from trainspan.report.render import console_for
from trainspan.settings import state_dir

EXAMPLES = """\
examples:
  trainspan goodput                              the newest run, also while it runs
  trainspan goodput llama-7 --by rank
  trainspan goodput --since 2026-11-21T08:00 --until 2026-11-21T20:00
  trainspan goodput --window 1h --window 24h --json | jq .rolling
  trainspan goodput log.jsonl --input ml-goodput
  trainspan goodput --picture goodput.svg --tensorboard runs/goodput
  trainspan goodput --flops-per-step 3.2e15 --peak-flops 7.9e15   adds the MFU

T is ISO 8601 (without a zone: local time) or Unix seconds; eight digits are a date.
The time of a run that goes on ends with its last sign of life.

Every second of the window is in exactly one state; the states add up to the total:
  productive       inside a finished step that was kept, and in no other state
  init             before the first step; model_init is the part that made the model
  model_init       see init
  compile          the compiler, and what the first steps took longer than the others
  data_wait        a step waited for its batch
  straggler_wait   a rank waited long for a slower one
  checkpoint_save  saving held training up
  checkpoint_load  loading did
  validation       the model was evaluated
  custom.<name>    a phase that the script has named
  lost_work        steps done again after a failure, and the one a process died in
  restart          nothing ran, from a failure or a stop to the next start
  hang             no step for longer than 60 s and than ten usual ones
  shutdown         after the last step, until an orderly end
  unaccounted      nobody knows
Goodput is the productive share. ETTR adds waiting, validation and what the script
named. More, and the formulas: docs/goodput.md
"""

ML_GOODPUT: Final = "ml-goodput"

SHOWN_FROM_BYTES: Final = 1 << 20
"""Of a ledger: it takes about two seconds."""

_NS: Final = 1_000_000_000
_LAST_UNIX_S: Final = 1 << 32
_DATE: Final = re.compile(r"(\d{4})(\d{2})(\d{2})(?=T|$)", re.ASCII)
"""The basic form of ISO 8601. As Unix seconds eight digits would be a time before 1974."""
_UNITS_S: Final = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 604800}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `trainspan goodput`."""
    parser.add_argument(
        "run",
        nargs="?",
        metavar="RUN",
        help="a run id, the beginning of one, or a run folder (default: the newest); with --input: a file",
    )
    parser.add_argument("--input", choices=(ML_GOODPUT,), help="read a log of Google's ml-goodput-measurement instead")
    parser.add_argument("--job", metavar="NAME", help="with --input: which job, where the log holds several")
    parser.add_argument("--since", metavar="T", type=time_ns, help="only from this time on")
    parser.add_argument("--until", metavar="T", type=time_ns, help="only before this time")
    parser.add_argument(
        "--exclude", metavar="A/B", type=stretch_ns, action="append", default=[], help="leave out the time from A to B"
    )
    parser.add_argument(
        "--window", metavar="LENGTH", type=length_ns, action="append", default=[], help="also the last 90s, 15m, 1h, 7d"
    )
    parser.add_argument("--by", choices=("attempt", "rank", "node"), help="also one answer for each")
    parser.add_argument(
        "--flops-per-step",
        metavar="N",
        type=positive,
        help="FLOPs of the model in one step, over all ranks; for the MFU",
    )
    parser.add_argument(
        "--peak-flops", metavar="N", type=positive, help="peak FLOP/s of all devices of the job together; for the MFU"
    )
    parser.add_argument("--picture", metavar="FILE.svg", type=svg_file, help="also draw the waterfall into this file")
    parser.add_argument(
        "--tensorboard", metavar="DIR", type=Path, help="also write scalars over the time of the run, for TensorBoard"
    )
    parser.add_argument("--json", action="store_true", help="as JSON; the keys stay (docs/goodput.md)")
    add_dir(parser)


def execute(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    """Print the answer."""
    question = _question(arguments)
    with _bar() as on_progress:
        source = _source(arguments, environ, on_progress)
        said = answer(source, question)
    if arguments.picture is not None:
        _write(arguments.picture, picture(said))
    if arguments.tensorboard is not None:
        write_scalars(arguments.tensorboard, source.history, said.asked)
    if arguments.json:
        print(json.dumps(to_json(said), indent=2))
    else:
        console = console_for(width=min(shutil.get_terminal_size().columns, WIDEST))
        console.print(render(said, width=console.width, encoding=console.encoding))
    return OK


def _question(arguments: argparse.Namespace) -> Question:
    since_ns, until_ns = arguments.since, arguments.until
    if since_ns is not None and until_ns is not None and since_ns >= until_ns:
        raise SettingError(f"--since {since_ns / _NS:.0f} is not before --until {until_ns / _NS:.0f} (Unix seconds)")
    window = Window(since_ns, until_ns, tuple(arguments.exclude))
    if (arguments.flops_per_step is None) != (arguments.peak_flops is None):
        raise SettingError("the MFU needs both --flops-per-step and --peak-flops")
    flops = None if arguments.peak_flops is None else (arguments.flops_per_step, arguments.peak_flops)
    return Question(window, tuple(dict.fromkeys(arguments.window)), arguments.by, flops)


def _write(file: Path, text: str) -> None:
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise TrainspanError(f"{file} cannot be written: {error.strerror}") from error


@contextlib.contextmanager
def _bar() -> Iterator[Callable[[int, int], None]]:
    """How far a large ledger has been read, on a terminal, until there is an answer."""
    console = Console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True), TimeRemainingColumn()
    with contextlib.ExitStack() as shown:
        bar = Progress(*columns, console=console, transient=True)
        task = bar.add_task("reading the ledger")

        def on_progress(done_bytes: int, total_bytes: int) -> None:
            if total_bytes < SHOWN_FROM_BYTES or not console.is_terminal:
                return
            is_read = done_bytes >= total_bytes
            # The job over all ranks takes as long again, and nobody knows how far it is.
            description = "putting its ranks together" if is_read else "reading the ledger"
            bar.update(task, description=description, completed=done_bytes, total=None if is_read else total_bytes)
            if not bar.live.is_started:
                shown.enter_context(bar)

        yield on_progress


def _source(
    arguments: argparse.Namespace, environ: Mapping[str, str], on_progress: Callable[[int, int], None]
) -> Source:
    if arguments.input is None:
        if arguments.job is not None:
            raise SettingError("--job is for a log read with --input ml-goodput; name a run by its id instead")
        environ = with_dir(environ, arguments.dir)
        return from_ledger(find_run(Path(state_dir(settings_of(environ), environ)), arguments.run), on_progress)
    if arguments.run is None:
        raise SettingError(f"--input {arguments.input} needs the file: trainspan goodput FILE --input ml-goodput")
    return from_ml_goodput(Path(arguments.run), arguments.job)


def time_ns(text: str) -> int:
    """`text`, ISO 8601 or Unix seconds, as Unix ns; for argparse."""
    try:
        seconds = _iso_seconds(text) if _DATE.fullmatch(text) else float(text)
    except ValueError:
        seconds = _iso_seconds(text)
    if not 0 <= seconds < _LAST_UNIX_S:  # what is no number is not either
        raise argparse.ArgumentTypeError(
            f"{text!r} is no time; use ISO 8601 (2026-11-21T08:00:00Z) or Unix seconds (1795248000)"
        )
    return round(seconds * _NS)


def _iso_seconds(text: str) -> float:
    """Unix seconds of an ISO 8601 time, NaN if it is none."""
    # Python 3.10 knows no Z, and no date without hyphens.
    text = re.sub(r"[zZ]$", "+00:00", _DATE.sub(r"\1-\2-\3", text))
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        return math.nan


def svg_file(text: str) -> Path:
    """The file of a picture; for argparse."""
    if not text.lower().endswith(".svg"):
        raise argparse.ArgumentTypeError(f"{text!r} is no file for a picture: it is SVG, so name it goodput.svg")
    return Path(text)


def positive(text: str) -> float:
    """A number above zero; for argparse."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no number above zero; write 3.2e15")
    return number


def stretch_ns(text: str) -> tuple[int, int]:
    """`A/B` as Unix ns; for argparse."""
    first, slash, last = text.partition("/")
    if not slash:
        raise argparse.ArgumentTypeError(f"{text!r} is no stretch; use two times with a slash between them: A/B")
    start_ns, end_ns = time_ns(first), time_ns(last)
    if start_ns >= end_ns:
        raise argparse.ArgumentTypeError(f"{text!r} does not end after its beginning; use A/B with A before B")
    return start_ns, end_ns


def length_ns(text: str) -> int:
    """`1h` in ns; for argparse."""
    parts = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)([a-z]*)", text)
    unit_s = _UNITS_S.get(parts[2]) if parts else None
    length = round(float(parts[1]) * unit_s * _NS) if parts and unit_s else 0
    if length <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no length of time; use seconds, or 90s, 15m, 1h, 7d")
    return length
