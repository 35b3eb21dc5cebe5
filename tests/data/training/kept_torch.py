"""A model that holds a scope of every kind: trained, averaged, saved whole, and loaded by another process."""

import copy
import json
import os
import sys
from typing import Any

import torch
from torch import Tensor, nn

import trainspan
from tests.data.training.evidence import weights_of
from tests.data.training.kept import SCOPES
from trainspan.guard import seen


class Model(nn.Module):
    """Says what it does with words that it has made once, and with one around a method."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)
        self.scopes = {name: make() for name, make in SCOPES.items()}

    def forward(self, inputs: Tensor) -> Tensor:
        with self.scopes["timed"]:
            return self.scaled(inputs)

    @trainspan.timed("scaled")
    def scaled(self, inputs: Tensor) -> Tensor:
        """What the layer gives, doubled."""
        output: Tensor = self.layer(inputs) * 2
        return output


def train(model: Model) -> None:
    """Two steps."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        with model.scopes["phase"]:
            loss = model(torch.ones(2, 4)).sum()
        loss.backward()
        optimizer.step()


def save(file: str) -> Model:
    """Train a model, average it with its copy, and save it whole."""
    torch.manual_seed(1)
    model = Model()
    train(model)
    average = copy.deepcopy(model)
    train(model)
    with torch.no_grad():
        for mean, value in zip(average.parameters(), model.parameters(), strict=True):
            mean.lerp_(value, 0.5)
    torch.save(average, file)
    return average


def load(file: str) -> Model:
    """Train what was saved."""
    model: Any = torch.load(file, weights_only=False)
    train(model)
    return copy.copy(model)


if __name__ == "__main__":
    result = globals()[sys.argv[1]](sys.argv[2])
    print(json.dumps({"pid": os.getpid(), "weights": weights_of(result), "warned": seen()}))
