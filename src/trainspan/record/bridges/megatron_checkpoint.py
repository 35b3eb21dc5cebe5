"""Checkpoints of Megatron Core: `dist_checkpointing.save` and `load` as a whole, which are many files.

Of an asynchronous save the part that blocks is marked; the request it answers with has functions that are called once
every rank has written, which is this framework's own way to be told, and the checkpoint is one then.
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

_quietly = functools.partial(quietly, "Megatron")


def install(module: ModuleType, patches: Patches, channel: Channel) -> None:
    """Follow every checkpoint.

    Raises:
        AttributeError, KeyError: this version has no such functions.
    """
    serialization = module.serialization
    load = mark_calls(vars(module)["load"], "load", _folder_of, channel.marker, channel.notes)
    for name, marked in (("save", _saving(vars(module)["save"], channel)), ("load", load)):
        for owner in (module, serialization):
            patches.replace(owner, name, marked)


def _saving(call: Callable[..., Any], channel: Channel) -> Callable[..., Any]:
    whole, staged = (
        mark_calls(call, "save", _folder_of, channel.marker, channel.notes, staging=staging)
        for staging in (False, True)
    )

    def save(*args: Any, **kwargs: Any) -> Any:
        if not (args[5] if len(args) > 5 else kwargs.get("async_sharded_save")):
            return whole(*args, **kwargs)
        request = staged(*args, **kwargs)
        _quietly(lambda: request.add_finalize_fn(lambda: _quietly(lambda: _tell(args, kwargs, channel))))
        return request

    return functools.update_wrapper(save, call)


def _tell(args: Any, kwargs: Any, channel: Channel) -> None:
    now_ns, step = monotonic_ns(), channel.marker.steps()
    channel.notes.tell("save", _folder_of(args, kwargs), now_ns, step, ok=True, blocking=False, staging=False)


def _folder_of(args: Any, kwargs: Any) -> Any:
    return os.fspath(args[1] if len(args) > 1 else kwargs["checkpoint_dir"])
