"""Training with torch.compile in every common way. Arguments: the scenarios to run, one after the other."""

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tests.data.training.evidence import report, run_each

STEPS = 6


def make_model() -> nn.Sequential:
    """A network with an inner module of its own."""
    return nn.Sequential(
        nn.Linear(8, 16), nn.Sequential(nn.ReLU(), nn.Linear(16, 16)), nn.Dropout(0.1), nn.Linear(16, 1)
    )


def make_batches() -> list[tuple[Tensor, Tensor]]:
    """One batch a step."""
    inputs = [torch.randn(4, 8) for _ in range(STEPS)]
    return [(batch, batch.sum(1, keepdim=True)) for batch in inputs]


def train(model: Callable[..., Any], optimizer: torch.optim.Optimizer, batches: list[tuple[Tensor, Tensor]]) -> None:
    """A plain loop over `batches`."""
    for inputs, targets in batches:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()


def outer(backend: str, **options: Any) -> nn.Module:
    """`torch.compile(model)`, then the optimizer."""
    model = make_model()
    compiled: Any = torch.compile(model, backend=backend, **options)
    train(compiled, torch.optim.Adam(compiled.parameters()), make_batches())
    return model


def after_optimizer() -> nn.Module:
    """The optimizer, then `torch.compile(model)`."""
    model = make_model()
    optimizer = torch.optim.Adam(model.parameters())
    train(torch.compile(model, backend="aot_eager", fullgraph=True), optimizer, make_batches())
    return model


def in_place() -> nn.Module:
    """`model.compile()`."""
    model = make_model()
    optimizer = torch.optim.Adam(model.parameters())
    model.compile(backend="aot_eager")
    train(model, optimizer, make_batches())
    return model


def late() -> nn.Module:
    """Three plain steps, then `torch.compile(model)` of the whole graph."""
    model = make_model()
    optimizer = torch.optim.Adam(model.parameters())
    batches = make_batches()
    train(model, optimizer, batches[:3])
    train(torch.compile(model, backend="aot_eager", fullgraph=True), optimizer, batches[3:])
    return model


def late_in_place() -> nn.Module:
    """Three plain steps, then `model.compile()`."""
    model = Wrapper(make_model())
    optimizer = torch.optim.Adam(model.parameters())
    batches = make_batches()
    train(model, optimizer, batches[:3])
    model.compile(backend="aot_eager")
    train(model, optimizer, batches[3:])
    return model


class Block(nn.Module):
    """A layer of its own kind, with a clip of its activations."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, inputs: Tensor) -> Tensor:
        output: Tensor = self.layer(inputs).clamp(-3, 3)
        return output


def blocks() -> nn.Module:
    """Only the inner modules are compiled, each by itself and in place."""
    model = nn.Sequential(Block(), Block(), nn.Linear(8, 1))
    for block in model[:2]:
        block.compile(backend="aot_eager", fullgraph=True)
    train(model, torch.optim.Adam(model.parameters()), make_batches())
    return model


def in_place_whole() -> nn.Module:
    """`model.compile()` of a whole graph, before the optimizer."""
    model = nn.Sequential(Block(), nn.Linear(8, 1))
    root = Wrapper(model)
    root.compile(backend="aot_eager", fullgraph=True)
    train(root, torch.optim.Adam(root.parameters()), make_batches())
    return root


class Wrapper(nn.Module):
    """A module around another one."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, inputs: Tensor) -> Tensor:
        output: Tensor = self.inner(inputs)
        return output


def broken() -> nn.Module:
    """A model with a graph break of its own, and another one that is called inside of it."""

    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = make_model()

        def forward(self, inputs: Tensor) -> Tensor:
            inputs = inputs * 2
            torch._dynamo.graph_break()
            output: Tensor = self.inner(inputs)
            return output

    model = Broken()
    optimizer = torch.optim.Adam(model.parameters())
    train(torch.compile(model, backend="aot_eager"), optimizer, make_batches())
    return model


def whole_step() -> nn.Module:
    """Two plain steps, then forward, backward, clipping and the optimizer in one compiled function."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = make_batches()

    def step(inputs: Tensor, targets: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        nn.utils.clip_grad_value_(model.parameters(), 0.5)
        optimizer.step()
        return loss

    train(model, optimizer, batches[:2])
    compiled = torch.compile(step, backend="aot_eager")
    for inputs, targets in batches:
        compiled(inputs, targets)
    return model


def forward_function() -> nn.Module:
    """The loss computed in a compiled function of one whole graph."""
    model = make_model()
    optimizer = torch.optim.Adam(model.parameters())
    batches = make_batches()

    @torch.compile(backend="aot_eager", fullgraph=True)
    def loss_of(inputs: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.mse_loss(model(inputs), targets)

    for inputs, targets in batches:
        optimizer.zero_grad()
        loss_of(inputs, targets).backward()
        optimizer.step()
    return model


def clipping() -> nn.Module:
    """Clipping compiled as one whole graph."""
    model = make_model()
    optimizer = torch.optim.Adam(model.parameters())
    parameters = list(model.parameters())

    @torch.compile(backend="aot_eager", fullgraph=True)
    def clip() -> Tensor:
        nn.utils.clip_grad_value_(parameters, 0.5)
        return nn.utils.clip_grad_norm_(parameters, 1.0)

    for inputs, targets in make_batches():
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        clip()
        optimizer.step()
    return model


def epoch() -> nn.Module:
    """A whole epoch in one compiled function, the DataLoader's loop included."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs = torch.cat([batch for batch, _ in make_batches()])
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(inputs), batch_size=4)

    @torch.compile(backend="aot_eager")
    def run() -> None:
        for (batch,) in loader:
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()

    run()
    run()
    return model


def both() -> nn.Module:
    """The model compiled for training, and as it is for validation."""
    model = make_model()
    optimizer = torch.optim.Adam(model.parameters())
    compiled: Any = torch.compile(model, backend="aot_eager")
    batches = make_batches()
    for batch in batches:
        train(compiled, optimizer, [batch])
        model.eval()
        with torch.no_grad():
            model(batch[0])
        model.train()
    return model


def optimizer_step() -> nn.Module:
    """The optimizer's step compiled on its own."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.step = torch.compile(optimizer.step, backend="aot_eager")
    train(model, optimizer, make_batches())
    return model


SCENARIOS: dict[str, Callable[[], nn.Module]] = {
    "inductor": lambda: outer("inductor"),
    "fullgraph": lambda: outer("aot_eager", fullgraph=True),
    "after_optimizer": after_optimizer,
    "in_place": in_place,
    "in_place_whole": in_place_whole,
    "late": late,
    "late_in_place": late_in_place,
    "both": both,
    "blocks": blocks,
    "broken": broken,
    "forward_function": forward_function,
    "whole_step": whole_step,
    "epoch": epoch,
    "clipping": clipping,
    "optimizer_step": optimizer_step,
}


def run(name: str) -> None:
    """Train one scenario; report what the compiler counted."""
    trained = SCENARIOS[name]()
    from torch._dynamo.utils import counters

    breaks, counted = sum(counters["graph_break"].values()), counters["stats"]
    report(name, trained, breaks=breaks, graphs=counted["unique_graphs"], calls=counted["calls_captured"])


if __name__ == "__main__":
    run_each({name: partial(run, name) for name in SCENARIOS}, sys.argv[1:])
