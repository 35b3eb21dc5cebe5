"""A number on its way from a device: the copy is queued behind the work that computes it, and read once it is there."""

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, NamedTuple, Protocol

from trainspan.record.kept import kept

_BLOCK: Final = 128
"""Numbers for which memory is pinned at once: as many as the log has names."""


class Copy(Protocol):
    """One number that is under way."""

    def is_there(self) -> bool:
        """Whether it has arrived. Never waits."""

    def read(self) -> float:
        """It, once it has arrived; to be called once."""


class Device(NamedTuple):
    """What is asked of the devices of one kind.

    `begin(tensor)`: a copy of its only element. `is_capturing()`: whether a graph is being captured, when nothing may
    be asked.
    """

    begin: Callable[[Any], Copy]
    is_capturing: Callable[[], bool]


class Cuda(NamedTuple):
    """What is asked of torch for a copy.

    `pin(dtype, count)`: room for that many numbers where a device can write while the host goes on, one by one.
    `make_event()`: an event. `stream(device)`: its current stream. `on(device)`: makes it the calling thread's, for a
    while.
    """

    pin: Callable[[Any, int], Sequence[Any]]
    make_event: Callable[[], Any]
    stream: Callable[[Any], Any]
    on: Callable[[Any], AbstractContextManager[Any]]


class CudaCopies:
    """Copies to pinned memory on the current stream of the tensor's device, each with an event behind it.

    Both are used again and never let go of: freed, pinned memory that a device has written to gets an event by torch,
    which ends a DataLoader's worker that was forked in the meantime.

    A number in memory of another stream than the current one may be overwritten before it is copied, once the script
    drops it. `record_stream` would see to that, and break what `torch.compile` captures: its allocator refuses blocks
    that wait for an event.
    """

    def __init__(self, cuda: Cuda):
        self._cuda = cuda
        self._rooms: dict[Any, list[Any]] = {}
        self._events: dict[Any, list[Any]] = {}

    def begin(self, tensor: Any) -> Copy:
        """A copy of the only element of `tensor`."""
        device, dtype = tensor.device, tensor.dtype
        rooms, events = self._rooms.setdefault(dtype, []), self._events.setdefault(device, [])
        if not rooms:
            rooms += [kept(room) for room in self._cuda.pin(dtype, _BLOCK)]
        event = events.pop() if events else kept(self._cuda.make_event())
        room = rooms.pop()
        room.copy_(tensor, non_blocking=True)
        event.record(self._cuda.stream(device))
        return _CudaCopy(room, event, lambda: self._cuda.on(device), rooms, events)


class _CudaCopy(NamedTuple):
    """One of them. `on()`: on its device; `rooms` and `events`: where both are put back."""

    room: Any
    event: Any
    on: Callable[[], AbstractContextManager[Any]]
    rooms: list[Any]
    events: list[Any]

    def is_there(self) -> bool:
        # The last question comes from whichever thread ends the process. One that has never used a device asks the
        # first one, and makes a context there.
        with self.on():
            there: bool = self.event.query()
        return there

    def read(self) -> float:
        number = float(self.room.item())
        self.rooms.append(self.room)
        self.events.append(self.event)
        return number


def cuda(captures: Callable[[], bool]) -> Device:
    """CUDA's and ROCm's devices; `captures()`: whether a graph is being captured on any thread."""
    copies: list[CudaCopies] = []

    def begin(tensor: Any) -> Copy:
        if not copies:
            torch = _torch()
            copies.append(CudaCopies(Cuda(_pinned, torch.cuda.Event, torch.cuda.current_stream, torch.cuda.device)))
        return copies[0].begin(tensor)

    return Device(begin, lambda: captures() or bool(_torch().cuda.is_current_stream_capturing()))


def _pinned(dtype: Any, count: int) -> Sequence[Any]:
    torch = _torch()
    # What is made in inference mode cannot be written to outside of it. And the CPU by name: a script may have chosen
    # another device for what is made without one, which cannot be pinned.
    with torch.inference_mode(False):
        rooms: Sequence[Any] = torch.empty(count, dtype=dtype, device="cpu", pin_memory=True).unbind()
    return rooms


def _torch() -> Any:
    return sys.modules["torch"]  # a script that logs numbers need not have it
