"""Ignite, by the events of its engines: the epoch.

An engine counts its iterations and no steps, so there is no global step; one that evaluates makes no steps.
Steps, micro-batches, phases and checkpoints are seen by the hooks of torch.
"""

import functools
from types import ModuleType
from typing import Any

from trainspan.guard import warn_once
from trainspan.record.bridges.channel import Channel
from trainspan.record.patches import Patches


def install(module: ModuleType, patches: Patches, channel: Channel) -> None:
    """Follow every engine.

    Raises:
        AttributeError, KeyError: this version has no such class or events.
    """
    engine, completed, note = module.Engine, module.Events.ITERATION_COMPLETED, channel.course.note
    fire = vars(engine)["_fire_event"]

    def fire_event(self: Any, event_name: Any, *args: Any, **kwargs: Any) -> Any:
        # Before the handlers, as those may evaluate, train or save.
        if event_name is completed:
            try:
                note(None, self.state.epoch - 1)
            except Exception as error:
                warn_once("ignite", f"the epoch of Ignite is not told: {type(error).__name__}: {error}")
        return fire(self, event_name, *args, **kwargs)

    patches.replace(engine, "_fire_event", functools.update_wrapper(fire_event, fire))
