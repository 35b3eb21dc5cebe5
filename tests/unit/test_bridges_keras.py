"""Keras on torch, against the least that it must be: optimizers that are none of torch's, and models that it fits."""

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.unit.followed import Followed
from trainspan.names import Phase
from trainspan.record.bridges import keras, keras_checkpoint


class Optimizer:
    """As the base of Keras's."""

    def __init__(self, accumulate: int | None = None):
        self.gradient_accumulation_steps = accumulate
        self._calls = 0

    def apply(self, *_: Any) -> None:
        self._calls += 1
        if self.gradient_accumulation_steps and self._calls % self.gradient_accumulation_steps == 0:
            self._backend_reset_gradient_accumulators()

    def _backend_reset_gradient_accumulators(self) -> None:
        raise AssertionError


class Adam(Optimizer):
    """As Keras's on torch, which has its own way to forget what it has accumulated."""

    def _backend_reset_gradient_accumulators(self) -> None:
        """Begin anew."""


class CallbackList:
    """As Keras's."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """An epoch begins."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """An epoch ends."""

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        """A batch has been evaluated."""

    on_predict_batch_end = on_test_batch_end


class Trainer:
    """As the base of Keras's trainers."""

    def _symbolic_build(self, iterator: Any) -> None:
        next(iterator)


class TorchTrainer(Trainer):
    """As Keras's on torch."""

    def __init__(self, optimizer: Optimizer):
        self.optimizer = optimizer

    def fit(self, batches: list[int], epochs: int) -> str:
        callbacks = CallbackList()
        for epoch in range(epochs):
            callbacks.on_epoch_begin(epoch)
            for batch in batches:
                self.optimizer.apply([batch])
            callbacks.on_epoch_end(epoch, {"loss": 0.5 + epoch})
        return "fitted"

    def evaluate(self, batches: int, error: Exception | None = None) -> str:
        for batch in range(batches):
            CallbackList().on_test_batch_end(batch, {})
        if error is not None:
            raise error
        return "evaluated"

    predict = evaluate


@pytest.fixture
def trainer_class(followed: Followed) -> type[TorchTrainer]:
    """The trainer of a package as Keras, followed."""
    module = ModuleType("keras.src.backend.torch.trainer")
    module.__dict__.update(
        TorchTrainer=TorchTrainer,
        base_trainer=SimpleNamespace(Trainer=Trainer),
        callbacks_module=SimpleNamespace(CallbackList=CallbackList),
        optimizers_module=SimpleNamespace(Optimizer=Optimizer),
    )
    keras.install(module, followed.patches, followed.channel)
    return TorchTrainer


def test_model_that_is_fitted_trains(followed: Followed, trainer_class: type[TorchTrainer]) -> None:
    """Its optimizers are no subclass of torch's: nothing else says that a step has ended."""
    answer = trainer_class(Adam()).fit([1, 2], epochs=2)
    followed.channel.scalars.close()

    ends = [mark for mark in followed.tape.written() if mark != "enter optimizer"]
    assert answer == "fitted"
    assert followed.claims == 1
    assert ends == ["step other 0", "step other 1", "step other 2", "step other 3"]
    assert [(event["step"], event["global_step"], event["epoch"]) for event in followed.told[:2]] == [
        (0, None, 0),
        (2, None, 1),
    ]
    assert followed.told[-1]["values"] == {"loss": 1.5}


def test_optimizer_that_accumulates_steps_at_the_last(followed: Followed, trainer_class: type[TorchTrainer]) -> None:
    """Keras calls it for each micro-batch: three of them are one step, and what is left at the end is none."""
    trainer_class(Adam(accumulate=3)).fit([1, 2, 3, 4], epochs=1)

    ends = [mark for mark in followed.tape.written() if mark != "enter optimizer"]
    assert ends == ["resume other", "resume other", "step other 0", "resume other"]


def test_loop_of_ones_own_has_no_epoch(followed: Followed, trainer_class: type[TorchTrainer]) -> None:
    """Also after a `fit` that has ended: only that knows which epoch it is."""
    optimizer = Adam()
    trainer_class(optimizer).fit([1], epochs=1)

    optimizer.apply([1])

    assert [event["epoch"] for event in followed.told if event["event"] == "progress"] == [0]
    assert followed.tape.written()[-1] == "step other 1"


@pytest.mark.parametrize("name", ["evaluate", "predict"])
def test_evaluation_of_keras_is_one_as_a_whole(
    followed: Followed, trainer_class: type[TorchTrainer], name: str
) -> None:
    """With its metrics and callbacks; also where an exception leaves it."""
    evaluate = getattr(trainer_class(Adam()), name)

    answer = evaluate(5)
    with pytest.raises(ValueError, match="left"):
        evaluate(5, ValueError("left"))

    assert answer == "evaluated"
    assert followed.tape.written() == ["enter validation", "resume other", "enter validation", "abort other"]
    [_, end, *_] = (mark for mark in followed.tape.slots() if mark is not None)
    assert end.operand == 5


def test_batch_that_keras_only_looks_at_is_no_sample(followed: Followed, trainer_class: type[TorchTrainer]) -> None:
    """It builds a model by the shapes of the first batch, which it fetches once more to train on it."""

    def fetched() -> Iterator[int]:
        outer = followed.marker.enter(Phase.DATA_WAIT)
        assert outer < 0
        yield 1

    trainer_class(Adam())._symbolic_build(fetched())

    assert followed.tape.written() == ["enter data_wait", "resume other"]


def test_files_of_keras_are_checkpoints(followed: Followed, tmp_path: Path) -> None:
    """They are written by h5py and zipfile, of which torch knows nothing."""
    model, weights = tmp_path / "m.keras", tmp_path / "m.weights.h5"

    def save(_: Any, filepath: Path, *__: Any) -> None:
        filepath.write_bytes(b"12345")

    module = ModuleType("keras.src.saving.saving_lib")
    module.__dict__.update(
        save_model=save,
        save_weights_only=lambda model, filepath, *_: save(model, filepath),
        load_model=lambda filepath, **_: filepath.read_bytes(),
        load_weights_only=lambda _, filepath, **__: filepath.read_bytes(),
    )
    keras_checkpoint.install(module, followed.patches, followed.channel)

    module.save_model(None, model)
    module.save_weights_only(None, filepath=weights)
    loaded = module.load_model(model), module.load_weights_only(None, weights)

    assert loaded == (b"12345", b"12345")
    assert [(event["kind"], event["bytes"]) for event in followed.told] == [
        ("save", 5),
        ("save", 5),
        ("load", None),
        ("load", None),
    ]
    assert len({event["file"] for event in followed.told}) == 2


@pytest.mark.parametrize("bridge", [keras, keras_checkpoint])
def test_another_keras_is_refused(followed: Followed, bridge: Any) -> None:
    """A bridge that does half of its work would be worse than none."""
    with pytest.raises((AttributeError, KeyError)):
        bridge.install(ModuleType("empty"), followed.patches, followed.channel)
