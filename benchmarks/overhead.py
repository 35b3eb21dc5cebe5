"""What trainspan costs a rank: the same training loop plain, recorded by trainspan, and with OpenTelemetry SDK spans.

Each variant is a process of its own, which stays what it is: putting hooks in and out would make Python specialise its
bytecode anew each time, and measure that. The processes take turns in short blocks of steps on one core, so that a
machine that slows down slows all of them, and a round's costs are differences within the round. Wall and CPU are those
of the whole process, so the exporter thread of the SDK counts; the CPU of the relay, a process too, is reported apart.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

VARIANTS = ("plain", "trainspan", "sdk")
FLAT_AT = (1_000, 10_000, 100_000, 1_000_000)


class Worker:
    """A process that runs one variant on command."""

    def __init__(self, variant: str, model: str, core: int, state: Path):
        environ = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("TRAINSPAN_", "OTEL_"))},
            "TRAINSPAN_DIR": str(state),
            "OTEL_METRIC_EXPORT_INTERVAL": "10000",
            "OMP_NUM_THREADS": "1",
            "PYTHONHASHSEED": "0",
        }
        command = [sys.executable, str(Path(__file__).with_name("training_loop.py")), variant, model]
        self._process = subprocess.Popen(
            command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        self.ready = self._read()
        # Pinned now: the relay, which the process has started meanwhile, has the other cores.
        os.sched_setaffinity(self._process.pid, {core})

    def ask(self, command: str, number: int) -> dict[str, Any]:
        """The worker's answer."""
        if self._process.stdin is None:
            raise SystemExit("bench: a worker has no input")
        self._process.stdin.write(json.dumps([command, number]) + "\n")
        return self._read()

    def close(self) -> None:
        """Let it end."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait(60)

    def _read(self) -> dict[str, Any]:
        line = self._process.stdout.readline() if self._process.stdout is not None else ""
        if not line:
            raise SystemExit(f"bench: a worker ended with exit code {self._process.wait(10)}")
        answer: dict[str, Any] = json.loads(line)
        return answer


def measure(
    workers: dict[str, Worker], rounds: int, steps: int, show: Callable[[str], None]
) -> tuple[dict[str, Any], int]:
    """Medians and quartiles of the costs over plain, their ratio, and how many steps were recorded."""
    order = list(workers)
    found: dict[str, list[dict[str, float]]] = {name: [] for name in workers}
    for number in range(rounds):
        for name in order:
            found[name].append(workers[name].ask("block", steps))
        order.append(order.pop(0))
        if number % 20 == 19:
            show(f"round {number + 1} of {rounds}")
    result: dict[str, Any] = {"plain_us": spread([cost["wall_us"] for cost in found["plain"]])}
    for clock in ("wall_us", "cpu_us"):
        over = {
            name: [cost[clock] - plain[clock] for cost, plain in zip(found[name], found["plain"], strict=True)]
            for name in ("trainspan", "sdk")
        }
        result[clock] = {name: spread(values) for name, values in over.items()}
        trainspan_us = result[clock]["trainspan"]["median"]
        result[clock]["ratio"] = round(result[clock]["sdk"]["median"] / trainspan_us, 1) if trainspan_us > 0 else None
    return result, rounds * steps


def spread(values: list[float]) -> dict[str, float]:
    """Median and quartiles."""
    low, median, high = statistics.quantiles(values, n=4)
    return {"q1": round(low, 2), "median": round(median, 2), "q3": round(high, 2)}


def measure_flatness(
    workers: dict[str, Worker], rounds: int, steps: int, show: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Trainspan's cost over plain after more and more steps; between, empty steps are recorded at full speed."""
    rows = []
    for target in FLAT_AT:
        workers["trainspan"].ask("skip", target)
        pairs = [
            (workers["plain"].ask("block", steps), workers["trainspan"].ask("block", steps)) for _ in range(rounds)
        ]
        costs = [after["cpu_us"] - before["cpu_us"] for before, after in pairs]
        rows.append({"after_steps": target, "cpu_us": spread(costs)})
        show(f"after {target:,} steps")
    return rows


