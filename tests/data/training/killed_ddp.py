"""Two ranks, DDP on gloo: rank 1 kills itself in the backward of step 3, while rank 0 waits for its gradients."""

import os
import signal

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
    for step in range(10):
        output = model(torch.randn(4, 16))
        if step == 3 and dist.get_rank() == 1:
            output.register_hook(lambda _: os.kill(os.getpid(), signal.SIGKILL))
        output.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
