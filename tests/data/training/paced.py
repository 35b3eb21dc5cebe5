"""Trains for a while at an even pace, logs, and saves once. Arguments: SECONDS STEP_S FILE [SLOW].

SLOW: number of a step that takes twenty times as long.
"""

import sys
import time
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

import trainspan


class Texts(IterableDataset[dict[str, Tensor]]):
    """Texts of sixteen tokens, without end."""

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        while True:
            yield {"input_ids": torch.ones(16, dtype=torch.int64)}


def main() -> None:
    """Train until the time is over; the last line is the number of steps."""
    step_s, file = float(sys.argv[2]), sys.argv[3]
    slow_step = int(sys.argv[4]) if len(sys.argv) > 4 else None
    torch.set_num_threads(1)
    model = nn.Linear(32, 32)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    steps = 0
    # From here on: making an optimizer imports torch's compiler, which takes seconds on a busy machine.
    until_s = time.monotonic() + float(sys.argv[1])
    batches = iter(DataLoader(Texts(), batch_size=8))
    while time.monotonic() < until_s:
        next(batches)
        loss = model(torch.randn(8, 32)).square().mean()
        loss.backward()
        time.sleep(20 * step_s if steps == slow_step else step_s)
        optimizer.step()
        optimizer.zero_grad()
        steps += 1
        trainspan.log("loss", loss, step=1000 + steps)
        trainspan.counter("texts", 8)
    torch.save(model.state_dict(), file)
    print(f'{{"steps": {steps}}}', flush=True)


if __name__ == "__main__":
    main()
