"""Two ranks that this script launches itself. Arguments: how (fork, spawn, forkserver), and whether they fail."""

import os
import sys

import torch
import torch.multiprocessing
from torch import nn

from tests.data.training.evidence import report, run_one


def rank_main(rank: int, ending: str) -> None:
    """Train four steps as `rank`; the second ends in an exception if `ending` is "fail"."""
    os.environ.update(RANK=str(rank), WORLD_SIZE="2")
    torch.manual_seed(rank)
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(4):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        if number == rank == 1 and ending == "fail":
            raise ArithmeticError(number)
        optimizer.step()
    report("launches", model, rank=rank)


def main() -> None:
    """Launch."""
    torch.multiprocessing.start_processes(rank_main, (sys.argv[2],), nprocs=2, start_method=sys.argv[1])


if __name__ == "__main__":
    run_one(main)
