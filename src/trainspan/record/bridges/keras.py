"""Keras on torch, by its optimizers and `fit`: steps, evaluations, the epoch and its numbers.

Its optimizers are none of torch's: without this nothing says that `fit` trains. One of them may accumulate gradients by
itself, and is called for each micro-batch; whether it stepped is seen by what it does at the last. Keras counts its
updates on the device, where they are not asked for, so there is no global step.
Micro-batches and phases are seen by the hooks of torch, checkpoints by `keras_checkpoint`.
"""

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

from trainspan.names import Phase
from trainspan.record.bridges.channel import Channel, Evaluations
from trainspan.record.bridges.quietly import quietly, telling
from trainspan.record.patches import Patches

_quietly = functools.partial(quietly, "Keras")
_telling = functools.partial(telling, "Keras")

_DATA_WAIT: Final = int(Phase.DATA_WAIT)
_RESET: Final = "_backend_reset_gradient_accumulators"


def install(module: ModuleType, patches: Patches, channel: Channel) -> None:
    """Follow every optimizer, and every model that is fitted.

    Raises:
        AttributeError, KeyError, StopIteration: this version has no such classes or methods.
    """
    follower, evaluations = _Follower(channel, patches), Evaluations(channel.marker)
    trainer, callbacks = module.TorchTrainer, module.callbacks_module.CallbackList
    optimizer = next(kind for kind in module.optimizers_module.Optimizer.__mro__ if "apply" in vars(kind))

    def batch_ended(call: Callable[..., Any]) -> Callable[..., Any]:
        return _telling(call, lambda *_, **__: evaluations.batch_ended())

    marks: tuple[tuple[Any, str, Callable[[Callable[..., Any]], Callable[..., Any]]], ...] = (
        (optimizer, "__init__", follower.making),
        (optimizer, "apply", follower.stepping),
        (module.base_trainer.Trainer, "_symbolic_build", follower.building),
        (trainer, "fit", follower.fitting),
        (trainer, "evaluate", evaluations.whole),
        (trainer, "predict", evaluations.whole),
        (callbacks, "on_epoch_begin", lambda call: _telling(call, follower.epoch_begins)),
        (callbacks, "on_epoch_end", lambda call: _telling(call, follower.epoch_ends)),
        (callbacks, "on_test_batch_end", batch_ended),
        (callbacks, "on_predict_batch_end", batch_ended),
    )
    marked = [(kind, name, mark(vars(kind)[name])) for kind, name, mark in marks]
    for kind, name, method in marked:
        patches.replace(kind, name, method)


class _Follower:
    """What is known of a `fit` that is under way."""

    def __init__(self, channel: Channel, patches: Patches):
        self._channel = channel
        self._patches = patches
        self._epoch: int | None = None
        self._accumulated = False
        self._owners: dict[type, type] = {}  # by the class of an optimizer: which has its `_RESET`

    def making(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """An optimizer's `__init__`."""

        def make_optimizer(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            call(optimizer, *args, **kwargs)
            self._channel.stepping.made(optimizer)

        return functools.update_wrapper(make_optimizer, call)

    def stepping(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """An optimizer's `apply`."""
        whole = self._channel.stepping.whole(call, self._outcome)

        def apply(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            _quietly(lambda: self._watch(type(optimizer)))
            self._accumulated = False
            result = whole(optimizer, *args, **kwargs)
            if self._epoch is not None:
                self._channel.course.note(None, self._epoch)
            return result

        return functools.update_wrapper(apply, call)

    def _outcome(self, args: tuple[Any, ...], result: Any) -> tuple[Any, bool | None]:
        optimizer = args[0]
        return optimizer, True if self._accumulated or not optimizer.gradient_accumulation_steps else None

    def _watch(self, kind: type) -> None:
        """Have an optimizer of this class tell when what it has accumulated has made a step."""
        if kind not in self._owners:
            owner = next(base for base in kind.__mro__ if _RESET in vars(base))
            if owner not in self._owners.values():
                self._patches.replace(owner, _RESET, _telling(vars(owner)[_RESET], self._note_accumulated))
            self._owners[kind] = owner

    def _note_accumulated(self, *_: Any) -> None:
        self._accumulated = True

    def building(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """A model's `_symbolic_build`, which looks at the shapes of a batch that nobody trains on."""
        around = self._channel.marker.around

        def build(*args: Any, **kwargs: Any) -> Any:
            return around(call, _DATA_WAIT, args, kwargs)

        return functools.update_wrapper(build, call)

    def fitting(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """A model's `fit`."""

        def fit(*args: Any, **kwargs: Any) -> Any:
            try:
                return call(*args, **kwargs)
            finally:
                self._epoch = None

        return functools.update_wrapper(fit, call)

    def epoch_begins(self, _: Any, epoch: int, *__: Any, **___: Any) -> None:
        """This epoch of `fit` begins."""
        self._epoch = epoch

    def epoch_ends(self, _: Any, __: Any, logs: Any = None) -> None:
        """An epoch of `fit` has ended with these numbers."""
        self._channel.scalars.log(dict(logs or {}))
