"""The Trainer of Hugging Face, by its own extension point: a callback class among its default callbacks.

A package that puts a list of its own in their place (ms-swift) leaves it out: a trainer without it gets it once it is
made.
It tells of epoch and global step, and of what is logged: loss, learning rate, gradient norm, results of evaluations.
Marked besides: `evaluation_loop`, which evaluates and predicts, and the saving and loading of a checkpoint as a whole,
which is a directory of many files.
"""

import functools
import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

from trainspan.record.bridges.channel import Channel, Evaluations
from trainspan.record.bridges.quietly import quietly
from trainspan.record.hooks.checkpoint import mark_calls
from trainspan.record.patches import Patches

_quietly = functools.partial(quietly, "the Hugging Face Trainer")


def install(module: ModuleType, patches: Patches, channel: Channel) -> None:
    """Give every trainer the callback.

    Raises:
        AttributeError, KeyError: this version has no such names.
    """
    evaluations = Evaluations(channel.marker)
    callback = _callback_class(module.TrainerCallback, channel, evaluations)
    module.DEFAULT_CALLBACKS.append(callback)
    patches.on_undo(lambda: module.DEFAULT_CALLBACKS.remove(callback))
    trainer = module.Trainer
    patches.replace(trainer, "__init__", _calling_back(vars(trainer)["__init__"], callback))
    patches.replace(trainer, "evaluation_loop", evaluations.whole(vars(trainer)["evaluation_loop"]))
    for name, kind, file_of in (("_save_checkpoint", "save", _saved_to), ("_load_from_checkpoint", "load", _loaded)):
        patches.replace(trainer, name, mark_calls(vars(trainer)[name], kind, file_of, channel.marker, channel.notes))


def _callback_class(base: Any, channel: Channel, evaluations: Evaluations) -> Any:
    class TrainspanCallback(base):
        """Tells trainspan what only the Trainer knows."""

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            # The epoch is a fraction, and at the end of a whole one the next number already.
            _quietly(lambda: channel.course.note(state.global_step, _epoch_before(state.epoch)))

        def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            evaluations.batch_ended()

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
            if logs:
                channel.scalars.log(logs)

    return TrainspanCallback


def _calling_back(call: Callable[..., Any], callback: Any) -> Callable[..., Any]:
    def make_trainer(self: Any, *args: Any, **kwargs: Any) -> None:
        call(self, *args, **kwargs)
        _quietly(lambda: _add_missing(self.callback_handler, callback))

    return functools.update_wrapper(make_trainer, call)


def _add_missing(handler: Any, callback: Any) -> None:
    if not any(isinstance(known, callback) for known in handler.callbacks):
        handler.add_callback(callback)


def _epoch_before(epoch: float | None) -> int | None:
    """Number of the epoch that a step belongs to which has ended at `epoch`: 2.0 is the end of epoch 1."""
    return None if epoch is None else max(0, -int(-epoch // 1) - 1)


def _saved_to(args: Any, kwargs: Any) -> Any:
    """The directory of a checkpoint, as `_save_checkpoint(trainer, model, trial)` names it."""
    trainer = args[0]
    trial = args[2] if len(args) > 2 else kwargs.get("trial")
    return os.path.join(trainer._get_output_dir(trial=trial), f"checkpoint-{trainer.state.global_step}")


def _loaded(args: Any, kwargs: Any) -> Any:
    return args[1] if len(args) > 1 else kwargs.get("resume_from_checkpoint")
