"""The table of `scripts/test-gpu`: every check that needs a GPU, in one go.

Exit code: 0 all holds; 1 something does not; 2 a wrong argument; 3 there is no GPU, so nothing was shown.
"""

import argparse
import dataclasses
import json
import platform
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import util
from pathlib import Path
from types import FrameType
from typing import Any, Final

from tests.gpu.checks import CHECKS, DRIVER, NOT_HERE, RELAY, Check, Row
from tests.gpu.runs import Bench
from trainspan.testing.nvml_recording import recording_of

NOTHING_SHOWN: Final = 3
WITHIN_S: Final = 3600
LEAST_S: Final = 5
"""A check is not begun with less time than that left."""


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """One check that was run, or was not. `why_not`: what kept it from being run, or from coming to its end."""

    check: str
    rows: tuple[Row, ...]
    why_not: str | None
    seconds: float = 0.0

    @property
    def holds(self) -> bool:
        """Whether all it asks for is so."""
        return self.why_not is None and all(row.holds is not False for row in self.rows)

    def to_json(self) -> dict[str, Any]:
        """It, for a file."""
        rows = [row._asdict() for row in self.rows]
        return {"check": self.check, "rows": rows, "why_not": self.why_not, "seconds": round(self.seconds, 1)}


def why_no_gpu() -> str | None:
    """Why nothing can be run here; None: it can."""
    try:
        import torch
    except ImportError:
        return "torch is not installed"
    return None if torch.cuda.is_available() else "this machine has no GPU that torch can use"


def missing(needs: Mapping[str, str]) -> list[str]:
    """The distributions of `needs` that are not installed."""
    return sorted({distribution for module, distribution in needs.items() if not _is_there(module)})


def _is_there(module: str) -> bool:
    try:
        return util.find_spec(module) is not None
    except ModuleNotFoundError:  # nor is the package it would be in
        return False


def record(path: Path) -> int:
    """Write the recording of this machine's GPUs; the exit code."""
    try:
        import pynvml
    except ImportError:
        print("nothing was recorded: the module pynvml is not installed: pip install nvidia-ml-py", file=sys.stderr)
        return NOTHING_SHOWN
    try:
        pynvml.nvmlInit()
        recording = recording_of(pynvml)
    except pynvml.NVMLError as error:
        print(f"nothing was recorded: {error}", file=sys.stderr)
        return NOTHING_SHOWN
    path.write_text(json.dumps(recording, indent=1) + "\n")
    print(f"{len(recording['devices'])} GPUs recorded in {path}; their UUIDs are in it")
    return 0


def run(checks: Sequence[Check], bench: Bench, within_s: float = WITHIN_S) -> Iterator[Outcome]:
    """What became of each check; all of them within that time."""
    end_s = time.monotonic() + within_s
    for check in checks:
        begun_s = time.monotonic()
        lacking = missing(check.needs)
        if lacking:
            yield Outcome(check.name, (), f"it needs {', '.join(lacking)}")
        elif end_s - begun_s < LEAST_S:
            yield Outcome(check.name, (), f"the {within_s:.0f} s are over")
        else:
            yield _outcome(check, bench._replace(state=bench.state / check.name), end_s - begun_s)


def _outcome(check: Check, bench: Bench, limit_s: float) -> Outcome:
    rows: list[Row] = []
    begun_s = time.monotonic()
    why_not = None

    def over(_number: int, _frame: FrameType | None) -> None:
        raise TimeoutError(f"it was not through after {limit_s:.0f} s")

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        rows.extend(check.rows(bench))
    except Exception as error:  # noqa: BLE001 - one that breaks must not hide what the others show
        why_not = f"{type(error).__name__}: {error}"[-2000:]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    return Outcome(check.name, tuple(rows), why_not, time.monotonic() - begun_s)


def lines_of(outcome: Outcome) -> Iterator[str]:
    """One outcome as lines of the table."""
    for row in outcome.rows:
        verdict = {True: "holds", False: "FAILS", None: ""}[row.holds]
        yield f"{verdict:<6} {row.what:<46} {row.measured}" + (f" (bound: {row.bound})" if row.bound else "")
    if outcome.why_not is not None:
        yield f"FAILS  {outcome.check:<46} broke off: {outcome.why_not}"


