"""Models spread over two ranks, four steps each. Argument: `fsdp1`, `fsdp2` or `pipeline`."""

import sys

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from tests.data.training.evidence import leave_group, report, run_one

try:
    from torch.distributed.fsdp import fully_shard
except ImportError:  # before torch 2.6
    from torch.distributed._composable.fsdp import fully_shard

STEPS = 4
MICROBATCHES = 4


def make_model() -> nn.Sequential:
    """A model of two equal halves."""
    return nn.Sequential(*[nn.Sequential(nn.Linear(16, 16), nn.ReLU()) for _ in range(2)])


def train(name: str, model: nn.Module) -> None:
    """A plain loop with clipping."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(STEPS):
        model(torch.randn(8, 16) + dist.get_rank()).square().mean().backward()
        if isinstance(model, FullyShardedDataParallel):
            model.clip_grad_norm_(1.0)
        else:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    local = nn.ParameterList([getattr(p, "_local_tensor", p).detach() for p in model.parameters()])
    report(name, local, rank=dist.get_rank())


def fsdp1() -> None:
    """FullyShardedDataParallel, each half and the whole."""
    policy = ModuleWrapPolicy({nn.Linear})
    train("fsdp1", FullyShardedDataParallel(make_model(), auto_wrap_policy=policy, device_id=torch.device("cpu")))


def fsdp2() -> None:
    """`fully_shard` of each half and of the whole."""
    model = make_model()
    for half in model:
        fully_shard(half)
    fully_shard(model)
    train("fsdp2", model)


def pipeline() -> None:
    """One half on each rank, four micro-batches a step, one forward and one backward in turn."""
    rank = dist.get_rank()
    half = make_model()[rank]
    stage = PipelineStage(half, rank, 2, torch.device("cpu"))
    schedule = Schedule1F1B(stage, MICROBATCHES, loss_fn=nn.functional.mse_loss)
    optimizer = torch.optim.SGD(half.parameters(), lr=1e-2)
    for _ in range(STEPS):
        batch: Tensor = torch.randn(8, 16)
        if rank == 0:
            schedule.step(batch)
        else:
            schedule.step(target=batch)
        optimizer.step()
        optimizer.zero_grad()
    report("pipeline", half, rank=rank)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    run_one({"fsdp1": fsdp1, "fsdp2": fsdp2, "pipeline": pipeline}[sys.argv[1]])
    leave_group()
