"""Two epochs with DataLoader workers that stay. Arguments: how they are started (fork, spawn, forkserver), how many."""

import os
import sys

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from tests.data.training.evidence import report, run_one


class Perturbed(Dataset[Tensor]):
    """Samples that are moved along a gradient, as adversarial training does: their making runs a small network."""

    def __init__(self) -> None:
        self.samples = torch.randn(16, 8)
        self.critic = nn.Linear(8, 1)

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Tensor:
        if os.getppid() == 1:
            raise RuntimeError("the training process is gone")
        sample = self.samples[index].clone().requires_grad_()
        self.critic(sample).sum().backward()
        assert sample.grad is not None
        return (sample + sample.grad).detach()


def main() -> None:
    """Train for two epochs of four steps."""
    method, count = sys.argv[1], int(sys.argv[2])
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(Perturbed(), 4, num_workers=count, multiprocessing_context=method, persistent_workers=True)
    for _epoch in range(2):
        for samples in loader:
            optimizer.zero_grad()
            model(samples).square().mean().backward()
            optimizer.step()
    report(f"workers-{method}", model)


if __name__ == "__main__":
    run_one(main)
