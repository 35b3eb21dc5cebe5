"""A script with spans of its own, made with the OpenTelemetry API as its users write them. Argument: HOW.

HOW: `plain`; `raise`, an exception in the last step; `spawn` and `fork`, batches from workers that make spans too;
`own`, with a TracerProvider of the script's own; `launch-spawn` and `launch-fork`, two ranks that the script itself
starts. Ranks train on gloo, otherwise the script is alone.
"""

import os
import socket
import sys
import threading
import time
from typing import Any

import torch
import torch.distributed as dist
from opentelemetry import trace
from torch import Tensor, multiprocessing, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

from tests.data.training.evidence import draw, report, run_one

STEPS = 8
HOW = sys.argv[1]
tracer = trace.get_tracer("user")
seen: list[tuple[str, str, str]] = []


class Samples(Dataset[Tensor]):
    """Rows; fetching one is a span."""

    def __init__(self, rows: Tensor):
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Tensor:
        with tracer.start_as_current_span("fetch"):
            return self.rows[index]


def use_own_provider() -> None:
    """What a script does that sets OpenTelemetry up by itself, and the one call for us."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    from trainspan.distro.steps import follow_steps

    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    follow_steps()


def look(place: str) -> None:
    """Note what the current span is at `place`."""
    found = trace.get_current_span().get_span_context()
    seen.append((place, f"{found.trace_id:032x}", f"{found.span_id:016x}"))


def train(model: nn.Module, batches: "DataLoader[Tensor]") -> None:
    """A loop with a span for each iteration, and one inside of that."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    for number, batch in enumerate(batches):
        look(f"step {number}")
        with tracer.start_as_current_span("iteration", attributes={"user.number": number}):
            with tracer.start_as_current_span("inner"):
                loss = model(batch + draw()).square().mean()
            loss.backward()
            if HOW == "raise" and number == STEPS - 1:
                raise ValueError("canary-secret-4711")
        optimizer.step()
        optimizer.zero_grad()


def main() -> None:
    """Train on gloo; an evaluation follows the last step."""
    if HOW == "own":
        use_own_provider()
    look("start")
    worker: dict[str, Any] = {"num_workers": 1, "multiprocessing_context": HOW} if HOW in ("spawn", "fork") else {}
    with tracer.start_as_current_span("prepare"):
        samples = torch.randn(STEPS * 4, 8)
        model: nn.Module = nn.Linear(8, 8)
        if "RANK" in os.environ:
            dist.init_process_group("gloo")
            model = DistributedDataParallel(model)
    train(model, DataLoader(Samples(samples), batch_size=4, **worker))
    with tracer.start_as_current_span("evaluate"), tracer.start_as_current_span("batch"):
        model(samples)
    names = sorted(thread.name for thread in threading.enumerate())
    rank = int(os.environ.get("RANK", "0"))
    report("spans", model, rank=rank, seen=seen, names=names, done_s=time.monotonic())
    if "RANK" in os.environ:
        dist.destroy_process_group()


def be_rank(rank: int) -> None:
    """What each rank of a script does that starts them by itself."""
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1")
    run_one(main)


def launch(method: str) -> None:
    """Start two ranks."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        os.environ["MASTER_PORT"] = str(free.getsockname()[1])
    multiprocessing.start_processes(be_rank, nprocs=2, start_method=method)


if __name__ == "__main__":
    if HOW.startswith("launch-"):
        launch(HOW.removeprefix("launch-"))
    else:
        run_one(main)
