"""What trainspan costs a Python process at its start.

Interpreters are started in turn from two virtual environments, made for it: an empty one, and one that trainspan is
installed in. What a rank pays once torch is imported is taken inside it, by its CPU clock: torch itself takes seconds.
"""

import argparse
import compileall
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import venv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

SOURCES = Path(__file__).resolve().parent.parent / "src"
ENABLED = {"TRAINSPAN_ENABLED": "1"}
HELPER = "'multiprocessing.resource_tracker'"
# Most of what an empty program pays is Python's first look into its folders; who imports anything pays that anyway.
IMPORTS = "import argparse, json"
HOOK_TORCH = """
import os, time
import torch
os.environ["TRAINSPAN_ENABLED"] = "1"
begun_s = time.process_time()
from trainspan import startup
startup.start()
startup._torch_imported("rank", time.monotonic_ns())
print((time.process_time() - begun_s) * 1e3)
"""


class Case(NamedTuple):
    """An interpreter that runs `code` with `environ`; `installed`: in the environment that has trainspan."""

    code: str
    environ: Mapping[str, str]
    installed: bool = True


CASES = {
    "noise: without trainspan": Case("pass", {}, installed=False),
    "an empty program, TRAINSPAN_ENABLED unset": Case("pass", {}),
    "an empty program": Case("pass", ENABLED),
    "a program that imports argparse and json": Case(IMPORTS, ENABLED),
    "a helper (the resource tracker's command line)": Case(HELPER, ENABLED),
}
RANK = "a rank, when torch has been imported"


def environment_in(folder: Path, *, installed: bool) -> Path:
    """The interpreter of a virtual environment made in `folder`."""
    venv.create(folder, symlinks=True)
    if installed:
        (packages,) = folder.glob("lib/python*/site-packages")
        shutil.copytree(SOURCES / "trainspan", packages / "trainspan", ignore=shutil.ignore_patterns("__pycache__"))
        for hook in SOURCES.glob("trainspan.*"):
            shutil.copy(hook, packages)
        # An installer writes bytecode; a machine that forbids it would have every run compile the sources.
        compileall.compile_dir(packages / "trainspan", quiet=2)
    return folder / "bin" / "python"


def cpu_ms(python: Path, code: str, environ: Mapping[str, str]) -> float:
    """CPU time of one interpreter that runs `code`."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([python, "-c", code], env=environ, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1e3


def hooking_ms(environ: Mapping[str, str]) -> float:
    """CPU time of loading everything that a rank needs, and of hooking torch, in this benchmark's interpreter."""
    done = subprocess.run([sys.executable, "-c", HOOK_TORCH], env=environ, check=True, capture_output=True, text=True)
    return float(done.stdout)


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median and quartiles."""
    low, median, high = statistics.quantiles(values, n=4)
    return {"q1_ms": round(low, 2), "median_ms": round(median, 2), "q3_ms": round(high, 2)}


def measure(rounds: int) -> dict[str, dict[str, float]]:
    """What each case costs: over an interpreter of the empty environment that was started just before."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("TRAINSPAN_", "PYTHON"))}
    with tempfile.TemporaryDirectory() as folder:
        empty, full = (environment_in(Path(folder, str(has)), installed=has) for has in (False, True))
        costs: dict[str, list[float]] = {name: [] for name in CASES}
        for _ in range(rounds):
            for name, case in CASES.items():
                base = cpu_ms(empty, case.code, plain)
                environ = {**plain, **case.environ}
                costs[name].append(cpu_ms(full if case.installed else empty, case.code, environ) - base)
    costs[RANK] = [hooking_ms(plain) for _ in range(max(rounds // 10, 2))]
    return {name: spread(values) for name, values in costs.items()}


def main() -> int:
    """Run the benchmark; prints a table, or JSON."""
    parser = argparse.ArgumentParser(prog="scripts/bench startup", description=__doc__)
    parser.add_argument("--rounds", type=int, default=60, help="pairs of interpreters per case (default: 60)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    if arguments.rounds < 2:
        parser.error(f"--rounds needs at least 2, not {arguments.rounds}")
    result: dict[str, Any] = measure(arguments.rounds)
    if arguments.json:
        print(json.dumps(result, indent=2))
        return 0
    print("CPU ms that trainspan adds: median [quartiles]")
    for name, row in result.items():
        print(f"  {name:<48} {row['median_ms']:6.2f} [{row['q1_ms']:.2f}, {row['q3_ms']:.2f}]")
    return 0


if __name__ == "__main__":
    sys.exit(main())
