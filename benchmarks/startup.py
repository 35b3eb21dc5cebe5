"""What trainspan costs a Python process at its start: interpreters started in pairs, with and without it."""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

ENABLED = {"TRAINSPAN_ENABLED": "1"}
# What `import torch` has loaded already by the time ours are loaded; torch itself would hide our milliseconds.
OF_TORCH = "import dataclasses, hashlib, inspect, json, subprocess, tempfile, threading, traceback, typing"
OF_RANK = "import trainspan.record.bootstrap, trainspan.record.recorder"


class Case(NamedTuple):
    """`code` with `environ` against `base` without trainspan's switch."""

    base: str
    code: str
    environ: Mapping[str, str]


CASES = {
    "any process, TRAINSPAN_ENABLED unset": Case("pass", "pass", {}),
    "any process": Case("pass", "pass", ENABLED),
    "a helper (the resource tracker's command line)": Case(
        "'multiprocessing.resource_tracker'", "'multiprocessing.resource_tracker'", ENABLED
    ),
    "a rank, after torch was imported": Case(OF_TORCH, f"{OF_TORCH}; {OF_RANK}", ENABLED),
}


def cpu_ms(code: str, environ: dict[str, str]) -> float:
    """CPU time of one interpreter that runs `code`."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code], env=environ, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1e3


def measure(case: Case, rounds: int) -> dict[str, float]:
    """Median and quartiles of what the case costs over its base."""
    # Bytecode is written at installation; a machine that forbids it here would have every run compile the sources.
    plain = {n: v for n, v in os.environ.items() if not n.startswith(("TRAINSPAN_", "PYTHONDONTWRITEBYTECODE"))}
    cpu_ms(case.code, {**plain, **case.environ})
    differences = []
    for _ in range(rounds):
        base = cpu_ms(case.base, plain)
        differences.append(cpu_ms(case.code, {**plain, **case.environ}) - base)
    low, median, high = statistics.quantiles(differences, n=4)
    return {"q1_ms": round(low, 2), "median_ms": round(median, 2), "q3_ms": round(high, 2)}


def main() -> int:
    """Run the benchmark; prints a table, or JSON."""
    parser = argparse.ArgumentParser(prog="scripts/bench startup", description=__doc__)
    parser.add_argument("--rounds", type=int, default=60, help="pairs of interpreters per case (default: 60)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    if arguments.rounds < 2:
        parser.error(f"--rounds needs at least 2, not {arguments.rounds}")
    result: dict[str, Any] = {name: measure(case, arguments.rounds) for name, case in CASES.items()}
    if arguments.json:
        print(json.dumps(result, indent=2))
        return 0
    print("CPU ms over the same interpreter without trainspan: median [quartiles]")
    for name, row in result.items():
        print(f"  {name:<56} {row['median_ms']:6.2f} [{row['q1_ms']:.2f}, {row['q3_ms']:.2f}]")
    return 0


if __name__ == "__main__":
    sys.exit(main())
