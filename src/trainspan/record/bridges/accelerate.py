"""Accelerate, which has no callbacks: what `Accelerator.log` is given, and `save_state` and `load_state` as a whole.

A checkpoint is a directory of many files. Steps and micro-batches are seen by the hooks of torch.
"""

import functools
import os
from types import ModuleType
from typing import Any

from trainspan.record.bridges.channel import Channel
from trainspan.record.hooks.checkpoint import mark_calls
from trainspan.record.patches import Patches


def install(module: ModuleType, patches: Patches, channel: Channel) -> None:
    """Follow every accelerator.

    Raises:
        AttributeError, KeyError: this version has no such methods.
    """
    accelerator = module.Accelerator
    log = vars(accelerator)["log"]

    def log_and_tell(*args: Any, **kwargs: Any) -> Any:
        # Each rank tells its own, whoever of them the trackers listen to.
        values = args[1] if len(args) > 1 else kwargs.get("values", {})
        channel.scalars.log(values, step=args[2] if len(args) > 2 else kwargs.get("step"))
        return log(*args, **kwargs)

    patches.replace(accelerator, "log", functools.update_wrapper(log_and_tell, log))
    for name, kind, place in (("save_state", "save", _saved_to), ("load_state", "load", _loaded_from)):
        state = mark_calls(vars(accelerator)[name], kind, place, channel.marker, channel.notes)
        patches.replace(accelerator, name, state)


def _saved_to(args: Any, kwargs: Any) -> Any:
    accelerator = args[0]
    if not accelerator.project_configuration.automatic_checkpoint_naming:
        return args[1] if len(args) > 1 else kwargs.get("output_dir")
    # Asked once it has been saved, when the number is that of the next.
    return os.path.join(accelerator.project_dir, "checkpoints", f"checkpoint_{accelerator.save_iteration - 1}")


def _loaded_from(args: Any, kwargs: Any) -> Any:
    given = args[1] if len(args) > 1 else kwargs.get("input_dir")
    if given is not None:
        return os.path.expanduser(given)
    checkpoints = os.path.join(args[0].project_dir, "checkpoints")
    numbers = [name.rpartition("_")[2] for name in os.listdir(checkpoints)]
    return os.path.join(checkpoints, f"checkpoint_{max(int(number) for number in numbers if number.isdecimal())}")
