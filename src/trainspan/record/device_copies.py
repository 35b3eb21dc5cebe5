"""A number on its way from a device: the copy is queued behind the work that computes it, and read once it is there."""

import sys
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol


class Copy(Protocol):
    """One number that is under way."""

    def is_there(self) -> bool:
        """Whether it has arrived. Never waits."""

    def read(self) -> float:
        """It, once it has arrived."""


class Device(NamedTuple):
    """What is asked of the devices of one kind.

    `begin(tensor)`: a copy of its only element. `is_capturing()`: whether a graph is being captured, when nothing may
    be asked.
    """

    begin: Callable[[Any], Copy]
    is_capturing: Callable[[], bool]


class _CudaCopy:
    """A copy to pinned memory on the current stream of the tensor's device, and an event behind it."""

    __slots__ = ("_arrived", "_number")

    def __init__(self, tensor: Any):
        torch = sys.modules["torch"]  # a script that logs numbers need not have it
        with torch.cuda.device(tensor.device):
            self._number = torch.empty((), dtype=tensor.dtype, pin_memory=True)
            self._number.copy_(tensor, non_blocking=True)
            self._arrived = torch.cuda.Event()
            self._arrived.record()

    def is_there(self) -> bool:
        there: bool = self._arrived.query()
        return there

    def read(self) -> float:
        return float(self._number.item())


def cuda(captures: Callable[[], bool]) -> Device:
    """CUDA's and ROCm's devices; `captures()`: whether a graph is being captured on any thread."""
    return Device(_CudaCopy, lambda: captures() or bool(sys.modules["torch"].cuda.is_current_stream_capturing()))
