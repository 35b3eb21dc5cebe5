"""The table of `scripts/test-gpu`: every check that needs a GPU, in one go.

Exit code: 0 all holds; 1 something does not; 2 a wrong argument; 3 there is no GPU, so nothing was shown.
"""

import argparse
import dataclasses
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tests.gpu.checks import CHECKS, NOT_HERE, Check, Row
from trainspan.testing.nvml_recording import recording_of

NOTHING_SHOWN = 3


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """One check that was run, or was not. `why_not`: what kept it from being run, or from coming to its end."""

    check: str
    rows: tuple[Row, ...]
    why_not: str | None

    @property
    def holds(self) -> bool:
        """Whether all it asks for is so."""
        return self.why_not is None and all(row.holds is not False for row in self.rows)


def why_no_gpu() -> str | None:
    """Why nothing can be run here; None: it can."""
    try:
        import torch
    except ImportError:
        return "torch is not installed"
    return None if torch.cuda.is_available() else "this machine has no GPU that torch can use"


def record(path: Path) -> int:
    """Write the recording of this machine's GPUs; the exit code."""
    import pynvml

    try:
        pynvml.nvmlInit()
        recording = recording_of(pynvml)
    except pynvml.NVMLError as error:
        print(f"nothing was recorded: {error}", file=sys.stderr)
        return NOTHING_SHOWN
    path.write_text(json.dumps(recording, indent=1) + "\n")
    print(f"{len(recording['devices'])} GPUs recorded in {path}; their UUIDs are in it")
    return 0


def run(checks: Sequence[Check], state: Path) -> Iterator[Outcome]:
    """What became of each check."""
    for number, check in enumerate(checks):
        rows: list[Row] = []
        try:
            rows.extend(check.rows(state / str(number)))
        except Exception as error:  # noqa: BLE001 - one that breaks must not hide what the others show
            yield Outcome(check.name, tuple(rows), f"{type(error).__name__}: {error}"[-2000:])
        else:
            yield Outcome(check.name, tuple(rows), None)


def lines_of(outcome: Outcome) -> Iterator[str]:
    """One outcome as lines of the table."""
    for row in outcome.rows:
        verdict = {True: "holds", False: "FAILS", None: ""}[row.holds]
        yield f"{verdict:<6} {row.what:<42} {row.measured}" + (f" (bound: {row.bound})" if row.bound else "")
    if outcome.why_not is not None:
        yield f"FAILS  {outcome.check:<42} broke off: {outcome.why_not}"


def main(arguments: Sequence[str], why_not: Callable[[], str | None] = why_no_gpu) -> int:
    """Run the checks and print the table; the exit code."""
    parser = argparse.ArgumentParser(prog="scripts/test-gpu", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--only", metavar="NAME", choices=[check.name for check in CHECKS], help="one check alone")
    parser.add_argument("--record", metavar="FILE", help="write what NVML says of this machine, for tests/data/nvml")
    options = parser.parse_args(arguments)
    if options.record:
        return record(Path(options.record))
    checks = [check for check in CHECKS if options.only in {None, check.name}]
    reason = why_not()
    missing = [check.shows for check in checks] if reason else []
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory(prefix="trainspan-gpu-") as folder:
        for outcome in run(checks, Path(folder)) if not reason else ():
            outcomes.append(outcome)
            if not options.json:
                print(*lines_of(outcome), sep="\n", flush=True)
    not_shown = [*missing, *NOT_HERE]
    if options.json:
        written = [{"check": o.check, "rows": [r._asdict() for r in o.rows], "why_not": o.why_not} for o in outcomes]
        print(json.dumps({"why_not": reason, "outcomes": written, "not_shown": not_shown}, indent=2))
    else:
        print(*([f"nothing was run: {reason}"] if reason else []), "not shown here:", sep="\n")
        print(*(f"  {what}" for what in not_shown), sep="\n")
    if reason:
        return NOTHING_SHOWN
    return 0 if all(outcome.holds for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
