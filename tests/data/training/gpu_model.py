"""A transformer in bf16, and what a test on a GPU asks of it. Every answer is one line of JSON.

steps N         take N steps
seconds S       train for S seconds; the answer has the raw energy counter after the first step and the last
profile N       take 5 steps, then N under torch's profiler; the answer has what the device did in each phase
syncs N         the same; the answer has how often the host waited for the device
serve           take as many steps as each line of standard input says; an answer each
"""

import argparse
import gc
import json
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

WARM_UP = 5
LAUNCHES = ("cuda_runtime", "cuda_driver")
WORK = ("kernel", "gpu_memcpy", "gpu_memset")
WAITS = ("cudaDeviceSynchronize", "cudaStreamSynchronize", "cudaEventSynchronize", "cudaMemcpy")


class Model(nn.Module):
    """Its forward ends with the loss, so that forward is all there is before backward."""

    def __init__(self, width: int, layers: int):
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, max(width // 64, 1), 4 * width, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """The loss."""
        return self.layers(tokens).float().square().mean()


class Trainer:
    """Takes steps: as they are, compiled, or as the replay of a CUDA graph."""

    def __init__(self, options: argparse.Namespace):
        small = options.size == "small"
        self.device = torch.device(options.device)
        width, layers, batch, length = (64, 2, 4, 16) if small else (1024, 12, 16, 512)
        self.model = Model(width, layers).to(self.device, torch.bfloat16)
        self.run_model = torch.compile(self.model) if options.how == "compiled" else self.model
        capturable = {"capturable": True} if options.how == "graph" else {}
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, **capturable)
        self.tokens = torch.randn(batch, length, width, device=self.device, dtype=torch.bfloat16)
        self.graph = self._captured() if options.how == "graph" else None
        self.steps = 0

    def step(self) -> None:
        """One step of training."""
        self.steps += 1
        if self.graph is not None:
            self.graph.replay()
        else:
            self._step()

    def wait(self) -> None:
        """Until the device is through."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def _step(self) -> None:
        with record_function("ts_forward"):
            loss = self.run_model(self.tokens)
        with record_function("ts_backward"):
            loss.backward()
        with record_function("ts_optimizer"):
            self.optimizer.step()
        self.optimizer.zero_grad()

    def _captured(self) -> Any:
        aside = torch.cuda.Stream()
        with torch.cuda.stream(aside):
            for _ in range(3):
                self._step()
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._step()
        return graph


def answer(**fields: Any) -> None:
    """One line of JSON."""
    print(json.dumps(fields), flush=True)


def train_for(trainer: Trainer, seconds: float) -> None:
    """Train, and say what the driver's own counter says of the time from the first step's end to the last's."""
    import pynvml

    pynvml.nvmlInit()
    uuid = f"GPU-{torch.cuda.get_device_properties(trainer.device).uuid}"
    handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
    trainer.step()
    trainer.wait()
    begun_s, before_mj = time.monotonic(), pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    while time.monotonic() < begun_s + seconds:
        trainer.step()
        # So that the end of the last step is also when the device is through with it.
        if trainer.steps % 8 == 0:
            trainer.wait()
    trainer.wait()
    drawn_j = (pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) - before_mj) / 1000
    answer(uuid=uuid, steps=trainer.steps, seconds=time.monotonic() - begun_s, drawn_j=drawn_j)


def under_profiler(trainer: Trainer, steps: int) -> Any:
    """What torch's profiler saw of that many steps."""
    for _ in range(WARM_UP):
        trainer.step()
    trainer.wait()
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (trainer.device.type == "cuda")
    with profile(activities=activities) as seen:
        for _ in range(steps):
            trainer.step()
        trainer.wait()
    return seen


def events_of(seen: Any) -> list[dict[str, Any]]:
    """Everything the profiler saw, as it writes it for Chrome."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        seen.export_chrome_trace(str(path))
        events: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    return events


def phases_on_device(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each of our annotations, in order: its phase, and how long the device took for what was launched in it.

    From the first to the last piece of work. By the time of its launch: backward launches from a thread of its own,
    while the one with the annotation waits for it.
    """
    marks = [e for e in events if e.get("cat") == "user_annotation" and e["name"].startswith("ts_")]
    launched = {
        e["args"]["correlation"]: e["ts"] for e in events if e.get("cat") in LAUNCHES and "correlation" in e["args"]
    }
    work = [(launched.get(e["args"].get("correlation")), e) for e in events if e.get("cat") in WORK]
    stretches = []
    for mark in sorted(marks, key=lambda event: event["ts"]):
        own = [e for at, e in work if at is not None and mark["ts"] <= at <= mark["ts"] + mark["dur"]]
        if own:
            took_us = max(e["ts"] + e["dur"] for e in own) - min(e["ts"] for e in own)
            stretches.append({"phase": mark["name"][3:], "us": took_us})
    return stretches


def waits(seen: Any) -> dict[str, int]:
    """How often the host waited for the device, by the call."""
    return dict(Counter(event.name for event in seen.events() if event.name in WAITS))


def serve(trainer: Trainer) -> None:
    """Take steps on command."""
    for line in sys.stdin:
        begun_s = time.perf_counter()
        for _ in range(int(line)):
            trainer.step()
        trainer.wait()
        answer(seconds=time.perf_counter() - begun_s)


def main() -> None:
    """Do what the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task", choices=("steps", "seconds", "profile", "syncs", "serve"))
    parser.add_argument("amount", type=float, nargs="?", default=0)
    parser.add_argument("--how", choices=("plain", "compiled", "graph"), default="plain")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--size", choices=("small", "real"), default="real")
    options = parser.parse_args()
    torch.manual_seed(0)
    trainer = Trainer(options)
    count = int(options.amount)
    if options.task == "steps":
        for _ in range(count):
            trainer.step()
        trainer.wait()
        graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"] if options.how == "compiled" else 0
        answer(steps=trainer.steps, graphs=graphs)
    elif options.task == "seconds":
        train_for(trainer, options.amount)
    elif options.task == "profile":
        answer(first=WARM_UP, steps=count, stretches=phases_on_device(events_of(under_profiler(trainer, count))))
    elif options.task == "syncs":
        answer(waits=waits(under_profiler(trainer, count)))
    else:
        serve(trainer)


if __name__ == "__main__":
    main()
    gc.collect()
