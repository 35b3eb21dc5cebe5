"""mmengine, against the least that it must be: a runner that calls hooks, loops that are run, and a visualizer."""

from io import BytesIO
from pathlib import Path
from types import ModuleType

import pytest
import torch

from tests.unit.followed import Followed
from trainspan.record.bridges import mmengine
from trainspan.record.hooks import checkpoint


@pytest.fixture
def followed(followed: Followed) -> Followed:
    """Here, with what follows `torch.save`."""
    checkpoint.install(followed.marker, followed.patches, followed.channel.notes)
    return followed


class EpochBasedTrainLoop:
    """As that of mmengine."""

    epoch = 0


class IterBasedTrainLoop:
    """As that of mmengine: its epoch is always the first."""

    epoch = 0


class Runner:
    """As that of mmengine: it puts a checkpoint together in memory."""

    def __init__(self, train_loop: object):
        self.train_loop = train_loop
        self.called: list[str] = []

    def call_hook(self, fn_name: str, **_: object) -> None:
        self.called.append(fn_name)

    def save_checkpoint(self, out_dir: str, filename: str) -> None:
        buffer = BytesIO()
        torch.save({}, buffer)
        (Path(out_dir) / filename).write_bytes(buffer.getvalue())


class ValLoop:
    """As that of mmengine."""

    def __init__(self, runner: Runner):
        self.runner = runner

    def run(self, batches: int, error: Exception | None = None) -> dict[str, float]:
        for number in range(batches):
            self.runner.call_hook(f"after_{self._kind()}_iter", batch_idx=number)
        if error is not None:
            raise error
        return {"accuracy": 0.5}

    def _kind(self) -> str:
        return "val"


class TestLoop(ValLoop):
    """The same, of a test."""

    __test__ = False  # nothing that pytest should run

    def run(self, batches: int, error: Exception | None = None) -> dict[str, float]:
        return super().run(batches, error)

    def _kind(self) -> str:
        return "test"


class Visualizer:
    """As that of mmengine."""

    def add_scalars(self, scalar_dict: dict[str, float]) -> int:
        return len(scalar_dict)


@pytest.fixture(autouse=True)
def _followed_package(followed: Followed) -> None:
    """A package as mmengine is followed."""
    module = ModuleType("mmengine.runner.runner")
    for kind in (EpochBasedTrainLoop, Runner, ValLoop, TestLoop, Visualizer):
        setattr(module, kind.__name__, kind)
    mmengine.install(module, followed.patches, followed.channel)


def test_epoch_is_told_with_the_first_step_in_it(followed: Followed) -> None:
    """A batch that is accumulated ends without a step."""
    loop = EpochBasedTrainLoop()
    runner = Runner(loop)

    for loop.epoch in range(2):
        runner.call_hook("after_train_iter", batch_idx=0)
        followed.step()
        runner.call_hook("after_train_iter", batch_idx=1)

    assert [(event["step"], event["global_step"], event["epoch"]) for event in followed.told] == [
        (0, None, 0),
        (1, None, 1),
    ]
    assert runner.called == ["after_train_iter"] * 4


def test_loop_by_iterations_has_no_epoch(followed: Followed) -> None:
    """It says the first to its end."""
    runner = Runner(IterBasedTrainLoop())

    followed.step()
    runner.call_hook("after_train_iter", batch_idx=0)

    assert followed.told == []


def test_checkpoint_has_its_file(followed: Followed, tmp_path: Path) -> None:
    """What torch sees is a buffer, which has no name."""
    runner = Runner(EpochBasedTrainLoop())

    runner.save_checkpoint(str(tmp_path), "epoch_1.pth")
    runner.save_checkpoint(str(tmp_path), filename="epoch_2.pth")

    assert followed.tape.written() == ["enter checkpoint_save", "resume other"] * 2
    assert [event["bytes"] for event in followed.told] == [
        (tmp_path / name).stat().st_size for name in ("epoch_1.pth", "epoch_2.pth")
    ]


@pytest.mark.parametrize("kind", [ValLoop, TestLoop])
def test_evaluation_is_one_as_a_whole(followed: Followed, kind: type[ValLoop]) -> None:
    """With its hooks and metrics; also where an exception leaves it."""
    loop = kind(Runner(EpochBasedTrainLoop()))

    answer = loop.run(3)
    with pytest.raises(ValueError, match="left"):
        loop.run(1, ValueError("left"))

    assert answer == {"accuracy": 0.5}
    [_, end, *_] = (mark for mark in followed.tape.slots() if mark is not None)
    assert followed.tape.written() == ["enter validation", "resume other", "enter validation", "abort other"]
    assert end.operand == 3


def test_what_the_visualizer_gets_is_told(followed: Followed) -> None:
    """Where `LoggerHook` has made numbers of it."""
    followed.step()

    answer = Visualizer().add_scalars({"loss": 0.5})
    followed.channel.scalars.close()

    assert answer == 1
    assert followed.told[-1]["values"] == {"loss": 0.5}


def test_another_mmengine_is_refused(followed: Followed) -> None:
    """A bridge that does half of its work would be worse than none."""
    with pytest.raises(AttributeError):
        mmengine.install(ModuleType("empty"), followed.patches, followed.channel)
