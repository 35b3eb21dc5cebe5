"""What a training script ends with: hashes of everything that must not depend on who watches."""

import hashlib
import json
import os
import pickle
import random
import sys
from typing import Any

import numpy
import torch
from torch import nn

torch.set_num_threads(1)


def seed_everything(seed: int = 7) -> None:
    """Start the three generators anew."""
    random.seed(seed)
    numpy.random.seed(seed)
    torch.manual_seed(seed)


def draw() -> float:
    """One number from each of the other two generators, as an augmentation would."""
    return random.random() * 0.01 + float(numpy.random.random()) * 0.01


def digest(*parts: bytes) -> str:
    """A short hash of `parts`."""
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


def weights_of(*modules: nn.Module) -> str:
    """A hash of every bit of the parameters and buffers."""
    tensors = [value for module in modules for _, value in sorted(module.state_dict().items())]
    return digest(*(value.detach().contiguous().numpy().tobytes() for value in tensors))


def report(scenario: str, *modules: nn.Module, **more: Any) -> None:
    """Print one line of JSON: weights, generators, and what this process has open."""
    sockets = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            sockets += os.readlink(f"/proc/self/fd/{name}").startswith("socket:")
        except OSError:
            continue  # the descriptor of the listing itself
    line = {
        "scenario": scenario,
        "weights": weights_of(*modules),
        "random": digest(repr(random.getstate()).encode()),
        "numpy": digest(pickle.dumps(numpy.random.get_state())),
        "torch": digest(torch.get_rng_state().numpy().tobytes()),
        "threads": len(os.listdir("/proc/self/task")),
        "sockets": sockets,
        "opentelemetry": "opentelemetry" in sys.modules,
        **more,
    }
    print(json.dumps(line), flush=True)
