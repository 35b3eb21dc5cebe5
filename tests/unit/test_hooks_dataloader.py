"""Waiting for data: the iterator's making, each batch, the end of an epoch, and a dataset that fails."""

from collections.abc import Iterator
from inspect import signature
from typing import NamedTuple

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, dataloader

from tests.unit.tapes import Tape, recording_marker
from trainspan.record.hooks import dataloader as hook
from trainspan.record.patches import Patches

WAIT = ["enter data_wait", "resume other"]


class Watched(NamedTuple):
    """The tape, and what was put into torch."""

    tape: Tape
    patches: Patches


@pytest.fixture
def watched() -> Iterator[Watched]:
    """Torch with the hook in it."""
    marker, tape = recording_marker()
    patches = Patches()
    hook.install(marker, patches)
    yield Watched(tape, patches)
    patches.undo()


class Samples(Dataset[Tensor]):
    """Three samples, of which one may be broken."""

    def __init__(self, broken: int | None = None) -> None:
        self.broken = broken

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Tensor:
        if index == self.broken:
            raise OSError(index)
        return torch.tensor(float(index))


class Stream(IterableDataset[Tensor]):
    """Samples that come one by one."""

    def __iter__(self) -> Iterator[Tensor]:
        yield from torch.arange(3.0)


@pytest.mark.parametrize("dataset", [Samples(), Stream()], ids=["map", "iterable"])
def test_each_wait_is_marked(watched: Watched, dataset: Dataset[Tensor]) -> None:
    """The iterator's making starts the workers; the last wait finds that the epoch is over, which is no failure."""
    batches = list(DataLoader(dataset))

    assert [float(batch) for batch in batches] == [0, 1, 2]
    assert watched.tape.written() == WAIT * (1 + 3 + 1)


def test_iterator_that_was_there_before_is_marked() -> None:
    """trainspan may be imported by hand, in the middle of a notebook."""
    batches = iter(DataLoader(Samples()))
    marker, tape = recording_marker()
    patches = Patches()
    hook.install(marker, patches)

    next(batches)
    patches.undo()

    assert tape.written() == WAIT


def test_failure_of_the_dataset_reaches_the_user(watched: Watched) -> None:
    """And the next batch can be asked for."""
    batches = iter(DataLoader(Samples(broken=0)))

    with pytest.raises(OSError, match="0"):
        next(batches)
    batch = next(batches)

    assert float(batch) == 1
    assert watched.tape.written() == [*WAIT, "enter data_wait", "abort other", *WAIT]


def test_undoing_leaves_torch_as_it_was(watched: Watched) -> None:
    """The class's own methods are back."""
    watched.patches.undo()
    list(DataLoader(Samples()))

    assert watched.tape.written() == []
    assert not hasattr(dataloader._BaseDataLoaderIter.__next__, "__wrapped__")
    assert not hasattr(DataLoader.__iter__, "__wrapped__")


@pytest.mark.usefixtures("watched")
def test_methods_keep_name_and_signature() -> None:
    """Documentation, mocks made by signature and error messages ask for them."""
    methods = [DataLoader.__iter__, dataloader._BaseDataLoaderIter.__next__]

    shown = [(method.__module__, method.__qualname__, list(signature(method).parameters)) for method in methods]

    assert all(hasattr(method, "__wrapped__") for method in methods)
    assert shown == [
        ("torch.utils.data.dataloader", "DataLoader.__iter__", ["self"]),
        ("torch.utils.data.dataloader", "_BaseDataLoaderIter.__next__", ["self"]),
    ]


def test_what_a_batch_holds_goes_with_its_arrival(watched: Watched) -> None:
    """The making of the iterator and the end of the epoch bring nothing."""
    list(DataLoader(Stream(), batch_size=2))

    assert [mark.operand for mark in watched.tape.slots() if mark is not None] == [0, 0, 0, 2, 0, 1, 0, 0]
