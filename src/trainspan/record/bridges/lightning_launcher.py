"""Ranks that Lightning starts by itself: `python train.py` with several devices starts the script again for each.

Nobody has named the run by then, so each of them would be a run of its own.
"""

import functools
from types import ModuleType
from typing import Any

from trainspan.guard import warn_once
from trainspan.record.bridges.channel import Channel
from trainspan.record.patches import Patches


def install(module: ModuleType, patches: Patches, channel: Channel) -> None:
    """Let the ranks belong to the run of the process that starts them.

    Raises:
        AttributeError, KeyError: this version starts them in another way.
    """
    launcher = module._SubprocessScriptLauncher
    start = vars(launcher)["_call_children_scripts"]

    def start_ranks(*args: Any, **kwargs: Any) -> Any:
        try:
            channel.share_run()
        except Exception as error:
            warn_once("lightning_launcher", f"each rank is a run of its own: {type(error).__name__}: {error}")
        return start(*args, **kwargs)

    patches.replace(launcher, "_call_children_scripts", functools.update_wrapper(start_ranks, start))
