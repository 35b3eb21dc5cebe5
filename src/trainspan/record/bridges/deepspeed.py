"""DeepSpeed, by its engine: steps and checkpoints as a whole, what the engine knows, and what its monitor gets.

At the end of an accumulation the engine steps its optimizer in `_take_model_step`, also that of a pipeline. ZeRO lets
the inner optimizer step once for each group of parameters, and not at all when a gradient was infinite.
Of scalars the engine has no listener of its own that works without a tracker, so they are read where it keeps them.
Micro-batches, phases and collectives are seen by the hooks of torch.
"""

import functools
import os
from collections.abc import Callable
from time import monotonic_ns
from types import ModuleType
from typing import Any

from trainspan.record.bridges.channel import Channel
from trainspan.record.bridges.quietly import quietly
from trainspan.record.hooks.checkpoint import mark_calls
from trainspan.record.patches import Patches

_quietly = functools.partial(quietly, "DeepSpeed")


def install(module: ModuleType, patches: Patches, channel: Channel) -> None:
    """Follow every engine, and every monitor.

    Raises:
        AttributeError, KeyError: this version has no such classes or methods.
    """
    engine, monitor = module.DeepSpeedEngine, module.MonitorMaster
    methods, write = vars(engine), vars(monitor)["write_events"]
    marked = {
        "_take_model_step": _stepping(methods["_take_model_step"], channel),
        "backward": _telling_loss(methods["backward"], channel),
        "save_checkpoint": _saving(methods["save_checkpoint"], channel),
        "load_checkpoint": mark_calls(methods["load_checkpoint"], "load", _loaded_from, channel.marker, channel.notes),
        "_commit_decoupled_checkpoint": _committing(methods["_commit_decoupled_checkpoint"], channel),
    }
    for name, method in marked.items():
        patches.replace(engine, name, method)
    patches.replace(monitor, "write_events", _telling_events(write, channel))


def _stepping(call: Callable[..., Any], channel: Channel) -> Callable[..., Any]:
    step = channel.stepping.whole(call, _outcome)

    def take_model_step(engine: Any, *args: Any, **kwargs: Any) -> Any:
        result = step(engine, *args, **kwargs)
        _quietly(lambda: _tell(engine, channel))
        return result

    return functools.update_wrapper(take_model_step, call)


def _outcome(args: tuple[Any, ...], result: Any) -> tuple[Any, bool]:
    engine = args[0]
    return engine.basic_optimizer or engine.optimizer, engine.was_step_applied()


def _tell(engine: Any, channel: Channel) -> None:
    channel.course.note(engine.global_steps, None)
    known = {
        "lr": next(iter(engine.get_lr()), None),
        "grad_norm": engine.get_global_grad_norm() if engine.was_step_applied() else None,
        "loss_scale": engine._get_optimizer_loss_scale() if engine.fp16_enabled() else None,
    }
    channel.scalars.log({f"deepspeed.{name}": value for name, value in known.items() if value is not None})


def _telling_loss(call: Callable[..., Any], channel: Channel) -> Callable[..., Any]:
    def backward(engine: Any, loss: Any, *args: Any, **kwargs: Any) -> Any:
        channel.scalars.log("deepspeed.loss", loss)
        return call(engine, loss, *args, **kwargs)

    return functools.update_wrapper(backward, call)


def _telling_events(call: Callable[..., Any], channel: Channel) -> Callable[..., Any]:
    def write_events(monitor: Any, event_list: Any) -> Any:
        # The last of each is a number of samples, and no step.
        _quietly(lambda: channel.scalars.log({name: value for name, value, *_ in event_list}))
        return call(monitor, event_list)

    return functools.update_wrapper(write_events, call)


def _saving(call: Callable[..., Any], channel: Channel) -> Callable[..., Any]:
    whole, staged = (
        mark_calls(call, "save", _saved_to, channel.marker, channel.notes, staging=staging) for staging in (False, True)
    )

    def save_checkpoint(engine: Any, *args: Any, **kwargs: Any) -> Any:
        save = staged if engine.checkpoint_engine.is_decoupled() else whole
        return save(engine, *args, **kwargs)

    return functools.update_wrapper(save_checkpoint, call)


def _committing(call: Callable[..., Any], channel: Channel) -> Callable[..., Any]:
    """What a decoupled engine has written while training went on is a checkpoint once it has been committed."""

    def commit(engine: Any) -> Any:
        commit_info = engine.checkpoint_engine.get_commit_info()
        result = call(engine)
        if commit_info is not None:
            _quietly(lambda: _tell_committed(os.path.join(commit_info.save_dir, commit_info.tag), channel))
        return result

    return functools.update_wrapper(commit, call)


def _tell_committed(place: str, channel: Channel) -> None:
    now_ns, step = monotonic_ns(), channel.marker.steps()
    channel.notes.tell("save", place, now_ns, step, ok=True, blocking=False, staging=False)


def _saved_to(args: Any, kwargs: Any) -> Any:
    tag = args[2] if len(args) > 2 else kwargs.get("tag")
    folder = args[1] if len(args) > 1 else kwargs["save_dir"]
    return os.path.join(folder, f"global_step{args[0].global_steps}" if tag is None else str(tag))


def _loaded_from(args: Any, kwargs: Any) -> Any:
    """The folder of a checkpoint; None where there was nothing to load, which is no failure."""
    folder = args[1] if len(args) > 1 else kwargs["load_dir"]
    tag = args[2] if len(args) > 2 else kwargs.get("tag")
    latest = os.path.join(folder, "latest_universal" if args[0].load_universal_checkpoint() else "latest")
    if tag is None and os.path.isfile(latest):
        with open(latest) as file:
            tag = file.read().strip()
    place = None if tag is None else os.path.join(folder, tag)
    return place if place is not None and os.path.isdir(place) else None
