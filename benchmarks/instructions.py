"""How many instructions a step takes: the same training loop plain, recorded by trainspan, and with SDK spans.

Time tells what a step costs, and what else the machine was doing; a count of instructions tells only the first, to a
few hundred, on any machine, however busy. Each variant runs under valgrind's callgrind, which counts what the whole
process executes outside of the kernel. It counts only once the process is warm, and a number is the difference between
blocks of two lengths, so that what a block costs by itself is not in it.

What gives memory and takes it back is counted apart: how long that searches depends on where the memory of the process
happens to lie. Of one program it took 9,000 a step more in one start than in another; all the rest agrees to 1 %.
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
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from overhead import Worker

VARIANTS = ("plain", "trainspan", "sdk")
COSTS = ("trainspan", "sdk")
WARM_UP_STEPS = 100
SHORT_STEPS = 20
_C_LIBRARY = re.compile(r"/libc[.-][^/]*$")
_PYTHON_ALLOCATOR = re.compile(r"_?Py(Object|Mem)_(Raw)?(Malloc|Calloc|Realloc|Free)\b")


class Count(NamedTuple):
    """Instructions: of the work itself, and of what gives memory and takes it back."""

    work: float
    memory: float

    def per_step(self, shorter: "Count", steps: int) -> "Count":
        """What each of so many steps took, by which this block is longer."""
        return Count((self.work - shorter.work) / steps, (self.memory - shorter.memory) / steps)


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

    def count(self, worker: Worker, steps: int) -> Count:
        """Instructions of one block of so many steps."""
        self._tell("zero")
        worker.ask("block", steps)
        self._tell("dump")
        [dump] = self._profile.parent.glob(f"{self._profile.name}.*")
        with dump.open() as lines:
            count = count_in(lines)
        dump.unlink()
        return count

    def stop(self) -> None:
        """Count no more: the process then ends in seconds."""
        self._tell("instrumentation", "off")

    def _tell(self, *command: str) -> None:
        told = subprocess.run(["vgdb", f"--pid={self._pid}", *command], capture_output=True, text=True, check=False)
        if told.returncode:
            raise SystemExit(f"bench: valgrind does not take commands here: {told.stderr.strip()}")


def count_in(dump: Iterable[str]) -> Count:
    """What a dump of callgrind adds up to.

    Source: https://valgrind.org/docs/manual/cl-format.html. A name is written once, behind a number that stands for it
    from then on; the line behind `calls=` is what the callee took, which is also counted there.
    """
    names: dict[tuple[str, str], str] = {}
    now = {"ob": "", "fn": ""}
    found = {True: 0, False: 0}  # by whether it is an allocator's
    total = None
    is_callee = False
    for line in dump:
        key, _, value = line.rstrip().partition("=")
        if key in ("ob", "fn", "cob", "cfn"):
            number, _, name = value.partition(" ")
            known = names.setdefault((key[-2:], number), name)
            if key in now:
                now[key] = known
        elif key == "calls":
            is_callee = True
        elif line[0] in "0123456789+-*":
            if not is_callee:
                allocates = _C_LIBRARY.search(now["ob"]) or _PYTHON_ALLOCATOR.match(now["fn"])
                found[bool(allocates)] += int(line.split()[1])
            is_callee = False
        elif line.startswith("totals: "):
            total = int(line.split()[1])
    if total != sum(found.values()):
        raise SystemExit(f"bench: callgrind's dump has {sum(found.values())} instructions and says {total}")
    return Count(found[False], found[True])


def measure(variant: str, model: str, state: Path, steps: int, repeats: int) -> list[Count]:
    """Instructions per step, `repeats` times."""
    profile = state / f"callgrind.{variant}.{model}"
    valgrind = ("valgrind", "--quiet", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={profile}")
    worker = Worker(variant, model, min(os.sched_getaffinity(0)), state, valgrind, WARM_UP_STEPS)
    counter = Counter(worker.pid, profile)
    counter.count(worker, SHORT_STEPS)  # valgrind translates
    found = []
    for _ in range(repeats):
        short = counter.count(worker, SHORT_STEPS)
        found.append(counter.count(worker, SHORT_STEPS + steps).per_step(short, steps))
    counter.stop()
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
    counts: dict[str, list[Count]] = {}
    with tempfile.TemporaryDirectory() as state:
        for variant in VARIANTS:
            print(f"bench: {variant}: under valgrind, a minute or two", file=sys.stderr, flush=True)
            counts[variant] = measure(variant, arguments.model, Path(state), arguments.steps, arguments.repeats)
    result = summary(counts)
    print(json.dumps({"model": arguments.model, **result}, indent=2) if arguments.json else as_table(result))
    return 0


def summary(counts: dict[str, list[Count]]) -> dict[str, Any]:
    """Instructions per step, the cost over plain, and the ratio of the costs; the allocators' apart."""
    work = {name: [count.work for count in found] for name, found in counts.items()}
    over, over_memory = ({name: over_plain(counts, name, part) for name in COSTS} for part in Count._fields)
    return {
        "per_step": {
            name: {"median": round(statistics.median(found)), "least": round(min(found)), "most": round(max(found))}
            for name, found in work.items()
        },
        "over_plain": over,
        "memory_over_plain": over_memory,
        "ratio": round(over["sdk"] / over["trainspan"], 1) if over["trainspan"] > 0 else None,
    }


def over_plain(counts: dict[str, list[Count]], name: str, part: str) -> int:
    """What a variant costs: the difference of the medians."""
    median, plain = (statistics.median(getattr(count, part) for count in counts[of]) for of in (name, "plain"))
    return round(median - plain)


def as_table(result: dict[str, Any]) -> str:
    """The result for a person."""
    head = ("median", "[least, most]", "over plain", "allocators over plain")
    lines = ["{:<22} {:>12} {:>24} {:>12} {:>22}".format("instructions per step", *head)]
    for name, row in result["per_step"].items():
        edges = f"[{row['least']:,}, {row['most']:,}]"
        over, memory = (
            f"{result[part][name]:,}" if name in COSTS else "" for part in ("over_plain", "memory_over_plain")
        )
        lines.append(f"{name:<22} {row['median']:>12,} {edges:>24} {over:>12} {memory:>22}".rstrip())
    lines.append(f"SDK spans cost {result['ratio'] or '-'} times what trainspan costs, without the allocators")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
