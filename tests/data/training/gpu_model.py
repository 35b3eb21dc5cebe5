"""A transformer in bf16, and what a test on a GPU asks of it. Every answer is one line of JSON.

steps N         take N steps
seconds S       train for S seconds; the answer has the raw energy counter after the first step and the last
profile N       take 5 steps, then N under torch's profiler; the answer has what the device did in each phase
syncs N         the same, logging each loss, and N steps more once they are there; the answer has how often the host
                waited for the device, and how often something was copied from there
serve           take as many steps as each line of standard input says; an answer each

The device `pretended` is the CPU, on a torch that says it uses a GPU.
"""

import argparse
import gc
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

import trainspan

WARM_UP = 5
STEPS_AHEAD = 7
"""Less than the timed steps that may wait for the device."""
SETTLE_S = 3
LOGGED_S = 1.2
"""Longer than the log takes between two looks at what has arrived."""
LAUNCHES = ("cuda_runtime", "cuda_driver")
WORK = ("kernel", "gpu_memcpy", "gpu_memset")
WAITS = (
    *("cudaDeviceSynchronize", "cudaStreamSynchronize", "cudaEventSynchronize", "cudaMemcpy", "cudaMemcpy2D"),
    *("cuCtxSynchronize", "cuStreamSynchronize", "cuEventSynchronize"),
)
COPY = "Memcpy DtoH"
MODES = {"compiled": None, "overhead": "reduce-overhead"}
"""Of torch.compile; the latter replays CUDA graphs in forward and backward."""


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
        self.device = torch.device(options.device)
        self.log = trainspan.log if options.task == "syncs" else None
        width, layers, batch, length = (64, 2, 4, 16) if options.size == "small" else (1024, 12, 16, 512)
        self.model = Model(width, layers).to(self.device, torch.bfloat16)
        compiles = options.how in MODES
        # Graphs are a launch each: the host would be hundreds of steps ahead of the device.
        self.runs_ahead = options.how in {"graph", "overhead"}
        self.run_model = torch.compile(self.model, mode=MODES[options.how]) if compiles else self.model
        capturable = {"capturable": True} if options.how == "graph" else {}
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, **capturable)
        self.tokens = torch.randn(batch, length, width, device=self.device, dtype=torch.bfloat16)
        self.steps = 0
        self.graph = self._captured() if options.how == "graph" else None

    def step(self) -> None:
        """One step of training."""
        self.steps += 1
        if self.graph is None:
            self._step()
            return
        with record_function("ts_graph_replay"):
            self.graph.replay()

    def take(self, count: int) -> None:
        """That many steps, and wait for their end."""
        for number in range(1, count + 1):
            self.step()
            if self.runs_ahead and number % STEPS_AHEAD == 0:
                self.wait()
        self.wait()

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
        if self.log is not None:
            # Of one name a number is copied once a second: these steps take less.
            self.log(f"loss {self.steps}", loss)

    def _captured(self) -> Any:
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
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


def take_steps(trainer: Trainer, count: int) -> None:
    """Take steps, and say how many graphs the compiler has made."""
    trainer.take(count)
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"] if trainer.run_model is not trainer.model else 0
    answer(steps=trainer.steps, graphs=graphs)


def train_for(trainer: Trainer, seconds: float) -> None:
    """Train, and say what the driver's own counter says of the time from the first step's end to the last's."""
    import pynvml

    pynvml.nvmlInit()
    uuid = getattr(torch.cuda.get_device_properties(0), "uuid", None)
    handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}") if uuid else pynvml.nvmlDeviceGetHandleByIndex(0)
    trainer.step()
    trainer.wait()
    begun_s, before_mj = time.monotonic(), pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    # A relay charges from its first reading on, and may still be starting: what it misses is to be an idle device's.
    time.sleep(SETTLE_S)
    while time.monotonic() < begun_s + SETTLE_S + seconds:
        trainer.step()
        # So that the end of the last step is also when the device is through with it.
        if trainer.steps % 8 == 0:
            trainer.wait()
    trainer.wait()
    drawn_j = (pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) - before_mj) / 1000
    told = pynvml.nvmlDeviceGetUUID(handle)
    answer(uuid=told, steps=trainer.steps, seconds=time.monotonic() - begun_s, drawn_j=drawn_j)


