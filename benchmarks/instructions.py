"""How many instructions a step takes: the same training loop plain, recorded by trainspan, and with SDK spans.

Time tells what a step costs, and what else the machine was doing; a count of instructions tells only the first, to a
few hundred, on any machine, however busy. Each variant runs under valgrind's callgrind, which counts what the whole
process executes outside of the kernel. It counts only once the process is warm, and a number is the difference between
blocks of two lengths, so that what a block costs by itself is not in it.
"""

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from overhead import Worker

VARIANTS = ("plain", "trainspan", "sdk")
WARM_UP_STEPS = 100
SHORT_STEPS = 20


class Counter:
    """Counts the instructions of a process that runs under callgrind.

    Args:
        pid: of the process.
        profile: where callgrind writes.
    """

    def __init__(self, pid: int, profile: Path):
        self._pid = pid
        self._profile = profile
        self._tell("instrumentation", "on")

    def count(self, worker: Worker, steps: int) -> int:
        """Instructions of one block of so many steps."""
        self._tell("zero")
        worker.ask("block", steps)
        self._tell("dump")
        [dump] = self._profile.parent.glob(f"{self._profile.name}.*")
        found = re.search(r"^totals: (\d+)", dump.read_text(), re.MULTILINE)
        dump.unlink()
        if found is None:
            raise SystemExit(f"bench: callgrind has written no total into {dump}")
        return int(found[1])

    def _tell(self, *command: str) -> None:
        told = subprocess.run(["vgdb", f"--pid={self._pid}", *command], capture_output=True, text=True, check=False)
        if told.returncode:
            raise SystemExit(f"bench: valgrind does not take commands here: {told.stderr.strip()}")


def measure(variant: str, model: str, state: Path, steps: int, repeats: int) -> list[float]:
    """Instructions per step, `repeats` times."""
    profile = state / f"callgrind.{variant}.{model}"
    valgrind = ("valgrind", "--quiet", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={profile}")
    worker = Worker(variant, model, min(os.sched_getaffinity(0)), state, valgrind, WARM_UP_STEPS)
    counter = Counter(worker.pid, profile)
    counter.count(worker, SHORT_STEPS)  # valgrind translates
    found = []
    for _ in range(repeats):
        short = counter.count(worker, SHORT_STEPS)
        found.append((counter.count(worker, SHORT_STEPS + steps) - short) / steps)
    worker.close()
    return found


def main() -> int:
    """Run the benchmark; prints a table, or JSON."""
    parser = argparse.ArgumentParser(prog="scripts/bench instructions", description=__doc__.split("\n")[0])
    parser.add_argument("--model", choices=("mlp", "deep"), default="mlp", help="7 modules or 101 (default: mlp)")
    parser.add_argument("--steps", type=int, default=100, help="steps that are counted at a time (default: 100)")
    parser.add_argument("--repeats", type=int, default=3, help="counts of each variant (default: 3)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    if arguments.steps < 1 or arguments.repeats < 1:
        parser.error("--steps and --repeats need at least 1")
    if shutil.which("valgrind") is None or shutil.which("vgdb") is None:
        print("bench: this needs valgrind, which is not installed (Debian: apt install valgrind)", file=sys.stderr)
        return 2
    counts: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as state:
        for variant in VARIANTS:
            print(f"bench: {variant}: under valgrind, a minute or two", file=sys.stderr, flush=True)
            counts[variant] = measure(variant, arguments.model, Path(state), arguments.steps, arguments.repeats)
    result = summary(counts)
    print(json.dumps({"model": arguments.model, **result}, indent=2) if arguments.json else as_table(result))
    return 0


def summary(counts: dict[str, list[float]]) -> dict[str, Any]:
    """Instructions per step, the cost over plain, and the ratio of the costs."""
    medians = {name: statistics.median(found) for name, found in counts.items()}
    over = {name: round(medians[name] - medians["plain"]) for name in ("trainspan", "sdk")}
    return {
        "per_step": {
            name: {"median": round(medians[name]), "least": round(min(found)), "most": round(max(found))}
            for name, found in counts.items()
        },
        "over_plain": over,
        "ratio": round(over["sdk"] / over["trainspan"], 1) if over["trainspan"] > 0 else None,
    }


def as_table(result: dict[str, Any]) -> str:
    """The result for a person."""
    lines = [f"{'instructions per step':<24} {'median':>12} {'[least, most]':>26} {'over plain':>12}"]
    for name, row in result["per_step"].items():
        edges = f"[{row['least']:,}, {row['most']:,}]"
        over = f"{result['over_plain'][name]:,}" if name in result["over_plain"] else ""
        lines.append(f"{name:<24} {row['median']:>12,} {edges:>26} {over:>12}")
    lines.append(f"SDK spans cost {result['ratio'] or '-'} times what trainspan costs")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
