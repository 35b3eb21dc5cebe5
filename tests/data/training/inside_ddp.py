"""Two ranks under torchrun, with what a step can hold beside forward and backward; one JSON line for the rank.

Argument: how many steps, eight by default. Their loss is compiled, and compiled anew when the batch grows; the gradient
of the third is infinite, so the scaler skips it; after each an `all_reduce` of the loss; a validation of three batches
after the fourth, and a test of two after the last. After the seventh, rank 1 comes late.
"""

import sys
import time

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from tests.data.training.evidence import leave_group, report, run_one

STEPS = int(sys.argv[1]) if sys.argv[1:] else 8


def validate(model: nn.Module, batches: int) -> None:
    """Forward passes without gradients."""
    model.eval()
    with torch.no_grad():
        for _ in range(batches):
            model(torch.randn(8, 16))
    model.train()


def main() -> None:
    """Train on gloo."""
    dist.init_process_group("gloo")
    model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)

    @torch.compile(backend="eager", dynamic=False)
    def loss_of(output: Tensor) -> Tensor:
        return output.square().mean()

    mean = 0.0
    for number in range(STEPS):
        batch = torch.randn(8 if number < 5 else 12, 16) + dist.get_rank()
        loss = loss_of(model(batch))
        (scaler.scale(loss) * (float("inf") if number == 2 else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        if number == 6 and dist.get_rank() == 1:
            time.sleep(0.3)  # rank 0 waits for this one
        total = loss.detach().clone()
        dist.all_reduce(total)
        mean += float(total) / STEPS
        if number == 3:
            validate(model, 3)
    validate(model, 2)
    dist.barrier()
    report("inside", model, rank=dist.get_rank(), mean=mean)
    leave_group()


if __name__ == "__main__":
    run_one(main)
