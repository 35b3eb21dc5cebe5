"""Training that is not done by the main thread. Argument: how."""

import queue
import sys
import threading
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from tests.data.training.evidence import report, run_each

BATCHES = 6


def batches() -> DataLoader[tuple[Tensor, ...]]:
    """A plain loader."""
    return DataLoader(TensorDataset(torch.randn(4 * BATCHES, 8)), batch_size=4)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, source: Iterator[Tensor]) -> None:
    """A plain loop."""
    for inputs in source:
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()


def plain(model: nn.Module) -> None:
    """Make an optimizer, and train with it."""
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), (inputs for (inputs,) in batches()))


def in_thread(*jobs: threading.Thread) -> None:
    """Run threads, one after the other."""
    for job in jobs:
        job.start()
        job.join()


def whole() -> None:
    """Everything in a thread, as Ray has it."""
    model = nn.Linear(8, 1)
    in_thread(threading.Thread(target=plain, args=(model,)))
    report("whole", model)


def loop() -> None:
    """The optimizer is made by the main thread, the loop runs in another."""
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    source = (inputs for (inputs,) in batches())
    in_thread(threading.Thread(target=train, args=(model, optimizer, source)))
    report("loop", model)


def twice() -> None:
    """One training after the other, each in a thread of its own, as a search for hyperparameters has it."""
    models = [nn.Linear(8, 1), nn.Linear(8, 1)]
    in_thread(*(threading.Thread(target=plain, args=(model,)) for model in models))
    report("twice", *models)


def prefetch() -> None:
    """A thread fetches the batches, and runs a network that is never trained on each."""
    ahead: queue.Queue[Tensor | None] = queue.Queue(maxsize=2)
    features = nn.Linear(8, 8).requires_grad_(False)

    def fetch() -> None:
        for (inputs,) in batches():
            ahead.put(features(inputs))
        ahead.put(None)

    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    fetcher = threading.Thread(target=fetch)
    fetcher.start()
    train(model, optimizer, iter(ahead.get, None))
    fetcher.join()
    report("prefetch", model)


def beside() -> None:
    """A second thread trains a model of its own all the while."""
    model, other = nn.Linear(8, 1), nn.Linear(8, 1)
    began, done = threading.Event(), threading.Event()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train_other() -> None:
        second = torch.optim.SGD(other.parameters(), lr=0.1)
        while not done.is_set():
            second.zero_grad()
            other(torch.ones(2, 8)).square().mean().backward()
            second.step()
            began.set()

    inputs = torch.randn(BATCHES, 4, 8)
    train(model, optimizer, iter(inputs[:2]))
    beside = threading.Thread(target=train_other)
    beside.start()
    began.wait()
    train(model, optimizer, iter(inputs[2:]))
    done.set()
    beside.join()
    report("beside", model)


if __name__ == "__main__":
    run_each({"whole": whole, "loop": loop, "twice": twice, "prefetch": prefetch, "beside": beside}, sys.argv[1:])