def relay_pid(lock: Path) -> int:
    """Process id of the relay, once it has started and settled: its start is no cost of a step."""
    for _ in range(300):
        time.sleep(0.1)
        if text := lock.read_text():
            time.sleep(2)
            return int(text)
    raise SystemExit(f"bench: no relay has taken {lock} within 30 s")


def relay_cpu_s(pid: int) -> float:
    """CPU time process `pid` has used. Source: proc_pid_stat(5)."""
    text = Path(f"/proc/{pid}/stat").read_text()
    fields = text[text.rindex(")") + 2 :].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> int:
    """Run the benchmark; prints a table, or JSON."""
    parser = argparse.ArgumentParser(prog="scripts/bench overhead", description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=400, help="rounds of one block of each variant (default: 400)")
    parser.add_argument("--steps", type=int, default=20, help="steps in a block (default: 20)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--no-flatness", action="store_true", help="leave out the run to 1,000,000 steps")
    arguments = parser.parse_args()
    if arguments.rounds < 2 or arguments.steps < 1:
        parser.error(f"--rounds needs at least 2 and --steps at least 1, not {arguments.rounds} and {arguments.steps}")
    with tempfile.TemporaryDirectory() as state:
        result = run(arguments, Path(state))
    print(json.dumps(result, indent=2) if arguments.json else as_table(result))
    return 0


def run(arguments: argparse.Namespace, state: Path) -> dict[str, Any]:
    """Everything, with progress on stderr."""

    def show(text: str) -> None:
        print(f"bench: {text}", file=sys.stderr, flush=True)

    core = min(os.sched_getaffinity(0))
    result: dict[str, Any] = {"python": sys.version.split()[0], "models": {}}
    for model in ("mlp", "deep"):
        show(f"{model}: starting a process for each variant")
        workers = {variant: Worker(variant, model, core, state) for variant in VARIANTS}
        result["torch"] = workers["plain"].ready["torch"]
        relay = relay_pid(Path(workers["trainspan"].ready["recording_dir"]) / "relay.lock")
        before_s = relay_cpu_s(relay)
        row, recorded = measure(
            workers, arguments.rounds, arguments.steps, lambda text, model=model: show(f"{model}: {text}")
        )
        time.sleep(1)
        row["relay_cpu_us"] = round((relay_cpu_s(relay) - before_s) / recorded * 1e6, 1)
        result["models"][model] = row
        if model == "mlp" and not arguments.no_flatness:
            result["flatness"] = measure_flatness(workers, max(arguments.rounds // 2, 2), arguments.steps, show)
        for worker in workers.values():
            worker.close()
    return result


def as_table(result: dict[str, Any]) -> str:
    """The result for a person."""
    lines = [
        f"torch {result['torch']}, Python {result['python']}; µs per step over plain: median [quartiles]",
        "",
        f"{'model':<6} {'clock':<5} {'plain':>7} {'trainspan':>22} {'SDK spans':>24} {'ratio':>6} {'relay CPU':>10}",
    ]
    for model, row in result["models"].items():
        for clock in ("wall_us", "cpu_us"):
            cells = row[clock]
            plain = f"{row['plain_us']['median']:.0f}" if clock == "wall_us" else ""
            relay = f"{row['relay_cpu_us']:.1f}" if clock == "cpu_us" else ""
            lines.append(
                f"{model:<6} {clock.removesuffix('_us'):<5} {plain:>7} {_cell(cells['trainspan']):>22} "
                f"{_cell(cells['sdk']):>24} {cells['ratio'] or '-':>6} {relay:>10}"
            )
    lines += [f"after {row['after_steps']:>9,} steps: {_cell(row['cpu_us'])} CPU" for row in result.get("flatness", [])]
    return "\n".join(lines)


def _cell(values: dict[str, float]) -> str:
    return f"{values['median']:.1f} [{values['q1']:.1f}, {values['q3']:.1f}]"


if __name__ == "__main__":
    sys.exit(main())
