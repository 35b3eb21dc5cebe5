"""What trainspan costs a Python process before torch is imported: interpreters started in pairs, with and without it."""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
from typing import Any

CASES = {
    "any process (python -c pass), TRAINSPAN_ENABLED unset": ("pass", {}),
    "any process (python -c pass)": ("pass", {"TRAINSPAN_ENABLED": "1"}),
    "a helper (resource tracker's command line)": (
        "'multiprocessing.resource_tracker'",
        {"TRAINSPAN_ENABLED": "1"},
    ),
    "what a rank loads once torch is imported": (
        # The modules only; torch itself is not imported, so that its seconds do not hide our milliseconds.
        "import trainspan.record.recorder, trainspan.record.marker, trainspan.settings, trainspan.identity",
        {"TRAINSPAN_ENABLED": "1"},
    ),
}


def cpu_ms(code: str, environ: dict[str, str]) -> float:
    """CPU time of one interpreter that runs `code`."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code], env=environ, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1e3


def measure(code: str, extra: dict[str, str], rounds: int) -> dict[str, float]:
    """Median and quartiles of the difference to `python -c pass` without trainspan's switch."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("TRAINSPAN_")}
    differences = []
    for _ in range(rounds):
        base = cpu_ms("pass", plain)
        differences.append(cpu_ms(code, plain | extra) - base)
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
    result: dict[str, Any] = {name: measure(code, extra, arguments.rounds) for name, (code, extra) in CASES.items()}
    if arguments.json:
        print(json.dumps(result, indent=2))
        return 0
    print("CPU ms over a plain `python -c pass`: median [quartiles]")
    for name, row in result.items():
        print(f"  {name:<56} {row['median_ms']:6.2f} [{row['q1_ms']:.2f}, {row['q3_ms']:.2f}]")
    return 0


if __name__ == "__main__":
    sys.exit(main())
