"""Lightning, by its own extension point: a callback that every `Trainer` gets, of `lightning` and `pytorch_lightning`.

It tells of epoch and global step, of evaluations (validation, test, predict, the sanity check), and of what the module
logs. The latter is read where Lightning keeps it, in the connector of its loggers: `trainer.callback_metrics` would
convert what the progress bar shows, which waits for the device, and aggregate over ranks, which waits for them.
`Trainer.save_checkpoint` is marked because Lightning hands torch.save a buffer, which has no name.
"""

import functools
from collections.abc import Callable
from importlib import import_module
from time import monotonic_ns
from types import ModuleType
from typing import Any, Final

from trainspan.record.bridges.channel import Channel, Evaluation
from trainspan.record.bridges.quietly import quietly
from trainspan.record.hooks.checkpoint import mark_calls
from trainspan.record.patches import Patches

_quietly = functools.partial(quietly, "Lightning")

LOOK_EVERY_NS: Final = 1_000_000_000

_makers: dict[str, Callable[[], Any]] = {}  # by the module of the callback's base


def install(module: ModuleType, patches: Patches, channel: Channel) -> None:
    """Give every trainer of this package the callback.

    Raises:
        AttributeError, KeyError: this version has no such classes.
    """
    trainer, base = module.Trainer, module.Callback
    kind = _callback_class(base)
    _makers[base.__module__] = functools.partial(kind, channel)
    make = vars(trainer)["__init__"]

    def make_trainer(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        _quietly(lambda: self.callbacks.insert(0, kind(channel)))

    patches.replace(trainer, "__init__", functools.update_wrapper(make_trainer, make))
    save = vars(trainer)["save_checkpoint"]
    patches.replace(trainer, "save_checkpoint", mark_calls(save, "save", _file_of, channel.marker, channel.notes))


def callback_of(base_module: str) -> Any:
    """What an unpickled callback is: one of this process, or where Lightning is not followed one that does nothing."""
    module = import_module(base_module)  # where Lightning is followed, its import has made the maker
    maker = _makers.get(base_module)
    return module.Callback() if maker is None else maker()


def _callback_class(base: Any) -> Any:
    """The callback, as a subclass of the package's own base."""

    class TrainspanCallback(base):
        """Tells trainspan what only Lightning knows."""

        def __init__(self, channel: Channel):
            self._channel = channel
            self._evaluation = Evaluation(channel.marker)
            self._next_ns = 0

        def __reduce__(self) -> Any:
            # Trainers are sent to ranks that are spawned; the way into this process's recording cannot be.
            return callback_of, (base.__module__,)

        def on_train_batch_end(self, trainer: Any, *args: Any, **kwargs: Any) -> None:
            _quietly(lambda: self._channel.course.note(trainer.global_step, trainer.current_epoch))
            now_ns = monotonic_ns()
            if now_ns >= self._next_ns:
                self._next_ns = now_ns + LOOK_EVERY_NS
                self._log(trainer)

        def on_train_end(self, trainer: Any, *args: Any) -> None:
            self._log(trainer)

        def on_validation_start(self, *args: Any) -> None:
            self._evaluation.begin()

        def on_validation_end(self, trainer: Any, *args: Any) -> None:
            self._evaluation.end()
            self._log(trainer)

        def on_validation_batch_end(self, *args: Any, **kwargs: Any) -> None:
            self._evaluation.batch_ended()

        on_test_start = on_predict_start = on_validation_start
        on_test_end = on_predict_end = on_validation_end
        on_test_batch_end = on_predict_batch_end = on_validation_batch_end

        def on_exception(self, *args: Any) -> None:
            self._evaluation.abort()

        def _log(self, trainer: Any) -> None:
            if not trainer.sanity_checking:
                _quietly(lambda: self._channel.scalars.log(dict(trainer._logger_connector._callback_metrics)))

    return TrainspanCallback


def _file_of(args: Any, kwargs: Any) -> Any:
    return args[1] if len(args) > 1 else kwargs.get("filepath")
