"""What trainspan costs a rank: the same training loop plain, recorded by trainspan, and with OpenTelemetry SDK spans.

Each variant is a process of its own, which stays what it is: putting hooks in and out would make Python specialise its
bytecode anew each time, and measure that. The processes take turns in short blocks of steps on one core, so that a
machine that slows down slows all of them, and a round's costs are differences within the round. Wall and CPU are those
of the whole process, so the exporter thread of the SDK counts; the CPU of the relay, a process too, is reported apart.

Two equal processes differ for their whole lives, by where their memory lies: more than trainspan costs. So each variant
is started several times, and a number is the median over the starts, each of which is the median of its rounds. A
second plain process is started each time: what it seems to cost is the noise, and is printed beside the rest.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

VARIANTS = {"plain": "plain", "control": "plain", "trainspan": "trainspan", "sdk": "sdk"}
"""What the processes are called, and what they run."""

COSTS = ("control", "trainspan", "sdk")
CLOCKS = ("wall_us", "cpu_us")
MODELS = ("mlp", "deep")
FLAT_AT = (1_000, 10_000, 100_000, 1_000_000)


class Worker:
    """A process that runs one variant on command.

    Args:
        variant: what it runs; `model`: of the loop.
        core: that it is bound to.
        state: directory for its recordings.
        under: a command that runs it, as a profiler does.
        warm_up_steps: before it is ready.
    """

    def __init__(
        self, variant: str, model: str, core: int, state: Path, under: Sequence[str] = (), warm_up_steps: int = 500
    ):
        environ = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("TRAINSPAN_", "OTEL_"))},
            "TRAINSPAN_DIR": str(state),
            "OTEL_METRIC_EXPORT_INTERVAL": "10000",
            "OMP_NUM_THREADS": "1",
            "PYTHONHASHSEED": "0",
        }
        script = str(Path(__file__).with_name("training_loop.py"))
        self._process = subprocess.Popen(
            [*under, sys.executable, script, variant, model, str(warm_up_steps)],
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        self.pid = self._process.pid
        self.ready = self._read()
        # Pinned now: the relay, which the process has started meanwhile, has the other cores.
        os.sched_setaffinity(self.pid, {core})

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
        self._process.wait(300)

    def _read(self) -> dict[str, Any]:
        line = self._process.stdout.readline() if self._process.stdout is not None else ""
        if not line:
            raise SystemExit(f"bench: a worker ended with exit code {self._process.wait(10)}")
        answer: dict[str, Any] = json.loads(line)
        return answer


def measure_start(workers: dict[str, Worker], rounds: int, steps: int) -> dict[str, dict[str, float]]:
    """The medians of one start of every variant, µs: of plain itself, of the others over it."""
    order = list(workers)
    found: dict[str, list[dict[str, float]]] = {name: [] for name in workers}
    for _ in range(rounds):
        for name in order:
            found[name].append(workers[name].ask("block", steps))
        order.append(order.pop(0))
    return {
        clock: {
            name: statistics.median(
                cost[clock] - (plain[clock] if name != "plain" else 0)
                for cost, plain in zip(found[name], found["plain"], strict=True)
            )
            for name in workers
        }
        for clock in CLOCKS
    }


def summary(starts: list[dict[str, dict[str, float]]]) -> dict[str, Any]:
    """Medians and quartiles over the starts, and how many times the cost of trainspan that of the SDK is."""
    result: dict[str, Any] = {"plain_us": spread([start["wall_us"]["plain"] for start in starts])}
    for clock in CLOCKS:
        result[clock] = {name: spread([start[clock][name] for start in starts]) for name in COSTS}
        ours, theirs = result[clock]["trainspan"]["median"], result[clock]["sdk"]["median"]
        # A cost that does not stand out of the noise has no ratio.
        noise = max(abs(result[clock]["control"][edge]) for edge in ("q1", "q3"))
        result[clock]["ratio"] = round(theirs / ours, 1) if ours > noise else None
    return result


def spread(values: list[float]) -> dict[str, float]:
    """Median and quartiles."""
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
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
    parser.add_argument("--model", choices=MODELS, help="7 modules (mlp) or 101 (deep); default: one after the other")
    parser.add_argument("--starts", type=int, help="processes of each variant, one after the other (default: 8)")
    parser.add_argument("--rounds", type=int, help="rounds of one block of each variant, in each start (default: 60)")
    parser.add_argument("--steps", type=int, default=20, help="steps in a block (default: 20)")
    parser.add_argument(
        "--quick", action="store_true", help="3 starts of 20 rounds, without the run to 1,000,000 steps"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--no-flatness", action="store_true", help="leave out the run to 1,000,000 steps")
    arguments = parser.parse_args()
    arguments.starts = arguments.starts or (3 if arguments.quick else 8)
    arguments.rounds = arguments.rounds or (20 if arguments.quick else 60)
    if arguments.starts < 2 or arguments.rounds < 2 or arguments.steps < 1:
        parser.error("--starts and --rounds need at least 2, and --steps at least 1")
    with tempfile.TemporaryDirectory() as state:
        result = run(arguments, Path(state))
    print(json.dumps(result, indent=2) if arguments.json else as_table(result))
    return 0


def run(arguments: argparse.Namespace, state: Path) -> dict[str, Any]:
    """Everything, with progress on stderr."""

    def show(text: str) -> None:
        print(f"bench: {text}", file=sys.stderr, flush=True)

    core = min(os.sched_getaffinity(0))
    result: dict[str, Any] = {
        "python": sys.version.split()[0],
        "starts": arguments.starts,
        "rounds": arguments.rounds,
        "steps": arguments.steps,
        "models": {},
    }
    for model in (arguments.model,) if arguments.model else MODELS:
        starts, relay_us = [], []
        for number in range(arguments.starts):
            show(f"{model}: start {number + 1} of {arguments.starts}")
            # The process that is started first is another one each time: what comes early finds another machine.
            names = list(VARIANTS)[number % len(VARIANTS) :] + list(VARIANTS)[: number % len(VARIANTS)]
            workers = {name: Worker(VARIANTS[name], model, core, state) for name in names}
            result["torch"] = workers["plain"].ready["torch"]
            relay = relay_pid(Path(workers["trainspan"].ready["recording_dir"]) / "relay.lock")
            before_s = relay_cpu_s(relay)
            starts.append(measure_start(workers, arguments.rounds, arguments.steps))
            time.sleep(1)  # for what the relay has not read yet
            relay_us.append((relay_cpu_s(relay) - before_s) / (arguments.rounds * arguments.steps) * 1e6)
            is_last = number == arguments.starts - 1
            if model == "mlp" and is_last and not (arguments.no_flatness or arguments.quick):
                result["flatness"] = measure_flatness(workers, arguments.rounds, arguments.steps, show)
            for worker in workers.values():
                worker.close()
        result["models"][model] = {**summary(starts), "relay_cpu_us": spread(relay_us)}
    return result


def as_table(result: dict[str, Any]) -> str:
    """The result for a person."""
    how = f"{result['starts']} starts, each of {result['rounds']} rounds of {result['steps']} steps"
    lines = [
        f"torch {result['torch']}, Python {result['python']}; µs per step over plain: median [quartiles] of {how}",
        "",
        f"{'model':<6} {'clock':<5} {'plain':>7} {'noise':>22} {'trainspan':>22} {'SDK spans':>24} {'ratio':>6}",
    ]
    for model, row in result["models"].items():
        for clock in CLOCKS:
            cells = row[clock]
            plain = f"{row['plain_us']['median']:.0f}" if clock == "wall_us" else ""
            lines.append(
                f"{model:<6} {clock.removesuffix('_us'):<5} {plain:>7} {_cell(cells['control']):>22} "
                f"{_cell(cells['trainspan']):>22} {_cell(cells['sdk']):>24} {cells['ratio'] or '-':>6}"
            )
        lines.append(f"{model:<6} the relay, a process of its own: {_cell(row['relay_cpu_us'])} CPU")
    lines.append("noise: what a second plain process seems to cost over the first; a ratio needs a cost above it.")
    lines += [f"after {row['after_steps']:>9,} steps: {_cell(row['cpu_us'])} CPU" for row in result.get("flatness", [])]
    return "\n".join(lines)


def _cell(values: dict[str, float]) -> str:
    return f"{values['median']:.1f} [{values['q1']:.1f}, {values['q3']:.1f}]"


if __name__ == "__main__":
    sys.exit(main())
