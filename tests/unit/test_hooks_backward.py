"""Backward: every way to run the autograd engine, and the thread it runs on."""

import threading
from collections.abc import Iterator
from typing import NamedTuple

import pytest
import torch
from torch import autograd
from torch.autograd import backward as backward_by_name
from torch.autograd import grad as grad_by_name

from tests.unit.tapes import Tape, recording_marker
from trainspan.names import Phase
from trainspan.record.hooks import backward
from trainspan.record.marker import Marker
from trainspan.record.patches import Patches

BACKWARD = ["enter backward", "resume other"]


class Watched(NamedTuple):
    """The marker, its tape, and who asked to be recorded."""

    marker: Marker
    tape: Tape
    asked: list[int]
    patches: Patches


@pytest.fixture
def watched() -> Iterator[Watched]:
    """Torch with the hook in it; whoever asks to be recorded is."""
    marker, tape = recording_marker()
    asked: list[int] = []
    patches = Patches()

    def adopt() -> bool:
        asked.append(threading.get_ident())
        marker.adopt_thread()
        return True

    backward.install(marker, patches, adopt)
    yield Watched(marker, tape, asked, patches)
    patches.undo()


def loss() -> torch.Tensor:
    """Something to take a gradient of."""
    return torch.ones(3, requires_grad=True).square().sum()


def test_every_way_of_running_the_engine_is_marked(watched: Watched) -> None:
    """Methods, functions, and functions that were imported by name before the hook was there."""
    weight = torch.ones(3, requires_grad=True)

    loss().backward()
    autograd.backward(loss())
    backward_by_name(loss())
    autograd.grad(weight.sum(), weight)
    grad_by_name(weight.sum(), weight)
    autograd.functional.jacobian(torch.square, torch.ones(1))

    assert watched.tape.written() == BACKWARD * 6


def test_gradient_inside_a_phase_belongs_to_it(watched: Watched) -> None:
    """A penalty on the gradient is part of the forward that computes it."""
    outer = watched.marker.enter(Phase.FORWARD)
    loss().backward()
    watched.marker.resume(outer)

    assert watched.tape.written() == ["enter forward", "resume other"]


def test_failure_reaches_the_user(watched: Watched) -> None:
    """With its type and words."""
    with pytest.raises(RuntimeError, match="does not require grad"):
        torch.ones(1).backward()

    assert watched.tape.written() == ["enter backward", "abort other"]


def test_thread_that_computes_gradients_asks_to_be_recorded(watched: Watched) -> None:
    """The loop may run in another thread than the one that made the optimizer."""
    thread = threading.Thread(target=lambda: loss().backward())

    thread.start()
    thread.join()

    assert watched.asked == [thread.ident]
    assert watched.tape.written() == BACKWARD


def test_undoing_leaves_torch_as_it_was(watched: Watched) -> None:
    """Both names of the one function."""
    watched.patches.undo()
    loss().backward()

    assert watched.tape.written() == []
    assert autograd._engine_run_backward is autograd.graph._engine_run_backward
    assert autograd._engine_run_backward.__module__ == "torch.autograd.graph"
