"""CUDA's streams and events without a GPU: a device that gets to an event when its clock says so.

What CUDA refuses is refused: a question while a graph is captured, the time of an event that was not reached, an event
on another device than its own. What it does unasked is done: whoever asks makes a context. To let torch itself use it,
put it in the place of what a script asks for:

    fake = FakeCuda()
    torch.cuda.is_initialized = lambda: True
    torch._C._cuda_hasPrimaryContext = lambda _: True
    torch.cuda.current_stream = lambda _: fake.current
    torch.cuda.is_current_stream_capturing = lambda: fake.capturing
    torch.cuda.Event = fake.make_event
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class FakeStream:
    """A stream: what is asked of it now, it gets to `behind_ms` later."""

    def __init__(self, device_index: int = 0, behind_ms: float = 0.0):
        self.device_index = device_index
        self.behind_ms = behind_ms


class FakeCuda:
    """A process's devices.

    Args:
        now_ms: time on the devices.

    Attributes:
        ready: whether the script uses a device.
        current: the current stream.
        capturing: whether a graph is being captured on it; `captures`: on any thread.
        made: how many events were made.
        queries: how often it was asked whether an event was reached.
        broken: whether every call fails, as after an error that CUDA does not forget.
        thread_on: number of the device that the calling thread is on, which may have no context yet.
        contexts: devices that this process has a context on.
        copies: how many were begun.
        let_go: events and pinned memory that were destroyed: torch asks CUDA then, and ends a process in which that
            fails.
    """

    def __init__(self, now_ms: Callable[[], float] = lambda: time.monotonic() * 1e3):
        self.now_ms = now_ms
        self.ready = True
        self.current = FakeStream()
        self.capturing = False
        self.captures = False
        self.made = 0
        self.queries = 0
        self.broken = False
        self.thread_on = 0
        self.contexts: set[int] = set()
        self.copies = 0
        self.let_go = 0

    @contextmanager
    def on(self, number: int) -> Iterator[None]:
        """As `torch.cuda.device`."""
        before, self.thread_on = self.thread_on, number
        try:
            yield
        finally:
            self.thread_on = before

    def pin(self, count: int) -> "list[FakeNumber]":
        """Pinned memory of that many numbers."""
        return [FakeNumber(self) for _ in range(count)]

    def make_event(self, *, enable_timing: bool = True) -> "FakeEvent":
        """A new event, as `torch.cuda.Event` makes it."""
        self.made += 1
        return FakeEvent(self, enable_timing=enable_timing)


class FakeEvent:
    """As torch.cuda.Event."""

    def __init__(self, cuda: FakeCuda, *, enable_timing: bool):
        self._cuda = cuda
        self._enable_timing = enable_timing
        self._device_index: int | None = None
        self._at_ms: float | None = None

    def record(self, stream: FakeStream | None = None) -> None:
        """Be reached when `stream` gets here."""
        cuda, stream = self._cuda, stream or self._cuda.current
        self._refuse("an event recorded while a graph is captured has no time, or is in the graph")
        if self._device_index not in {None, stream.device_index}:
            raise RuntimeError(
                f"Event device {self._device_index} does not match recording stream's device {stream.device_index}."
            )
        self._device_index = stream.device_index
        cuda.contexts.add(stream.device_index)
        self._at_ms = cuda.now_ms() + stream.behind_ms

    def query(self) -> bool:
        """Whether the device got here."""
        self._refuse("operation not permitted when stream is capturing")
        self._cuda.queries += 1
        self._cuda.contexts.add(self._cuda.thread_on)
        return self._at_ms is not None and self._at_ms <= self._cuda.now_ms()

    def elapsed_time(self, end_event: "FakeEvent") -> float:
        """Milliseconds from here to there."""
        self._refuse("operation not permitted when stream is capturing")
        if not self._enable_timing:
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        begin_ms, end_ms = self._at_ms, end_event._at_ms
        if begin_ms is None or end_ms is None or max(begin_ms, end_ms) > self._cuda.now_ms():
            raise ValueError("Both events must be completed before calculating elapsed time.")
        return end_ms - begin_ms

    def __del__(self) -> None:
        self._cuda.let_go += 1

    def _refuse(self, why: str) -> None:
        if self._cuda.broken:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        if self._cuda.capturing or self._cuda.captures:
            raise RuntimeError(why)


class FakeNumber:
    """As a tensor of one element in pinned memory."""

    def __init__(self, cuda: FakeCuda):
        self._cuda = cuda
        self._value = 0.0
        self._at_ms = 0.0

    def copy_(self, tensor: Any, *, non_blocking: bool) -> None:  # noqa: ARG002 - as a tensor is asked
        """Hold the number of the copy that this is, once the current stream gets here."""
        if not non_blocking:
            raise AssertionError("the host would wait for the device")
        if self._cuda.capturing or self._cuda.captures:
            raise RuntimeError("a copy while a graph is captured is in the graph")
        self._cuda.copies += 1
        self._value, self._at_ms = float(self._cuda.copies), self._cuda.now_ms() + self._cuda.current.behind_ms

    def item(self) -> float:
        """What is there: it may be what was there before."""
        return self._value if self._at_ms <= self._cuda.now_ms() else float("nan")

    def __del__(self) -> None:
        self._cuda.let_go += 1
