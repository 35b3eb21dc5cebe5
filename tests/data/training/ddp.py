"""Two ranks under torchrun: four plain steps, then four of two micro-batches each, the first without a sync."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.data.training.evidence import leave_group, report, run_one


def main() -> None:
    """Train on gloo."""
    dist.init_process_group("gloo")
    model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 1)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for number in range(8):
        if number >= 4:
            with model.no_sync():
                model(torch.randn(8, 16) + dist.get_rank()).square().mean().backward()
        model(torch.randn(8, 16) + dist.get_rank()).square().mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    report("ddp", model, rank=dist.get_rank())
    leave_group()


if __name__ == "__main__":
    run_one(main)
