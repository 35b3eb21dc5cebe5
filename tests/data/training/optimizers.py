"""Optimizers that are made of others, or that cannot always step. Arguments: the scenarios to run."""

import sys
import tempfile
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.optim.lr_scheduler import LambdaLR

from tests.data.training.evidence import report, run_each

STEPS = 6


class Outer(torch.optim.SGD):
    """Calls the step that it inherits."""

    def step(self, closure: Callable[[], float] | None = None) -> Any:
        return super().step(closure)


class Cautious(torch.optim.Optimizer):
    """Asks an inner optimizer, whose second and third step fail, and goes on without it."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        super().__init__(inner.param_groups, {})
        self.inner = inner
        self.steps = 0

    def step(self, closure: Callable[[], float] | None = None) -> Any:
        self.steps += 1
        try:
            self.inner.step(closure)
        except ArithmeticError:
            return None


class Failing(torch.optim.SGD):
    """Fails in its second and third step."""

    steps = 0

    def step(self, closure: Callable[[], float] | None = None) -> Any:
        self.steps += 1
        if self.steps in (2, 3):
            raise ArithmeticError(self.steps)
        return super().step(closure)


def train(name: str, make: Callable[[list[nn.Parameter]], torch.optim.Optimizer]) -> None:
    """A plain loop."""
    model = nn.Linear(8, 1)
    optimizer = make(list(model.parameters()))
    schedule = LambdaLR(optimizer, lambda epoch: 0.9**epoch)
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
        schedule.step()
    report(name, model)


def zero() -> None:
    """A sharded optimizer with a shard of one."""
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        train("zero", lambda parameters: ZeroRedundancyOptimizer(parameters, torch.optim.Adam, lr=0.1))
        dist.destroy_process_group()


def alternating() -> None:
    """One optimizer for ten steps, then another for ten, then both."""
    first, second = nn.Linear(8, 1), nn.Linear(8, 1)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (first, second)]
    for turn in ([0] * 10, [1] * 10, [0, 1] * 10):
        for index in turn:
            optimizers[index].zero_grad()
            (first, second)[index](torch.randn(4, 8)).square().mean().backward()
            optimizers[index].step()
    report("alternating", first, second)


def in_backward() -> None:
    """Each parameter is updated as soon as it has its gradient; one more optimizer ends the step."""
    model, head = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), nn.Linear(8, 1)
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
    for parameter in model.parameters():
        update = torch.optim.SGD([parameter], lr=0.1)

        def apply(_parameter: torch.Tensor, update: torch.optim.Optimizer = update) -> None:
            update.step()
            update.zero_grad()

        parameter.register_post_accumulate_grad_hook(apply)
    for _ in range(STEPS):
        optimizer.zero_grad()
        head(model(torch.randn(4, 8))).square().mean().backward()
        optimizer.step()
    report("in_backward", model, head)


SCENARIOS: dict[str, Callable[[], None]] = {
    "outer": lambda: train("outer", lambda parameters: Outer(parameters, lr=0.1)),
    "cautious": lambda: train("cautious", lambda parameters: Cautious(Failing(parameters, lr=0.1))),
    "zero": zero,
    "alternating": alternating,
    "in_backward": in_backward,
}

if __name__ == "__main__":
    run_each(SCENARIOS, sys.argv[1:])
