"""Lightning Fabric, which has no hooks for this: what `Fabric.log` is given, and `Fabric.save` as a whole.

Lightning hands torch.save a buffer, which has no name. Its loading is seen by the hooks of torch.
"""

import functools
from types import ModuleType
from typing import Any

from trainspan.record.bridges.channel import Channel
from trainspan.record.hooks.checkpoint import mark_calls
from trainspan.record.patches import Patches


def install(module: ModuleType, patches: Patches, channel: Channel) -> None:
    """Follow every Fabric of this package.

    Raises:
        AttributeError, KeyError: this version has no such methods.
    """
    fabric = module.Fabric
    log = vars(fabric)["log_dict"]  # which `log` calls

    def log_and_tell(*args: Any, **kwargs: Any) -> Any:
        values = args[1] if len(args) > 1 else kwargs.get("metrics", {})
        channel.scalars.log(values, step=args[2] if len(args) > 2 else kwargs.get("step"))
        return log(*args, **kwargs)

    patches.replace(fabric, "log_dict", functools.update_wrapper(log_and_tell, log))
    save = vars(fabric)["save"]
    patches.replace(fabric, "save", mark_calls(save, "save", _file_of, channel.marker, channel.notes))


def _file_of(args: Any, kwargs: Any) -> Any:
    return args[1] if len(args) > 1 else kwargs.get("path")
