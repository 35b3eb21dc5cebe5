"""What a training script ends with: hashes of everything that must not depend on who watches."""

import gc
import hashlib
import json
import os
import pickle
import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy
import torch
import torch.distributed as dist
from torch import nn

torch.set_num_threads(1)


def leave_group() -> None:
    """Leave the process group, once threads of gloo have let go of what they reduced last.

    That takes the GIL, which torch holds where it waits for them to end: a process could then wait for ever.
    """
    time.sleep(0.2)
    dist.destroy_process_group()


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


def run_each(scenarios: Mapping[str, Callable[[], None]], names: Sequence[str]) -> None:
    """Run scenarios: one in this process; more of them one after the other, each in a fork of its own.

    Of a fork it prints how it ended, as one line of JSON.
    """
    if len(names) == 1:
        run_one(scenarios[names[0]])
        return
    # Making an optimizer imports it, which takes seconds: here it does so once for all.
    import_module("torch._dynamo")
    for name in names:
        child = os.fork()
        if not child:
            run_one(scenarios[name])
            sys.exit()
        _, status = os.waitpid(child, 0)
        write_line(name=name, pid=child, exit_code=os.waitstatus_to_exitcode(status))


def run_one(scenario: Callable[[], None]) -> None:
    """Run a scenario from the same state of all generators, whatever ran before."""
    random.seed(7)
    numpy.random.seed(7)
    torch.manual_seed(7)
    scenario()
    # A thread of gloo that lets go of the last tensor while the interpreter goes down aborts the process: torch's own
    # flaw, in one run of ten on a busy machine. A model of DistributedDataParallel is in a cycle; here it goes before.
    gc.collect()


def report(scenario: str, *modules: nn.Module, **more: Any) -> None:
    """Print one line of JSON: weights, generators, and what this process has open."""
    sockets = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            sockets += os.readlink(f"/proc/self/fd/{name}").startswith("socket:")
        except OSError:
            continue  # the descriptor of the listing itself
    write_line(
        scenario=scenario,
        pid=os.getpid(),
        weights=weights_of(*modules),
        random=digest(repr(random.getstate()).encode()),
        numpy=digest(pickle.dumps(numpy.random.get_state())),
        torch=digest(torch.get_rng_state().numpy().tobytes()),
        threads=len(os.listdir("/proc/self/task")),
        sockets=sockets,
        opentelemetry="opentelemetry" in sys.modules,
        **more,
    )


def write_line(**fields: Any) -> None:
    """Print one line of JSON."""
    # One write, so that the lines of two ranks do not mix.
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()
