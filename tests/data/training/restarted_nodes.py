"""A rank on each of two nodes, which do not speak: rank 1 dies once, while rank 0 goes on until it is stopped.

Argument: a folder both nodes see.
"""

import os
import sys
import time
from pathlib import Path

import torch
from torch import nn

STEPS = 4
EXIT_CODE = 3


def main() -> None:
    """Train."""
    folder, rank = Path(sys.argv[1]), int(os.environ["RANK"])
    torch.set_num_threads(1)
    model = nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)

    def train(steps: int) -> None:
        for _ in range(steps):
            model(torch.randn(8, 64)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    train(STEPS)
    trained, died = folder / "trained", folder / "died"
    if died.exists():
        return
    if rank == 0:
        trained.touch()
        while True:
            time.sleep(0.1)
            train(1)
    while not trained.exists():
        time.sleep(0.05)
    died.touch()
    sys.exit(EXIT_CODE)


if __name__ == "__main__":
    main()