def machine() -> dict[str, str]:
    """What the numbers belong to."""
    import torch

    found = {"python": platform.python_version(), "torch": str(torch.__version__)}
    if torch.cuda.is_available():
        found |= {"gpu": torch.cuda.get_device_name(0), "cuda": str(torch.version.cuda or torch.version.hip)}
    return found


class Report:
    """What was shown, in a file that is whole after each check; what an earlier call has shown stays in it.

    Args:
        path: None: there is no file.
    """

    def __init__(self, path: Path | None):
        self._path = path
        earlier = json.loads(path.read_text())["outcomes"] if path is not None and path.exists() else []
        self._outcomes: dict[str, dict[str, Any]] = {outcome["check"]: outcome for outcome in earlier}

    def put(self, outcome: Outcome) -> None:
        """Take over one more."""
        self._outcomes[outcome.check] = outcome.to_json()

    def write(self, why_not: str | None, about: Mapping[str, str]) -> None:
        """Write what there is."""
        if self._path is None:
            return
        known = list(self._outcomes.values())
        not_shown = [check.shows for check in CHECKS if check.name not in self._outcomes]
        written = {"machine": about, "why_not": why_not, "outcomes": known, "not_shown": [*not_shown, *NOT_HERE]}
        spare = self._path.with_name(f".{self._path.name}.new")
        spare.write_text(json.dumps(written, indent=2) + "\n")
        spare.replace(self._path)


def _names_of(text: str) -> list[str]:
    known = [check.name for check in CHECKS]
    asked = [name.strip() for name in text.split(",")]
    if unknown := [name for name in asked if name not in known]:
        raise argparse.ArgumentTypeError(f"there is no {unknown[0]!r}; there are {', '.join(known)}")
    return asked


def main(
    arguments: Sequence[str], why_not: Callable[[], str | None] = why_no_gpu, checks: Sequence[Check] = CHECKS
) -> int:
    """Run the checks and print the table; the exit code."""
    parser = argparse.ArgumentParser(prog="scripts/test-gpu", description=__doc__)
    parser.add_argument(
        "--json", metavar="FILE", type=Path, help="write what was shown; what FILE has of other checks stays"
    )
    parser.add_argument("--only", metavar="NAMES", type=_names_of, help="these checks alone, with commas between them")
    parser.add_argument("--within", metavar="SECONDS", type=float, default=WITHIN_S, help="end what is not through")
    parser.add_argument(
        "--record", metavar="FILE", type=Path, help="write what NVML says of this machine, and do no more"
    )
    parser.add_argument("--missing", action="store_true", help="print what is not installed here, and do no more")
    options = parser.parse_args(arguments)
    if options.missing:
        print(*missing({**RELAY, **DRIVER}))
        return 0
    if options.record:
        return record(options.record)
    asked = [check for check in checks if options.only is None or check.name in options.only]
    reason = why_not()
    report = Report(options.json)
    if reason:
        report.write(reason, {})
        _print_not_shown([check.shows for check in asked], reason)
        return NOTHING_SHOWN
    outcomes: list[Outcome] = []
    print(", ".join(f"{name} {value}" for name, value in machine().items()), flush=True)
    with tempfile.TemporaryDirectory(prefix="trainspan-gpu-", ignore_cleanup_errors=True) as folder:
        for outcome in run(asked, Bench(Path(folder)), options.within):
            outcomes.append(outcome)
            report.put(outcome)
            report.write(None, machine())
            print(*lines_of(outcome), sep="\n", flush=True)
    _print_not_shown([c.shows for c, o in zip(asked, outcomes, strict=True) if not o.rows], None)
    return 0 if all(outcome.holds for outcome in outcomes) else 1


def _print_not_shown(shows: Sequence[str], reason: str | None) -> None:
    print(*([f"nothing was run: {reason}"] if reason else []), "not shown here:", sep="\n")
    print(*(f"  {what}" for what in (*shows, *NOT_HERE)), sep="\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
