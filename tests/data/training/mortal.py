"""Trains a few steps; in step STEP it does WHAT in the middle of PHASE. Arguments: PHASE WHAT STEP.

WHAT: `kill` (SIGKILL itself), `raise`, `hang` (says so, and goes no further), `ignore` (the same, and SIGTERM does not
end it), or `nothing`. Its last lines say when `main` was done, and when everything was that had registered after it to
run at exit, by the monotonic clock.
"""

import atexit
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

# Handlers run in reverse order: before what starts with torch is registered, so that it runs after it.
atexit.register(lambda: print(json.dumps({"left_s": time.monotonic()}), flush=True))

import torch  # noqa: E402 - for that reason
from torch import Tensor, nn  # noqa: E402 - the same
from torch.utils.data import DataLoader, Dataset  # noqa: E402 - the same

STEPS = 12


class Fate:
    """Counts the visits to each phase, and strikes in one."""

    def __init__(self, phase: str, what: str, step: int):
        self.phase, self.what, self.step = phase, what, step
        self.visits: dict[str, int] = {}

    def visit(self, phase: str) -> None:
        """Called once a step from the middle of `phase`."""
        self.visits[phase] = self.visits.get(phase, 0) + 1
        if phase != self.phase or self.visits[phase] != self.step + 1:
            return
        if self.what == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.what == "ignore":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if self.what in ("hang", "ignore"):
            print("hanging", flush=True)
            threading.Event().wait()
        if self.what == "raise":
            raise ValueError("canary-secret-4711")


class Samples(Dataset[Tensor]):
    """Random rows; fetching one visits `data_wait`."""

    def __init__(self, fate: Fate):
        self.fate = fate

    def __len__(self) -> int:
        return STEPS

    def __getitem__(self, index: int) -> Tensor:
        self.fate.visit("data_wait")
        return torch.randn(16)


class Visited(nn.Module):
    """A linear layer whose forward and backward are visited."""

    def __init__(self, fate: Fate):
        super().__init__()
        self.fate = fate
        self.linear = nn.Linear(16, 16)

    def forward(self, inputs: Tensor) -> Tensor:
        self.fate.visit("forward")
        output: Tensor = self.linear(inputs)
        output.register_hook(lambda _: self.fate.visit("backward"))
        return output


class VisitedSGD(torch.optim.SGD):
    """SGD whose step is visited."""

    def __init__(self, parameters: Any, fate: Fate):
        super().__init__(parameters, lr=1e-2)
        self.fate = fate

    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        self.fate.visit("optimizer")
        return super().step(closure)


def main() -> None:
    """Train until fate strikes."""
    phase, what, step = sys.argv[1], sys.argv[2], int(sys.argv[3])
    fate = Fate(phase, what, step)
    torch.set_num_threads(1)
    model = Visited(fate)
    optimizer = VisitedSGD(model.parameters(), fate)
    slowest_s = 0.0
    began = time.monotonic()
    for batch in DataLoader(Samples(fate), batch_size=1):
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.02)
        slowest_s, began = max(slowest_s, time.monotonic() - began), time.monotonic()
    print(json.dumps({"done_s": time.monotonic(), "slowest_s": slowest_s}), flush=True)
    sys.exit(7)


if __name__ == "__main__":
    main()
