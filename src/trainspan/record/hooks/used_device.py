"""Which of CUDA's devices this process trains on.

That is where the parameters are of the optimizer that leads. Only if those are on none, as where they are offloaded, it
is the current device; a script that places its model by `.to(f"cuda:{rank}")` alone has never made its own the current
one. A device without a context of CUDA's is in no use: a call to it would make one, half a gigabyte on a GPU that may
be another rank's.
"""

from collections.abc import Callable
from typing import Any, Final

import torch

# A torch without that name cannot tell; a script's current device is then taken to be in use.
_has_context: Final[Callable[[int], bool]] = getattr(torch._C, "_cuda_hasPrimaryContext", lambda _: True)


def used_device(
    lead: Callable[[], Any],
    current: Callable[[], int] = torch.cuda.current_device,
    has_context: Callable[[int], bool] = _has_context,
) -> Callable[[], int | None]:
    """What tells the number of that device; None: there is none. To be called once a device is initialized.

    Args:
        lead: the optimizer whose steps are the steps of training; None before the first.
        current: number of the current device.
        has_context: whether the device of that number is in use by this process.
    """

    def used() -> int | None:
        number = _device_of(lead())
        if number is not None:
            return number
        number = current()
        return number if has_context(number) else None

    return used


def _device_of(optimizer: Any) -> int | None:
    """Number of the device of its parameters: of a framework's own optimizer it may not be known."""
    for group in getattr(optimizer, "param_groups", ()):
        for parameter in group["params"][:1]:
            if parameter.device.type == "cuda":
                number: int | None = parameter.device.index
                return number
    return None
