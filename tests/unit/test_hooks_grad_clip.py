"""Gradient clipping: torch's functions, and the method of FSDP1."""

import inspect
from collections.abc import Iterator
from types import ModuleType
from typing import NamedTuple

import pytest
import torch
from torch.nn import utils
from torch.nn.utils import clip_grad

from tests.unit.tapes import Tape, recording_marker
from trainspan.record.hooks import grad_clip
from trainspan.record.marker import Marker
from trainspan.record.patches import Patches

CLIP = ["enter grad_clip", "resume other"]


class Watched(NamedTuple):
    """The marker, its tape, and what was put into torch."""

    marker: Marker
    tape: Tape
    patches: Patches


@pytest.fixture
def watched() -> Iterator[Watched]:
    """Torch with the hook in it."""
    marker, tape = recording_marker()
    patches = Patches()
    grad_clip.install(marker, patches)
    yield Watched(marker, tape, patches)
    patches.undo()


def weight() -> torch.nn.Parameter:
    """A parameter whose gradient has the norm 5."""
    parameter = torch.nn.Parameter(torch.zeros(2))
    parameter.grad = torch.tensor([3.0, 4.0])
    return parameter


def test_each_clipping_is_marked_once(watched: Watched) -> None:
    """One function calls another one: it is one clipping."""
    norm = utils.clip_grad_norm_(weight(), 1.0)
    utils.clip_grad_value_(weight(), 1.0)
    clip_grad.clip_grad_norm_(weight(), 1.0)

    assert float(norm) == 5
    assert watched.tape.written() == CLIP * 3


@pytest.mark.skipif(
    not hasattr(utils, "get_total_norm"),
    reason="before torch 2.6 clipping is one function; would have shown that each half is marked",
)
def test_clipping_in_two_halves_is_marked_twice(watched: Watched) -> None:
    """Who clips the norm of several models takes the norm apart from the scaling."""
    total = utils.get_total_norm([torch.tensor([3.0, 4.0])])
    utils.clip_grads_with_norm_(weight(), 1.0, total)

    assert float(total) == 5
    assert watched.tape.written() == CLIP * 2


def test_failure_reaches_the_user(watched: Watched) -> None:
    """A gradient that is not finite, where the user has asked to be told."""
    parameter = weight()
    parameter.grad = torch.tensor([float("nan"), 1.0])

    with pytest.raises(RuntimeError, match="non-finite"):
        utils.clip_grad_norm_(parameter, 1.0, error_if_nonfinite=True)

    assert watched.tape.written() == ["enter grad_clip", "abort other"]


def test_function_looks_as_it_did(watched: Watched) -> None:
    """Configuration tools read signatures."""
    marked = utils.clip_grad_norm_
    watched.patches.undo()
    original = utils.clip_grad_norm_

    assert marked is not original
    assert inspect.signature(marked) == inspect.signature(original)
    assert (marked.__name__, marked.__module__, marked.__doc__) == (
        original.__name__,
        original.__module__,
        original.__doc__,
    )


def test_method_of_fsdp_is_marked(watched: Watched) -> None:
    """It shards the gradients and calls none of the functions."""

    class FullyShardedDataParallel:
        def clip_grad_norm_(self, max_norm: float) -> float:
            return max_norm

    module = ModuleType(grad_clip.FSDP1_MODULE)
    module.__dict__["FullyShardedDataParallel"] = FullyShardedDataParallel

    grad_clip.install_fsdp1(module, watched.marker, watched.patches)
    norm = FullyShardedDataParallel().clip_grad_norm_(2.0)

    assert norm == 2
    assert watched.tape.written() == CLIP


def test_undoing_leaves_torch_as_it_was(watched: Watched) -> None:
    """Under both of its names."""
    watched.patches.undo()
    utils.clip_grad_norm_(weight(), 1.0)

    assert watched.tape.written() == []
    assert utils.clip_grad_norm_ is clip_grad.clip_grad_norm_
