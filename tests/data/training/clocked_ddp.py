"""Two ranks, DDP on gloo: each prints, per step, what its own clock says of the step's forward and backward."""

import gc
import json
import sys
import time

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

WIDTH = 512
STEPS = 8


def main() -> None:
    """Train, and print one JSON line for the rank."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    samples = torch.randn(STEPS * 2 * 128, WIDTH)
    dataset = TensorDataset(samples, samples.flip(1))
    loader: DataLoader[tuple[Tensor, Tensor]] = DataLoader(dataset, 128, sampler=DistributedSampler(dataset))
    model = DistributedDataParallel(nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(12)]))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    clocked = []
    for inputs, targets in loader:
        started_ns = time.monotonic_ns()
        output = model(inputs)
        forward_ns = time.monotonic_ns()
        loss = nn.functional.mse_loss(output, targets)
        loss_ns = time.monotonic_ns()
        loss.backward()
        backward_ns = time.monotonic_ns()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        clocked.append({"forward_ns": forward_ns - started_ns, "backward_ns": backward_ns - loss_ns})
    # One write: the ranks share one pipe, and `print` may write its newline apart.
    sys.stdout.write(json.dumps({"rank": dist.get_rank(), "steps": clocked}) + "\n")
    sys.stdout.flush()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # see evidence.run_one
