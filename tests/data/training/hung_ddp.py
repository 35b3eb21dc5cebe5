"""Two ranks, DDP on gloo: in step 3 rank 1 waits for a file before its forward, and rank 0 for rank 1's gradients.

Argument: the file.
"""

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    """Train until the end."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = DistributedDataParallel(nn.Linear(16, 16))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    for step in range(6):
        while step == 3 and dist.get_rank() == 1 and not Path(sys.argv[1]).exists():
            time.sleep(0.05)
        model(torch.randn(4, 16)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    time.sleep(0.2)  # threads of gloo let go of what they reduced last with the GIL, which who waits for them holds
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
