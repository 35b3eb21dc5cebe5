"""Megatron Core, by its optimizers: the step as a whole, and what it knows then.

Its optimizers are none of torch's, and call those: several of them (`ChainedOptimizer`), or none when a gradient was
infinite. What `step` answers says so, and has the gradient's norm. It keeps no count of steps.
Micro-batches, phases and collectives are seen by the hooks of torch.
"""

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

from trainspan.record.bridges.channel import Channel
from trainspan.record.bridges.quietly import quietly
from trainspan.record.patches import Patches

_quietly = functools.partial(quietly, "Megatron")

_DEPTH: Final = 4
"""Optimizers in optimizers: a chain of them, what keeps parameters in single precision, and torch's own."""


def install(module: ModuleType, patches: Patches, channel: Channel) -> None:
    """Follow every optimizer of this module.

    Raises:
        AttributeError: this version has no such optimizers, or this torch no hooks for its own.
    """
    base = module.MegatronOptimizer
    for kind in list(vars(module).values()):
        if isinstance(kind, type) and issubclass(kind, base) and kind.__module__ == module.__name__:
            step = vars(kind).get("step")
            if step is not None:
                patches.replace(kind, "step", _stepping(step, channel))


def _stepping(call: Callable[..., Any], channel: Channel) -> Callable[..., Any]:
    whole = channel.stepping.whole(call, _outcome)

    def step(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        result = whole(optimizer, *args, **kwargs)
        _quietly(lambda: _tell(optimizer, result, channel))
        return result

    return functools.update_wrapper(step, call)


def _outcome(args: tuple[Any, ...], result: Any) -> tuple[Any, bool]:
    return _innermost(args[0]), bool(result[0])


def _innermost(optimizer: Any) -> Any:
    """Torch's own optimizer in this one, the first of several; on a rank that has none of the parameters, this one."""
    for _ in range(_DEPTH):
        inner = next(iter(getattr(optimizer, "chained_optimizers", ())), None)
        inner = inner if inner is not None else vars(optimizer).get("optimizer")
        if inner is None:
            break
        optimizer = inner
    return optimizer


def _tell(optimizer: Any, result: Any, channel: Channel) -> None:
    made, grad_norm, *_ = result
    first = next(iter(getattr(optimizer, "chained_optimizers", ())), optimizer)
    groups = _innermost(optimizer).param_groups
    known = {
        "lr": groups[0].get("lr") if groups else None,
        "grad_norm": grad_norm if made else None,
        "loss_scale": optimizer.get_loss_scale() if getattr(first, "grad_scaler", None) else None,
    }
    channel.scalars.log({f"megatron.{name}": value for name, value in known.items() if value is not None})
