"""Trains for a while at an even pace, and saves once. Arguments: SECONDS STEP_S FILE."""

import sys
import time

import torch
from torch import nn


def main() -> None:
    """Train until the time is over; the last line is the number of steps."""
    until_s, step_s, file = time.monotonic() + float(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
    torch.set_num_threads(1)
    model = nn.Linear(32, 32)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    steps = 0
    while time.monotonic() < until_s:
        model(torch.randn(8, 32)).square().mean().backward()
        time.sleep(step_s)
        optimizer.step()
        optimizer.zero_grad()
        steps += 1
    torch.save(model.state_dict(), file)
    print(f'{{"steps": {steps}}}', flush=True)


if __name__ == "__main__":
    main()
