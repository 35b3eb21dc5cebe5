"""fastai, by its optimizers and its `Learner`: steps, evaluations, the epoch, and what the recorder shows of one.

Its optimizers are none of torch's: without this nothing says that a Learner trains. `OptimWrapper` holds one of those,
which is seen by itself. fastai counts batches and no steps, so it gives no global step.
Micro-batches, phases and checkpoints are seen by the hooks of torch.
"""

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from trainspan.record.bridges.channel import Channel, Evaluations
from trainspan.record.bridges.quietly import quietly
from trainspan.record.patches import Patches

_quietly = functools.partial(quietly, "fastai")


def install(module: ModuleType, patches: Patches, channel: Channel) -> None:
    """Follow every learner.

    Raises:
        AttributeError, KeyError: this version has no such classes or methods.
    """
    optimizer, learner, recorder = module.Optimizer, module.Learner, module.Recorder
    evaluations = Evaluations(channel.marker)
    marked = (
        (optimizer, "__init__", _telling_made(vars(optimizer)["__init__"], channel)),
        (optimizer, "step", channel.stepping.whole(vars(optimizer)["step"], _outcome)),
        (learner, "_step", _telling_epoch(vars(learner)["_step"], channel)),
        # An epoch of validation, which is also what predicts.
        (learner, "_do_epoch_validate", evaluations.whole(vars(learner)["_do_epoch_validate"])),
        (learner, "one_batch", _counting(vars(learner)["one_batch"], evaluations)),
        (recorder, "after_epoch", _telling_record(vars(recorder)["after_epoch"], channel)),
    )
    for kind, name, method in marked:
        patches.replace(kind, name, method)


def _outcome(args: tuple[Any, ...], result: Any) -> tuple[Any, bool]:
    return args[0], True


def _telling_made(call: Callable[..., Any], channel: Channel) -> Callable[..., Any]:
    def make_optimizer(self: Any, *args: Any, **kwargs: Any) -> None:
        call(self, *args, **kwargs)
        channel.stepping.made(self)

    return functools.update_wrapper(make_optimizer, call)


def _telling_epoch(call: Callable[..., Any], channel: Channel) -> Callable[..., Any]:
    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = call(self, *args, **kwargs)
        _quietly(lambda: channel.course.note(None, self.epoch))
        return result

    return functools.update_wrapper(step, call)


def _counting(call: Callable[..., Any], evaluations: Evaluations) -> Callable[..., Any]:
    # A callback may cancel an evaluation before its first batch, as where a learning rate is looked for.
    def one_batch(*args: Any, **kwargs: Any) -> Any:
        evaluations.batch_ended()
        return call(*args, **kwargs)

    return functools.update_wrapper(one_batch, call)


def _telling_record(call: Callable[..., Any], channel: Channel) -> Callable[..., Any]:
    def after_epoch(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = call(self, *args, **kwargs)
        # The first is the epoch, and the last the time, which is a text.
        _quietly(lambda: channel.scalars.log(dict(zip(self.metric_names[1:], self.learn.final_record, strict=False))))
        return result

    return functools.update_wrapper(after_epoch, call)
