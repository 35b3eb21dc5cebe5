"""A loop with torch that says what the hooks see already, and what they cannot; one scenario a process."""

import json
import os
import sys
from contextlib import suppress

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import trainspan
from trainspan.guard import seen

torch.manual_seed(1)
model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
samples = TensorDataset(torch.randn(12, 4))


def around() -> None:
    """API phases around automatic ones: each is one phase; a word of the script's own holds the automatic ones."""
    with trainspan.init_optimizer():
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with trainspan.training_loop():
        for (batch,) in DataLoader(samples, batch_size=4):
            with trainspan.phase("forward"):
                loss = model(batch).sum()
            with trainspan.phase("tune"):
                with trainspan.phase("backward"):
                    loss.backward()
                with trainspan.phase("optimizer"):
                    optimizer.step()
            optimizer.zero_grad()
        with trainspan.checkpoint_save():
            torch.save(model.state_dict(), sys.argv[2])
        with trainspan.validation_loop(), torch.no_grad():
            model.eval()
            for (batch,) in DataLoader(samples, batch_size=6):
                with trainspan.validation_step():
                    model(batch)
            torch.save(model.state_dict(), sys.argv[2] + ".best")


def two_optimizers_a_step() -> None:
    """The script's own step: two optimizers in it, or none."""
    optimizers = [torch.optim.SGD(layer.parameters(), lr=0.1) for layer in model]
    for number in range(4):
        with trainspan.step(number=number):
            for optimizer in optimizers:
                model(samples.tensors[0]).sum().backward()
                if number != 2:
                    optimizer.step()
    optimizers[0].step()  # outside of any: the optimizer ends it


def step_in_a_known_phase() -> None:
    """More in a phase than its name says: the step is a step all the same."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        with trainspan.phase("backward"):
            model(samples.tensors[0]).sum().backward()
            optimizer.step()
    model[0].weight.register_post_accumulate_grad_hook(lambda _: optimizer.step())  # a part of backward, as ever
    model(samples.tensors[0]).sum().backward()


def failing_optimizer() -> None:
    """An exception that leaves an optimizer's step inside of what the script has named."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def fail() -> float:
        raise ValueError("once")

    model(samples.tensors[0]).sum().backward()
    with suppress(ValueError), trainspan.phase("tune"):
        optimizer.step(fail)
    with trainspan.phase("tune"):
        with suppress(ValueError):
            optimizer.step(fail)
        model(samples.tensors[0]).sum().backward()
    optimizer.step()
    with trainspan.phase("tune"):
        model(samples.tensors[0]).sum().backward()
        optimizer.step()


def compiled() -> None:
    """What a compiler traces is what it would trace without a word."""

    @trainspan.phase("decorated")
    def decorated(batch: torch.Tensor) -> torch.Tensor:
        return batch + 1

    def step(batch: torch.Tensor) -> torch.Tensor:
        with trainspan.phase("attention"), trainspan.timed("t") as span, trainspan.validation_loop():
            span.note(a=1)
            trainspan.event("traced", n=1)
            trainspan.on_phase_start("x")
            return decorated(batch) * 2

    graphs = []

    def backend(graph: torch.fx.GraphModule, _inputs: object) -> object:
        graphs.append(len(list(graph.graph.nodes)))
        return graph.forward

    run = torch.compile(step, fullgraph=True, backend=backend)
    assert torch.equal(run(torch.ones(2)), torch.full((2,), 4.0))
    assert len(graphs) == 1
    with trainspan.step():
        assert torch.equal(run(torch.ones(2)), torch.full((2,), 4.0))


globals()[sys.argv[1]]()
print(json.dumps({"scenario": sys.argv[1], "pid": os.getpid(), "warned": seen()}))
