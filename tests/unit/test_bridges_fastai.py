"""fastai, against the least that it must be: an optimizer that is none of torch's, and a Learner that steps it."""

from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.unit.followed import Followed
from trainspan.record.bridges import fastai


class Optimizer:
    """As fastai's."""

    def __init__(self, params: Any):
        self.param_groups = [{"params": params}]

    def step(self) -> None:
        """Update the parameters."""


class Learner:
    """As fastai's: what predicts goes through the epoch of validation, too."""

    epoch = 3

    def __init__(self, optimizer: Any):
        self.opt = optimizer

    def _step(self) -> None:
        self.opt.step()

    def one_batch(self, i: int, b: Any) -> None:
        """Compute the prediction."""

    def _do_epoch_validate(self, batches: int, error: Exception | None = None) -> str:
        for number in range(batches):
            self.one_batch(number, None)
        if error is not None:
            raise error
        return "validated"


class Recorder:
    """As fastai's: of each epoch its number, the metrics, and the time as a text."""

    metric_names = ("epoch", "train_loss", "accuracy", "time")

    def __init__(self) -> None:
        self.learn = SimpleNamespace()

    def after_epoch(self) -> None:
        self.learn.final_record = [0.5, 0.75]


@pytest.fixture
def learner(followed: Followed) -> Learner:
    """A learner of a package as fastai, followed."""
    module = ModuleType("fastai.learner")
    module.__dict__.update(Optimizer=Optimizer, Learner=Learner, Recorder=Recorder)
    fastai.install(module, followed.patches, followed.channel)
    return Learner(Optimizer([]))


def test_learner_trains(followed: Followed, learner: Learner) -> None:
    """Its optimizers are no subclass of torch's: nothing else says that a step has ended."""
    learner._step()
    learner.epoch = 4
    learner._step()

    marks = ["enter optimizer", "step other 0", "enter optimizer", "step other 1"]
    assert followed.tape.written() == marks
    assert followed.claims == 1
    assert [(event["step"], event["global_step"], event["epoch"]) for event in followed.told] == [
        (0, None, 3),
        (1, None, 4),
    ]


def test_validation_of_a_learner_is_one_as_a_whole(followed: Followed, learner: Learner) -> None:
    """With its metrics and callbacks; also where an exception, as Ctrl-C in a notebook, leaves it."""
    learner.one_batch(0, None)
    answer = learner._do_epoch_validate(5)
    learner.one_batch(1, None)
    with pytest.raises(ValueError, match="left"):
        learner._do_epoch_validate(5, ValueError("left"))

    assert answer == "validated"
    assert followed.tape.written() == ["enter validation", "resume other", "enter validation", "abort other"]
    [_, end, *_] = (mark for mark in followed.tape.slots() if mark is not None)
    assert end.operand == 5


def test_what_the_recorder_shows_of_an_epoch_is_told(followed: Followed, learner: Learner) -> None:
    """Losses and metrics, by the names that fastai prints above them."""
    learner._step()

    Recorder().after_epoch()
    followed.channel.scalars.close()

    assert followed.told[-1]["values"] == {"train_loss": 0.5, "accuracy": 0.75}


def test_another_fastai_is_refused(followed: Followed) -> None:
    """A bridge that does half of its work would be worse than none."""
    with pytest.raises(AttributeError):
        fastai.install(ModuleType("empty"), followed.patches, followed.channel)
