"""What can be done with a model after some training, and what then is in it; printed as JSON."""

import copy
import gc
import io
import pickle
import warnings
import weakref
from pickletools import genops
from typing import Any

import torch
from torch import Tensor, nn

from tests.data.training.evidence import digest, report, run_one


class Model(nn.Module):
    """A root whose `parameters` is not torch's: it gives a list."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))

    def forward(self, inputs: Tensor) -> Tensor:
        output: Tensor = self.layers(inputs)
        return output

    def parameters(self, recurse: bool = True) -> list[nn.Parameter]:
        return list(super().parameters(recurse))


class OwnState(Model):
    """A root with a pickling of its own, which takes whatever it finds."""

    def __getstate__(self) -> dict[str, Any]:
        return dict(self.__dict__)


def train(models: list[Model], optimizer: torch.optim.Optimizer, steps: int) -> None:
    """A plain loop."""
    for _ in range(steps):
        optimizer.zero_grad()
        for model in models:
            model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()


def saved(whole: object) -> bytes:
    """What `torch.save` writes."""
    file = io.BytesIO()
    torch.save(whole, file)
    return file.getvalue()


def uses_of(model: nn.Module) -> dict[str, Any]:
    """Everything that looks into a module, and what it found."""
    inputs = torch.ones(2, 8)
    expected = model(inputs)
    average = copy.deepcopy(model)
    with torch.no_grad():
        for value in average.state_dict().values():
            value.zero_()
    shallow = copy.copy(model)
    loaded = torch.load(io.BytesIO(saved(model)), weights_only=False)
    unpickled = pickle.loads(pickle.dumps(model))  # noqa: S301 - pickled in this line
    scripted = torch.jit.script(model)
    traced = torch.jit.trace(model, (inputs,))
    exported = torch.export.export(model, (inputs,))
    loose = torch.export.export(model, (inputs,), strict=False)
    symbolic = torch.fx.symbolic_trace(model)
    state = {name: value.detach() for name, value in model.state_dict().items()}
    return {
        "keys": list(model.state_dict()),
        "average": float(average(inputs).abs().sum().detach()),  # 0: the copy runs its own weights
        "shallow": bool(torch.equal(shallow(inputs), expected)),
        "loaded": bool(torch.equal(loaded(inputs), expected)),
        "unpickled": bool(torch.equal(unpickled(inputs), expected)),
        "saved": digest(saved(model)),
        "pickled": sorted({str(word) for code, word, _ in genops(pickle.dumps(model, 2)) if code.name == "GLOBAL"}),
        "state": digest(pickle.dumps(list(state))),
        "scripted": [scripted.code, bool(torch.equal(scripted(inputs), expected))],
        "traced": [traced.code, bool(torch.equal(traced(inputs), expected))],
        "exported": [exported.graph_module.code, bool(torch.equal(exported.module()(inputs), expected))],
        "loose": [loose.graph_module.code],
        "symbolic": [symbolic.code, bool(torch.equal(symbolic(inputs), expected))],
        "functional": bool(torch.equal(torch.func.functional_call(model, state, (inputs,)), expected)),
        "type": type(model).__qualname__,
        "hooks": [len(model._forward_hooks), len(model._forward_pre_hooks)],
    }


def copies_of(model: nn.Module) -> list[bool]:
    """Whether copies answer as the model does."""
    inputs = torch.ones(2, 8)
    copies = [
        copy.deepcopy(model),
        copy.copy(model),
        pickle.loads(pickle.dumps(model)),  # noqa: S301 - pickled in this line
        torch.load(io.BytesIO(saved(model)), weights_only=False),
    ]
    return [bool(torch.equal(twin(inputs), model(inputs))) for twin in copies]


def freed(models: list[Model]) -> list[bool]:
    """Whether each model is gone at once when its last user lets go of it, without the garbage collector."""
    gc.disable()
    references = [weakref.ref(model) for model in models]
    models.clear()
    gone = [reference() is None for reference in references]
    gc.enable()
    return gone


def main() -> None:
    """Use the models before the first step has ended, and after some."""
    warnings.simplefilter("ignore")
    models = [Model(), OwnState()]
    optimizer = torch.optim.SGD([value for model in models for value in model.parameters()], lr=0.1)
    before = uses_of(models[0]), copies_of(models[1])
    train(models, optimizer, 3)
    after = uses_of(models[0]), copies_of(models[1])
    train(models, optimizer, 2)
    report("copies", *models, before=before, after=after)
    # Models that nothing else has touched: tracing keeps hold of what it has traced.
    models = [Model(), OwnState()]
    optimizer = torch.optim.SGD([value for model in models for value in model.parameters()], lr=0.1)
    train(models, optimizer, 4)
    del optimizer
    report("freed", nn.Identity(), freed=freed(models))


if __name__ == "__main__":
    run_one(main)
