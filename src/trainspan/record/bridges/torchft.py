"""torchft, by its optimizer: a step that the replicas have not agreed upon is a skipped one, and which step it is.

The wrapper around an optimizer asks the manager first, and steps it or not. Of what it does not step nobody else hears:
every try while a peer is away would be a micro-batch of the one step that ends the wait.
Phases and checkpoints are seen by the hooks of torch.
"""

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from trainspan.record.bridges.channel import Channel
from trainspan.record.bridges.quietly import quietly
from trainspan.record.patches import Patches

_quietly = functools.partial(quietly, "torchft")


def install(module: ModuleType, patches: Patches, channel: Channel) -> None:
    """Follow every optimizer that is wrapped.

    Raises:
        AttributeError, KeyError: this version has no such class or method.
    """
    wrapper = module.OptimizerWrapper
    patches.replace(wrapper, "step", _stepping(vars(wrapper)["step"], channel))


def _stepping(call: Callable[..., Any], channel: Channel) -> Callable[..., Any]:
    whole, note = channel.stepping.whole(call, _outcome), channel.course.note

    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = whole(self, *args, **kwargs)
        # Also where it was skipped, for it counts commits. A replica that comes back takes over the count of its peers.
        _quietly(lambda: note(self.manager.current_step(), None))
        return result

    return functools.update_wrapper(step, call)


def _outcome(args: tuple[Any, ...], result: Any) -> tuple[Any, bool]:
    # Not by whether its step has changed: healing changes it, too.
    return args[0].optim, args[0].manager._commit_failures == 0
