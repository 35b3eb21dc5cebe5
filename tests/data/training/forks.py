"""A step in whose every phase the process is forked; each child goes on a while as if it were the parent."""

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from tests.data.training.evidence import report, run_one

STEPS = 3
GRADIENT = "import torch; torch.nn.Linear(2, 1)(torch.ones(2)).sum().backward()"
TRAINING = """
import torch
layer = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
layer(torch.ones(2)).sum().backward()
optimizer.step()
"""
children: list[int] = []


def fork_here() -> None:
    """Fork; the child runs a forward and a backward, and is gone."""
    child = os.fork()
    if not child:
        layer = nn.Linear(4, 1)
        with torch.enable_grad():
            layer(torch.ones(2, 4)).sum().backward()
        nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
        sys.stdout.flush()
        os._exit(0)
    children.append(child)


class Forking(Dataset[Tensor]):
    """Samples whose making forks."""

    def __len__(self) -> int:
        return STEPS

    def __getitem__(self, index: int) -> Tensor:
        fork_here()
        return torch.full((8,), float(index))


class ForkingModel(nn.Module):
    """A network that forks in forward, and in backward."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        fork_here()
        output: Tensor = self.layer(inputs)
        output.register_hook(lambda _gradient: fork_here())
        return output


class ForkingOptimizer(torch.optim.SGD):
    """An optimizer that forks in its step."""

    def step(self, closure: Callable[[], float] | None = None) -> Any:
        fork_here()
        return super().step(closure)


def main() -> None:
    """Train; then start two programs with a rank's variables: one computes a gradient, the other trains."""
    model = ForkingModel()
    optimizer = ForkingOptimizer(model.parameters(), lr=0.1)
    for inputs in DataLoader(Forking(), batch_size=1):
        optimizer.zero_grad()
        model(inputs).sum().backward()
        optimizer.step()
    for child in children:
        _, status = os.waitpid(child, 0)
        if status:
            sys.exit(f"a child ended with status {status}")
    environ = {**os.environ, "RANK": "1", "WORLD_SIZE": "2"}
    for program in (GRADIENT, TRAINING):
        subprocess.run([sys.executable, "-c", program], env=environ, check=True)
    report("forks", model, children=len(children))


if __name__ == "__main__":
    run_one(main)
