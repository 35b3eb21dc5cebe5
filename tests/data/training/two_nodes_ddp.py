"""Four ranks, DDP on gloo: in step 8 rank 2 alone has a batch of the wrong shape first, catches that, and goes on."""

import contextlib
import gc
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS = 12
FAILS_IN = 8


def main() -> None:
    """Train until the end."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    model = DistributedDataParallel(nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    for step in range(STEPS):
        batch = torch.randn(8, 64)
        if step == FAILS_IN and dist.get_rank() == 2:
            with contextlib.suppress(RuntimeError):
                model(batch[:, :-1])
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    time.sleep(0.2)  # threads of gloo let go of what they reduced last with the GIL, which who waits for them holds
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # see evidence.run_one
