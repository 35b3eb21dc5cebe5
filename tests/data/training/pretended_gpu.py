"""Trains on the CPU for a while, on a torch that says it uses a GPU. Arguments: SECONDS STEP_S.

The time of that GPU is the host's: it gets to an event at once. The last line is how long it trained.
"""

import gc
import json
import os
import sys
import time
from types import SimpleNamespace

import torch
from torch import nn

import trainspan
from trainspan.testing.fake_cuda import FakeCuda

MEMORY = {
    "reserved_bytes.all.current": 60 << 30,
    "active_bytes.all.current": 50 << 30,
    "allocated_bytes.all.current": 48 << 30,
    "allocated_bytes.all.peak": 55 << 30,
    "num_alloc_retries": 2,
    "num_ooms": 0,
}
"""What the allocator of a full H100 counts."""


def pretend() -> None:
    """What torch says once a device is in use: the one of this process's local rank, of an older kind of torch."""
    fake = FakeCuda()
    torch.cuda.is_initialized = lambda: True
    torch.cuda.current_device = lambda: int(os.environ.get("LOCAL_RANK", "0"))
    torch._C._cuda_hasPrimaryContext = lambda _: True
    torch.cuda.get_device_properties = lambda _: SimpleNamespace(name="NVIDIA H100 80GB HBM3")
    torch.cuda.memory_stats = lambda _: MEMORY
    torch.cuda.current_stream = lambda _: fake.current
    torch.cuda.is_current_stream_capturing = lambda: fake.capturing
    torch.cuda.Event = fake.make_event
    for call, _ in torch.cuda._queued_calls:
        if "trainspan" in call.__module__:
            call()


def main() -> None:
    """Train until the time is over."""
    torch.set_num_threads(1)
    pretend()
    model = nn.Linear(32, 32)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    begun_s = time.monotonic()
    while time.monotonic() < begun_s + float(sys.argv[1]):
        loss = model(torch.randn(8, 32)).square().mean()
        time.sleep(float(sys.argv[2]))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        trainspan.processed(samples=8, tokens=128)
    trained_s = time.monotonic() - begun_s
    # One write, its end included: two ranks print at the same time.
    sys.stdout.write(json.dumps({"rank": int(os.environ.get("RANK", "0")), "trained_s": trained_s}) + "\n")


if __name__ == "__main__":
    main()
    gc.collect()
