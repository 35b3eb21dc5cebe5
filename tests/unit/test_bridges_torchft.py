"""torchft, against the least that it must be: a manager that says whether to step, and an optimizer that asks it."""

from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Optimizer

from tests.unit.followed import Followed
from trainspan.record.bridges import torchft
from trainspan.recording.layout import SKIPPED


class Manager:
    """As torchft's. `agreements`: what the replicas are going to say."""

    def __init__(self, *agreements: bool, step: int = 0):
        self._agreements = iter(agreements)
        self._step = step
        self._commit_failures = 0

    def current_step(self) -> int:
        return self._step

    def should_commit(self) -> bool:
        agreed = next(self._agreements)
        self._step += agreed
        self._commit_failures = 0 if agreed else self._commit_failures + 1
        return agreed


class OptimizerWrapper(Optimizer):
    """As torchft's: torch's own constructor is not called, so torch's hooks do not see it."""

    def __init__(self, manager: Any, optim: Optimizer):
        self.optim = optim
        self.manager = manager

    def step(self, closure: object = None) -> None:
        assert closure is None
        if self.manager.should_commit():
            self.optim.step()


@pytest.fixture
def package(followed: Followed) -> ModuleType:
    """A package as torchft, followed."""
    module = ModuleType("torchft.optim")
    # A class of its own: torch notes in a class that it has put its hooks around `step`.
    module.__dict__.update(
        OptimizerWrapper=type("OptimizerWrapper", (OptimizerWrapper,), vars(OptimizerWrapper).copy())
    )
    torchft.install(module, followed.patches, followed.channel)
    return module


def inner() -> SGD:
    """An optimizer to wrap."""
    return SGD([nn.Parameter(torch.ones(2))], lr=0.1)


def steps(followed: Followed) -> list[tuple[int, bool]]:
    """The number of every step that has ended, and whether it was skipped."""
    ends = [mark.operand for mark in followed.tape.slots() if mark is not None and mark.kind == "step"]
    return [(operand & ~SKIPPED, bool(operand & SKIPPED)) for operand in ends]


def test_a_commit_is_one_step(followed: Followed, package: ModuleType) -> None:
    """The inner optimizer steps in it; to ask the peers is a part of it."""
    optimizer = package.OptimizerWrapper(Manager(True, True), inner())

    optimizer.step()
    optimizer.step()

    assert followed.tape.written() == ["enter optimizer", "step other 0", "enter optimizer", "step other 1"]


def test_what_is_not_committed_is_a_skipped_step(followed: Followed, package: ModuleType) -> None:
    """While a peer is away, the others try again and again: each try has its own batch."""
    optimizer = package.OptimizerWrapper(Manager(True, False, False, True, step=10), inner())

    for _ in range(4):
        optimizer.step()

    assert steps(followed) == [(0, False), (1, True), (2, True), (3, False)]
    assert [(event["step"], event["global_step"]) for event in followed.told] == [(0, 11), (1, 11), (2, 11)]


def test_replica_that_heals_counts_on_from_its_peers(followed: Followed, package: ModuleType) -> None:
    """It takes over their step while it tries, so a step that has changed is no step that was made."""
    manager = Manager(False, True)
    optimizer = package.OptimizerWrapper(manager, inner())

    manager._step = 40
    optimizer.step()
    optimizer.step()

    assert steps(followed) == [(0, True), (1, False)]
    assert [(event["step"], event["global_step"]) for event in followed.told] == [(0, 40)]


def test_failure_of_the_manager_passes_through(followed: Followed, package: ModuleType) -> None:
    """Too many failed commits end a replica with an exception of its own."""
    optimizer = package.OptimizerWrapper(Manager(), inner())

    with pytest.raises(StopIteration):
        optimizer.step()

    assert followed.tape.written() == ["enter optimizer", "abort other"]
    assert followed.told == []


def test_another_torchft_is_refused(followed: Followed) -> None:
    """A bridge that does half of its work would be worse than none."""
    with pytest.raises(AttributeError):
        torchft.install(ModuleType("empty"), followed.patches, followed.channel)
