"""Trains on torch as it would be without one of the names that the hooks use. Arguments: the names to do without.

Each in a fork of its own, hooked by hand once the name is gone; prints what that process said on stderr, as JSON.
"""

import json
import os
import sys
import tempfile
from importlib import import_module
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from trainspan.record import bootstrap

torch.set_num_threads(1)
NOTHING = "nothing"


def do_without(name: str) -> None:
    """Take `name` out of torch, in a way that torch itself still works."""
    if name == NOTHING:
        return
    place, _, attribute = name.rpartition(".")
    owner: Any = nn.Module if place == "torch.nn.Module" else import_module(place)
    if attribute == "_compiled_call_impl":
        nn.Module.__call__ = nn.Module._call_impl
    delattr(owner, attribute)


def train() -> None:
    """Three steps, each with every phase."""
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for (inputs,) in DataLoader(TensorDataset(torch.randn(12, 8)), batch_size=4):
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        torch.nn.utils.clip_grad.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


def main() -> None:
    """Fork for each name."""
    import_module("torch._dynamo")
    for name in sys.argv[1:]:
        with tempfile.TemporaryFile("w+") as said:
            child = os.fork()
            if not child:
                os.dup2(said.fileno(), 2)
                do_without(name)
                bootstrap.place_hooks(bootstrap.make_recorder())
                train()
                sys.exit()
            _, status = os.waitpid(child, 0)
            said.seek(0)
            exit_code, lines = os.waitstatus_to_exitcode(status), said.read().splitlines()
            print(json.dumps({"name": name, "pid": child, "exit_code": exit_code, "stderr": lines}), flush=True)


if __name__ == "__main__":
    main()
