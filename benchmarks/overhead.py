"""What trainspan costs a rank: the same training loop plain, recorded by trainspan, and with OpenTelemetry SDK spans.

The three variants take turns in blocks of steps, so that a machine that slows down slows all of them; a round's costs
are differences within the round. Wall and CPU are those of the whole process, so the SDK's exporter thread counts; the
relay is a process of its own, and its CPU is reported apart.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from trainspan.record import bootstrap

FLAT_AT = (1_000, 10_000, 100_000, 1_000_000)
WARM_UP_STEPS = 20


class Cost(NamedTuple):
    """µs per step of a whole process."""

    wall_us: float
    cpu_us: float


class Batches(IterableDataset[tuple[torch.Tensor, torch.Tensor]]):
    """The same batch for ever: the loop under test waits for nothing."""

    def __init__(self, width: int):
        self.batch = torch.randn(8, width), torch.randn(8, width)

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        while True:
            yield self.batch


def make_model(name: str) -> tuple[nn.Module, int]:
    """A model and its width: `mlp` has 7 modules, `deep` has 101."""
    width, pairs = {"mlp": (64, 3), "deep": (32, 50)}[name]
    layers: list[nn.Module] = []
    for _ in range(pairs):
        layers += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*layers), width


class Loop:
    """A training loop that can run plain or with the spans of an OpenTelemetry tracer around its phases."""

    def __init__(self, model_name: str):
        torch.manual_seed(0)
        self.model, width = make_model(model_name)
        self.parameters = list(self.model.parameters())
        self.optimizer = torch.optim.SGD(self.parameters, lr=1e-3)
        self.batches = iter(DataLoader(Batches(width), batch_size=None))

    def run(self, steps: int) -> None:
        """Take `steps` steps."""
        for _ in range(steps):
            x, y = next(self.batches)
            loss = nn.functional.mse_loss(self.model(x), y)
            loss.backward()
            nn.utils.clip_grad_norm_(self.parameters, 1.0)
            self.optimizer.step()
            self.optimizer.zero_grad()

    def run_traced(self, steps: int, span: Callable[[str], Any]) -> None:
        """Take `steps` steps with a span around each and around each phase, as one would write it by hand."""
        for _ in range(steps):
            with span("step"):
                with span("data_wait"):
                    x, y = next(self.batches)
                with span("forward"):
                    output = self.model(x)
                loss = nn.functional.mse_loss(output, y)
                with span("backward"):
                    loss.backward()
                with span("grad_clip"):
                    nn.utils.clip_grad_norm_(self.parameters, 1.0)
                with span("optimizer"):
                    self.optimizer.step()
                self.optimizer.zero_grad()


def timed(action: Callable[[int], None], steps: int) -> Cost:
    """What one step of `action(steps)` takes."""
    cpu = time.process_time_ns()
    wall = time.perf_counter_ns()
    action(steps)
    wall = time.perf_counter_ns() - wall
    cpu = time.process_time_ns() - cpu
    return Cost(wall / steps / 1e3, cpu / steps / 1e3)


def sdk_span() -> Callable[[str], Any]:
    """`start_as_current_span` of a tracer whose batch processor hands its spans to an exporter that drops them."""
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

    class Discard(SpanExporter):
        def export(self, spans: Any) -> SpanExportResult:
            del spans
            return SpanExportResult.SUCCESS

    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(Discard()))
    return provider.get_tracer("bench").start_as_current_span


class Bench:
    """One model's three variants."""

    def __init__(self, model_name: str, recorder: Any):
        self.loop = Loop(model_name)
        self.recorder = recorder
        self.span = sdk_span()

    def plain(self, steps: int) -> Cost:
        """The loop as it is."""
        self.loop.run(WARM_UP_STEPS)
        return timed(self.loop.run, steps)

    def recorded(self, steps: int) -> Cost:
        """The loop with trainspan's hooks in torch."""
        patches = bootstrap.place_hooks(self.recorder)
        try:
            self.loop.run(WARM_UP_STEPS)
            return timed(self.loop.run, steps)
        finally:
            patches.undo()

    def traced(self, steps: int) -> Cost:
        """The loop with SDK spans."""
        self.loop.run_traced(WARM_UP_STEPS, self.span)
        return timed(lambda count: self.loop.run_traced(count, self.span), steps)


