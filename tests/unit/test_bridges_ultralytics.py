"""Ultralytics, against the least that it must be: a trainer and a validator that run callbacks."""

from io import BytesIO
from pathlib import Path
from types import ModuleType

import pytest
import torch

from tests.unit.followed import Followed
from trainspan.record.bridges import ultralytics
from trainspan.record.hooks import checkpoint


@pytest.fixture
def followed(followed: Followed) -> Followed:
    """Here, with what follows `torch.save`."""
    checkpoint.install(followed.marker, followed.patches, followed.channel.notes)
    return followed


class BaseTrainer:
    """As that of Ultralytics: it puts a checkpoint together in memory."""

    def __init__(self, folder: Path):
        self.last = folder / "last.pt"
        self.epoch = 0
        self.ran: list[str] = []

    def run_callbacks(self, event: str) -> None:
        self.ran.append(event)

    def save_metrics(self, metrics: dict[str, float]) -> int:
        return len(metrics)

    def save_model(self) -> bool:
        buffer = BytesIO()
        torch.save({}, buffer)
        self.last.write_bytes(buffer.getvalue())
        return True


class BaseValidator:
    """As that of Ultralytics."""

    def run_callbacks(self, event: str) -> None:
        """Call whoever wants to know."""

    def __call__(self, batches: int, error: Exception | None = None) -> dict[str, float]:
        self.run_callbacks("on_val_start")
        for _ in range(batches):
            self.run_callbacks("on_val_batch_start")
            self.run_callbacks("on_val_batch_end")
        if error is not None:
            raise error
        return {"fitness": 0.5}


def follow(followed: Followed, name: str, kind: type) -> None:
    """Have a module of Ultralytics followed, which has this class."""
    module = ModuleType(f"ultralytics.engine.{name}")
    setattr(module, kind.__name__, kind)
    ultralytics.install(module, followed.patches, followed.channel)


@pytest.fixture
def trainer(followed: Followed, tmp_path: Path) -> BaseTrainer:
    """A trainer that is followed."""
    follow(followed, "trainer", BaseTrainer)
    return BaseTrainer(tmp_path)


def test_epoch_is_told_with_the_first_step_in_it(followed: Followed, trainer: BaseTrainer) -> None:
    """A batch that is accumulated ends without a step."""
    for trainer.epoch in range(2):
        trainer.run_callbacks("on_train_epoch_start")
        trainer.run_callbacks("on_train_batch_end")
        followed.step()
        trainer.run_callbacks("on_train_batch_end")

    assert [(event["step"], event["global_step"], event["epoch"]) for event in followed.told] == [
        (0, None, 0),
        (1, None, 1),
    ]
    assert trainer.ran == ["on_train_epoch_start", "on_train_batch_end", "on_train_batch_end"] * 2


def test_checkpoint_has_the_file_from_which_training_is_taken_up(followed: Followed, trainer: BaseTrainer) -> None:
    """What torch sees is a buffer, which has no name."""
    answer = trainer.save_model()

    assert answer is True
    assert followed.tape.written() == ["enter checkpoint_save", "resume other"]
    [event] = followed.told
    assert (event["event"], event["kind"], event["ok"]) == ("checkpoint", "save", True)
    assert event["bytes"] == trainer.last.stat().st_size


def test_what_is_written_of_an_epoch_is_told(followed: Followed, trainer: BaseTrainer) -> None:
    """Losses and metrics as in `results.csv`, where they are numbers already."""
    followed.step()

    answer = trainer.save_metrics(metrics={"train/box_loss": 0.5, "metrics/mAP50(B)": 0.25})
    followed.channel.scalars.close()

    assert answer == 2
    assert followed.told[-1]["values"] == {"train/box_loss": 0.5, "metrics/mAP50(B)": 0.25}


def test_evaluation_is_one_as_a_whole(followed: Followed) -> None:
    """With its metrics and its plots; also where an exception leaves it."""
    follow(followed, "validator", BaseValidator)
    validator = BaseValidator()

    answer = validator(3)
    with pytest.raises(ValueError, match="left"):
        validator(1, ValueError("left"))

    assert answer == {"fitness": 0.5}
    assert followed.tape.written() == ["enter validation", "resume other", "enter validation", "abort other"]
    [_, end, *_] = (mark for mark in followed.tape.slots() if mark is not None)
    assert end.operand == 3


@pytest.mark.parametrize("name", ["trainer", "validator"])
def test_another_ultralytics_is_refused(followed: Followed, name: str) -> None:
    """A bridge that does half of its work would be worse than none."""
    with pytest.raises(AttributeError):
        ultralytics.install(ModuleType(f"ultralytics.engine.{name}"), followed.patches, followed.channel)
