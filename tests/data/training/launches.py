"""Two ranks that this script launches itself. Argument: how (fork, spawn, forkserver)."""

import os
import sys

import torch
import torch.multiprocessing
from torch import nn

from tests.data.training.evidence import report, run_one


def rank_main(rank: int) -> None:
    """Train four steps as `rank`."""
    os.environ.update(RANK=str(rank), WORLD_SIZE="2")
    torch.manual_seed(rank)
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
    report("launches", model, rank=rank)


def main() -> None:
    """Launch."""
    torch.multiprocessing.start_processes(rank_main, nprocs=2, start_method=sys.argv[1])


if __name__ == "__main__":
    run_one(main)
