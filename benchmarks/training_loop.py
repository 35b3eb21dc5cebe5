"""The training loop whose cost is measured, and the process that runs it on command."""

import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset


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


class Worker:
    """One variant of one model, for the life of the process."""

    def __init__(self, variant: str, model_name: str, warm_up_steps: int):
        self.recorder: Any = None
        loop = Loop(model_name)
        self.run: Callable[[int], None] = loop.run
        if variant == "sdk":
            span = sdk_span()
            self.run = lambda steps: loop.run_traced(steps, span)
        if variant == "trainspan":
            # By hand what the start-up hook does: this process has imported torch already.
            from trainspan.record import bootstrap

            self.recorder = bootstrap.make_recorder()
            self.recorder.begin()
            bootstrap.place_hooks(self.recorder)
        self.run(warm_up_steps)

    def answer(self, command: str, number: int) -> dict[str, Any]:
        """Do what was asked: `block` takes steps and times them, `skip` records empty steps up to a number."""
        if command == "block":
            return timed(self.run, number)._asdict()
        marker = self.recorder.marker
        while marker.steps() < number:
            marker.step(marker.enter(1))
        return {"steps": marker.steps()}


def main() -> None:
    """Answer commands (JSON lines on stdin) until the input ends."""
    torch.set_num_threads(1)
    worker = Worker(sys.argv[1], sys.argv[2], int((*sys.argv, 500)[3]))
    directory = str(worker.recorder.directory) if worker.recorder else None
    print(json.dumps({"ready": True, "recording_dir": directory, "torch": torch.__version__}), flush=True)
    for line in sys.stdin:
        print(json.dumps(worker.answer(*json.loads(line))), flush=True)
    if worker.recorder:
        worker.recorder.close()


if __name__ == "__main__":
    main()