def under_profiler(trainer: Trainer, steps: int, *more: int) -> Any:
    """What torch's profiler saw of that many steps, and of more, each time a while later."""
    trainer.take(WARM_UP)
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (trainer.device.type == "cuda")
    with profile(activities=activities) as seen:
        trainer.take(steps)
        for count in more:
            time.sleep(LOGGED_S)
            trainer.take(count)
    return seen


def profile_steps(trainer: Trainer, steps: int) -> None:
    """Say what the device did in each phase of that many steps."""
    first = trainer.steps + WARM_UP
    if trainer.graph is not None:
        first += 4  # three to warm up, and the captured one
    events = events_of(under_profiler(trainer, steps))
    answer(first=first, steps=steps, stretches=phases_on_device(events, first))


def count_waits(trainer: Trainer, steps: int) -> None:
    """Say how often the host waited for the device, by the call, and how often something was copied from there."""
    names = [event.name for event in under_profiler(trainer, steps, steps).events()]
    copies = sum(name.startswith(COPY) for name in names)
    answer(waits=dict(Counter(name for name in names if name in WAITS)), copies=copies)


def events_of(seen: Any) -> list[dict[str, Any]]:
    """Everything the profiler saw, as it writes it for Chrome."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        seen.export_chrome_trace(str(path))
        events: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    return events


def phases_on_device(events: list[dict[str, Any]], first: int) -> list[dict[str, Any]]:
    """For each of our annotations, in order: its phase and step, and how long the device took for what it launched.

    From the first to the last piece of work. By the time of its launch: backward launches from a thread of its own,
    while the one with the annotation waits for it. A CPU's work is what it was asked for.

    Args:
        events: all that the profiler saw.
        first: number of the first step in it.
    """
    marks = [e for e in events if e.get("cat") == "user_annotation" and e["name"].startswith("ts_")]
    launched = {
        e["args"]["correlation"]: e["ts"] for e in events if e.get("cat") in LAUNCHES and "correlation" in e["args"]
    }
    work = [(launched.get(e["args"].get("correlation")), e) for e in events if e.get("cat") in WORK]
    if not launched:
        work = [(e["ts"], e) for e in events if e.get("cat") == "cpu_op"]
    seen: Counter[str] = Counter()
    stretches = []
    for mark in sorted(marks, key=lambda event: event["ts"]):
        step = first + seen[mark["name"]]
        seen[mark["name"]] += 1
        own = [e for at, e in work if at is not None and mark["ts"] <= at <= mark["ts"] + mark["dur"]]
        if own:
            took_us = max(e["ts"] + e["dur"] for e in own) - min(e["ts"] for e in own)
            stretches.append({"phase": mark["name"][3:], "step": step, "us": took_us})
    return stretches


def serve(trainer: Trainer, _: int) -> None:
    """Take steps on command."""
    for line in sys.stdin:
        begun_s = time.perf_counter()
        trainer.take(int(line))
        answer(seconds=time.perf_counter() - begun_s)


TASKS: dict[str, Callable[[Trainer, Any], None]] = {
    "steps": take_steps,
    "seconds": train_for,
    "profile": profile_steps,
    "syncs": count_waits,
    "serve": serve,
}


def main() -> None:
    """Do what the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("amount", type=float, nargs="?", default=0)
    parser.add_argument("--how", choices=("plain", "graph", *MODES), default="plain")
    parser.add_argument("--device", choices=("cuda", "cpu", "pretended"), default="cuda")
    parser.add_argument("--size", choices=("small", "real"), default="real")
    options = parser.parse_args()
    torch.manual_seed(0)
    if options.device == "pretended":
        import_module("pretended_gpu").pretend()
        torch.set_num_threads(1)
        options.device = "cpu"
    TASKS[options.task](Trainer(options), options.amount if options.task == "seconds" else int(options.amount))


if __name__ == "__main__":
    main()
    gc.collect()
