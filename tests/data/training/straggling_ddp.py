"""Two ranks under torchrun whose steps take STEP_S; rank 1 needs half as long again for its input.

Arguments: STEPS STEP_S. Every step of both takes 1.5 times as long then: rank 0 waits for the gradients of rank 1.
"""

import sys
import time
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset


class Batches(IterableDataset[Tensor]):
    """Rows without end, of which each batch takes `wait_s`."""

    def __init__(self, wait_s: float):
        self._wait_s = wait_s

    def __iter__(self) -> Iterator[Tensor]:
        while True:
            time.sleep(self._wait_s)
            yield torch.randn(16)


def main() -> None:
    """Train on gloo."""
    steps, step_s = int(sys.argv[1]), float(sys.argv[2])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = DistributedDataParallel(nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    batches = iter(DataLoader(Batches(step_s / 2 if dist.get_rank() == 1 else 0.0), batch_size=1))
    for _ in range(steps):
        loss = model(next(batches)).square().mean()
        time.sleep(step_s)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    time.sleep(0.2)  # threads of gloo let go of what they reduced last with the GIL, which who waits for them holds
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