def measure(bench: Bench, rounds: int, steps: int, show: Callable[[str], None]) -> dict[str, Any]:
    """Medians and quartiles of the costs over plain, and of their ratio."""
    variants = {"plain": bench.plain, "trainspan": bench.recorded, "sdk": bench.traced}
    order = list(variants)
    found: dict[str, list[Cost]] = {name: [] for name in variants}
    for round_number in range(rounds):
        for name in order:
            found[name].append(variants[name](steps))
        order.append(order.pop(0))
        show(f"round {round_number + 1} of {rounds}")
    result: dict[str, Any] = {"plain_us": {"wall": _spread([c.wall_us for c in found["plain"]])}}
    for clock in ("wall", "cpu"):
        costs = {
            name: [_of(c, clock) - _of(p, clock) for c, p in zip(found[name], found["plain"], strict=True)]
            for name in ("trainspan", "sdk")
        }
        result[clock] = {name: _spread(values) for name, values in costs.items()}
        result[clock]["ratio"] = result[clock]["sdk"]["median"] / max(result[clock]["trainspan"]["median"], 1e-9)
    return result


def _of(cost: Cost, clock: str) -> float:
    return cost.wall_us if clock == "wall" else cost.cpu_us


def _spread(values: list[float]) -> dict[str, float]:
    low, median, high = statistics.quantiles(values, n=4)
    return {"q1": round(low, 2), "median": round(median, 2), "q3": round(high, 2)}


def measure_flatness(bench: Bench, rounds: int, steps: int, show: Callable[[str], None]) -> list[dict[str, Any]]:
    """Trainspan's cost over plain after more and more steps; between, empty steps are recorded at full speed."""
    marker = bench.recorder.marker
    rows = []
    for target in FLAT_AT:
        while marker.steps() < target:
            marker.step(marker.enter(1))
        costs = []
        for _ in range(rounds):
            plain, recorded = bench.plain(steps), bench.recorded(steps)
            costs.append(recorded.cpu_us - plain.cpu_us)
        rows.append({"after_steps": target, "cpu_us": _spread(costs)})
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
    parser.add_argument("--rounds", type=int, default=30, help="rounds of one block of each variant (default: 30)")
    parser.add_argument("--steps", type=int, default=200, help="steps in a block (default: 200)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--no-flatness", action="store_true", help="leave out the run to 1,000,000 steps")
    arguments = parser.parse_args()
    if arguments.rounds < 2 or arguments.steps < 1:
        parser.error(f"--rounds needs at least 2 and --steps at least 1, not {arguments.rounds} and {arguments.steps}")
    with tempfile.TemporaryDirectory() as state:
        os.environ |= {"TRAINSPAN_DIR": state, "OTEL_METRIC_EXPORT_INTERVAL": "10000"}
        torch.set_num_threads(1)
        result = run(arguments)
    print(json.dumps(result, indent=2) if arguments.json else as_table(result))
    return 0


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Everything, with progress on stderr."""

    def show(text: str) -> None:
        print(f"\r{text:<60}", end="", file=sys.stderr, flush=True)

    recorder = bootstrap.make_recorder()
    recorder.begin()
    relay = relay_pid(recorder.directory / "relay.lock")
    result: dict[str, Any] = {"torch": torch.__version__, "python": sys.version.split()[0], "models": {}}
    for name in ("mlp", "deep"):
        before_s, before_steps = relay_cpu_s(relay), recorder.marker.steps()
        bench = Bench(name, recorder)
        row = measure(bench, arguments.rounds, arguments.steps, lambda text, name=name: show(f"{name}: {text}"))
        time.sleep(1)
        row["relay_cpu_us"] = round((relay_cpu_s(relay) - before_s) / (recorder.marker.steps() - before_steps) * 1e6, 2)
        result["models"][name] = row
    if not arguments.no_flatness:
        bench = Bench("mlp", recorder)
        result["flatness"] = measure_flatness(bench, max(arguments.rounds // 3, 2), arguments.steps, show)
    recorder.close()
    show("")
    print("\r", end="", file=sys.stderr)
    return result


def as_table(result: dict[str, Any]) -> str:
    """The result for a person."""
    lines = [f"torch {result['torch']}, Python {result['python']}; µs per step: median [quartiles] over plain", ""]
    lines.append(
        f"{'model':<6} {'clock':<5} {'plain':>8} {'trainspan':>22} {'SDK spans':>24} {'ratio':>6} {'relay':>7}"
    )
    for name, row in result["models"].items():
        for clock in ("wall", "cpu"):
            cells = row[clock]
            plain = f"{row['plain_us']['wall']['median']:.0f}" if clock == "wall" else ""
            relay = f"{row['relay_cpu_us']:.1f}" if clock == "cpu" else ""
            lines.append(
                f"{name:<6} {clock:<5} {plain:>8} {_cell(cells['trainspan']):>22} {_cell(cells['sdk']):>24} "
                f"{cells['ratio']:>6.1f} {relay:>7}"
            )
    lines += [f"after {row['after_steps']:>9,} steps: {_cell(row['cpu_us'])} CPU" for row in result.get("flatness", [])]
    return "\n".join(lines)


def _cell(spread: dict[str, float]) -> str:
    return f"{spread['median']:.1f} [{spread['q1']:.1f}, {spread['q3']:.1f}]"


if __name__ == "__main__":
    sys.exit(main())
