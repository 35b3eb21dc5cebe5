"""Ultralytics, by its trainer and its validator: the epoch, what it writes of one, evaluations and checkpoints.

It tells the epoch at the end of each batch. A checkpoint is put together in memory, then written under up to three
names: to torch it has none. What is validated is the average of the weights, or a model that is loaded for it.
Steps, micro-batches and phases are seen by the hooks of torch.
"""

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

from trainspan.record.bridges.channel import Channel, Evaluations
from trainspan.record.bridges.quietly import telling
from trainspan.record.hooks.checkpoint import mark_calls
from trainspan.record.patches import Patches

_telling = functools.partial(telling, "Ultralytics")

_Mark = Callable[[Callable[..., Any]], Callable[..., Any]]


def install(module: ModuleType, patches: Patches, channel: Channel) -> None:
    """Follow every trainer, or every validator: they are in two modules, which are followed one by one.

    Raises:
        AttributeError, KeyError: this version has no such class or methods.
    """
    owner, marks_of = _MARKS[module.__name__.rpartition(".")[2]]
    kind = getattr(module, owner)
    marked = {name: mark(vars(kind)[name]) for name, mark in marks_of(channel).items()}
    for name, method in marked.items():
        patches.replace(kind, name, method)


def _marks_of_trainer(channel: Channel) -> dict[str, _Mark]:
    def told(trainer: Any, event: str, *_: Any, **__: Any) -> None:
        if event == "on_train_batch_end":
            channel.course.note(None, trainer.epoch)

    return {
        "run_callbacks": lambda call: _telling(call, told),
        "save_metrics": lambda call: _telling(call, lambda _, metrics: channel.scalars.log(metrics)),
        "save_model": lambda call: mark_calls(call, "save", _last_of, channel.marker, channel.notes),
    }


def _marks_of_validator(channel: Channel) -> dict[str, _Mark]:
    evaluations = Evaluations(channel.marker)

    def told(_: Any, event: str, *__: Any, **___: Any) -> None:
        if event == "on_val_batch_end":
            evaluations.batch_ended()

    return {"__call__": evaluations.whole, "run_callbacks": lambda call: _telling(call, told)}


def _last_of(args: Any, kwargs: Any) -> Any:
    """The file from which a training is taken up."""
    return args[0].last


_MARKS: Final[dict[str, tuple[str, Callable[[Channel], dict[str, _Mark]]]]] = {
    "trainer": ("BaseTrainer", _marks_of_trainer),
    "validator": ("BaseValidator", _marks_of_validator),
}
"""By the module: the class, and how each of its methods is marked."""
