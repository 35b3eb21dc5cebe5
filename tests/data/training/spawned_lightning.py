"""A module of Lightning that can be sent to a process which is spawned."""

import random
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from tests.data.training.evidence import report


class Model(LightningModule):
    """Linear regression; at its end it reports what this repository's scripts report."""

    def __init__(self, scenario: str):
        super().__init__()
        self.scenario = scenario
        self.layer = nn.Linear(8, 1)

    def on_train_start(self) -> None:
        """Python seeds its generator anew in a fork."""
        random.seed(3)

    def training_step(self, batch: list[Tensor], _: int) -> Tensor:
        """The loss of a batch."""
        loss: Tensor = self.layer(batch[0]).square().mean()
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Plain descent."""
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def on_train_end(self) -> None:
        """Report."""
        report(self.scenario, self.layer, rank=self.global_rank)


def batches() -> DataLoader[Any]:
    """Enough for every rank."""
    return DataLoader(TensorDataset(torch.randn(64, 8)), batch_size=4)
