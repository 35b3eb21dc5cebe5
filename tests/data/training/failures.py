"""A loop in which every phase fails once, and which goes on each time. Arguments: phases whose failure ends it."""

import sys
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from tests.data.training.evidence import report, run_each

PHASES = ("data_wait", "forward", "backward", "grad_clip", "optimizer")
fatal = ""
failing = ""


class Trouble(Exception):
    """What goes wrong, with more than a message."""

    def __init__(self, phase: str, number: int) -> None:
        super().__init__(phase, number)
        self.phase = phase


def may_fail(phase: str) -> None:
    """Raise if it is the turn of `phase`."""
    if failing == phase:
        raise Trouble(phase, 42)


class Samples(Dataset[Tensor]):
    """Samples that cannot always be read."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Tensor:
        may_fail("data_wait")
        return torch.full((8,), float(index))


class Model(nn.Module):
    """A network that fails in forward or in backward."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        may_fail("forward")
        output: Tensor = self.layer(inputs)
        output.register_hook(lambda _gradient: may_fail("backward"))
        return output

    def clipped(self) -> Iterator[nn.Parameter]:
        """The parameters, for the clipping."""
        may_fail("grad_clip")
        yield from self.parameters()


class Optimizer(torch.optim.SGD):
    """An optimizer that fails in its step."""

    def step(self, closure: Callable[[], float] | None = None) -> Any:
        may_fail("optimizer")
        return super().step(closure)


def train_once(batches: Iterator[Tensor], model: Model, optimizer: Optimizer) -> None:
    """One iteration."""
    inputs = next(batches)
    optimizer.zero_grad()
    model(inputs).square().mean().backward()
    nn.utils.clip_grad_norm_(model.clipped(), 1.0)
    optimizer.step()


def main() -> None:
    """Every phase fails in an iteration of its own, with two sound iterations around it."""
    global failing
    model = Model()
    optimizer = Optimizer(model.parameters(), lr=1e-4)
    caught = []
    for phase in PHASES:
        for failing in ("", phase, ""):  # noqa: B007 - a global: the model and the optimizer look at it
            batches = iter(DataLoader(Samples(), batch_size=4))
            try:
                train_once(batches, model, optimizer)
            except Trouble as trouble:
                if phase == fatal:
                    raise
                frames = [
                    f"{f.name} {f.line}" for f in traceback.extract_tb(trouble.__traceback__) if f.filename == __file__
                ]
                plain = trouble.__cause__ is None and trouble.__context__ is None
                caught.append([type(trouble).__name__, trouble.args, trouble.phase, plain, frames])
    report("failures", model, caught=caught)


def run(phase: str) -> None:
    """Run; a failure of `phase` ends it."""
    global fatal  # noqa: PLW0603 - an argument of the script, read where the exception arrives
    fatal = phase
    main()


if __name__ == "__main__":
    run_each({phase: partial(run, phase) for phase in ("", *PHASES)}, sys.argv[1:])
