"""Device time of the phases, without a synchronization: pooled events at the boundaries of sampled steps.

On a step that gets a trace whatever comes of it, each mark is accompanied by an event on the stream that was current
when the step began. At the end of a later step, and once more at the end of the process, it is asked whether the last
of them has been reached; only then the times between them are read, and appended to the event log as one of:

    device_events   from_step: the first that may be timed; share: of the steps that are; null: those with a trace;
                    0: no more
    device_step     step; times_ns: of the step's marks, on the host; offsets_ns: when the device reached the
                    beginning of the step and then each of them, counted from the former
    device_dropped  step; reason: `capture` a graph was being captured, `long` too many marks, `behind` the device had
                    too many timed steps before it, `unused` no device is in use

Nothing ever waits for the device, and nothing is asked of it while a graph is being captured, on whichever thread: a
query then would invalidate the capture. Work on other streams (communication, copies) is seen as far as the step's own
waits for it; a script that fetches its batches within another one gets no event there, where the device would reach it
out of turn. ROCm's torch calls its events by the same names.

Cost: 3 µs on a step that is not timed where CUDA is in use, 0.1 µs where it is not; 14 µs on a timed one of ten marks,
and what their events take (`scripts/bench device_events`).
"""

from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Final, NamedTuple, Protocol

import torch

from trainspan.guard import warn_once
from trainspan.record.kept import kept
from trainspan.record.marker import Marker

MOST_BEHIND: Final = 8
"""Timed steps that may wait for the device."""

MOST_MARKS: Final = 512
"""Marks of a step that is timed; one of more micro-batches is not."""

_NS_PER_MS: Final = 1e6


class Stream(Protocol):
    """A stream of torch."""

    @property
    def device_index(self) -> int:
        """Number of its device."""


class Event(Protocol):
    """An event of torch, made with `enable_timing`. It belongs to the device on which it was recorded first."""

    def record(self, stream: Any) -> Any:
        """Ask the device to note when it gets here on `stream`."""

    def query(self) -> bool:
        """Whether it got here."""

    def elapsed_time(self, end_event: Any) -> float:
        """Milliseconds from here to there."""


class Device(NamedTuple):
    """What is asked of the devices of one kind. `is_ready()`: whether the user has begun to use one.

    `stream()`: the current one of the device that trains; None: none does. `is_capturing()`: whether a graph is being
    captured. `on(number)`: makes that device the calling thread's, for a while.
    """

    is_ready: Callable[[], bool]
    stream: Callable[[], Stream | None]
    make_event: Callable[[], Event]
    is_capturing: Callable[[], bool]
    on: Callable[[int], AbstractContextManager[Any]]


class _Timed(NamedTuple):
    """A step with its events, out of `pool`: the first at its beginning, then one for each of its marks."""

    number: int
    stream: Stream
    pool: list[Event]
    times_ns: list[int]
    events: list[Event]


def cuda(used: Callable[[], int | None], captures: Callable[[], bool]) -> Device:
    """The device behind `torch.cuda`, which is never initialized from here.

    Args:
        used: number of the device that trains; None: none does.
        captures: whether a graph is being captured on any thread, as far as the hooks have seen it begin.
    """

    def stream() -> Stream | None:
        number = used()
        return None if number is None else torch.cuda.current_stream(number)

    return Device(
        torch.cuda.is_initialized,
        stream,
        lambda: torch.cuda.Event(enable_timing=True),
        lambda: captures() or torch.cuda.is_current_stream_capturing(),
        torch.cuda.device,
    )


class DeviceClock:
    """Times steps by events. All of it runs on the training thread, but for `close`.

    No event is ever let go of, see `kept`; there are at most MOST_BEHIND + 1 steps' of each device.
    """

    def __init__(self, device: Device, tell: Callable[..., None]):
        self._device = device
        self._tell = tell
        self._now: _Timed | None = None
        self._pending: deque[_Timed] = deque()
        self._pools: dict[int, list[Event]] = {}  # by the number of the device

    def begin(self, number: int) -> bool:
        """Begin to time step `number`; False: it cannot be timed."""
        if len(self._pending) == MOST_BEHIND:
            # Not the oldest, which the device is closest to: one that stays behind would never finish any.
            self._tell("device_dropped", step=number, reason="behind")
            return False
        stream = self._device.stream()
        if stream is None:
            self._tell("device_dropped", step=number, reason="unused")
            return False
        self._now = _Timed(number, stream, self._pools.setdefault(stream.device_index, []), [], [])
        return self._record(self._now)

    def mark(self, time_ns: int) -> None:
        """Note that a mark was made at `time_ns`."""
        timed = self._now
        if timed is None:
            return
        if len(timed.times_ns) == MOST_MARKS:
            self._abandon(timed, "long")
        elif self._record(timed):
            timed.times_ns.append(time_ns)

    def end(self) -> None:
        """The step that is being timed has ended."""
        if self._now is None:
            return
        self._pending.append(self._now)
        self._now = None

    def poll(self) -> None:
        """Tell of the timed steps that the device is through with."""
        while self._pending and not self._device.is_capturing():
            timed = self._pending[0]
            if not timed.events[-1].query():
                return
            self._pending.popleft()
            first = timed.events[0]
            offsets_ns = [0, *(round(first.elapsed_time(event) * _NS_PER_MS) for event in timed.events[1:])]
            timed.pool.extend(timed.events)
            self._tell("device_step", step=timed.number, times_ns=timed.times_ns, offsets_ns=offsets_ns)

    def close(self) -> None:
        """The last `poll`, on whichever thread ends the process."""
        if self._pending:
            # One that has never used a device asks the first one, and makes a context there.
            with self._device.on(self._pending[0].stream.device_index):
                self.poll()

    def forget(self) -> None:
        """Do without everything that is waiting."""
        self._now = None
        self._pending.clear()

    def _record(self, timed: _Timed) -> bool:
        if self._device.is_capturing():
            self._abandon(timed, "capture")
            return False
        event = timed.pool.pop() if timed.pool else kept(self._device.make_event())
        event.record(timed.stream)
        timed.events.append(event)
        return True

    def _abandon(self, timed: _Timed, reason: str) -> None:
        self._now = None
        timed.pool.extend(timed.events)
        self._tell("device_dropped", step=timed.number, reason=reason)


class DeviceSteps:
    """Decides which steps are timed, and steps aside for good when the device fails.

    Args:
        marker: of the recording.
        device: that the training uses, if it does.
        takes: whether the step of this number is timed.
        tell: `tell("device_step", **fields)` appends an event.
    """

    def __init__(self, marker: Marker, device: Device, takes: Callable[[int], bool], tell: Callable[..., None]):
        self._marker = marker
        self._is_ready = device.is_ready
        self._takes = takes
        self._tell = tell
        self._clock = DeviceClock(device, tell)
        self._timing = False
        self._failed = False

    def step_ended(self) -> None:
        """To be called at the end of every step of training."""
        if self._failed or not self._is_ready():
            return
        try:
            self._turn()
        except Exception as error:
            self._step_aside(error)

    def close(self) -> None:
        """Tell of the steps that the device is through with: there will be no other time, and no waiting."""
        # In a fork of a process that used a device torch says that none is ready.
        if self._failed or not self._is_ready():
            return
        try:
            self._clock.close()
        except Exception as error:
            self._step_aside(error)

    def _turn(self) -> None:
        clock, number = self._clock, self._marker.steps()
        if self._timing:
            self._timing = False
            self._marker.watch(None)
            clock.end()
        clock.poll()
        if self._takes(number) and clock.begin(number):
            self._timing = True
            self._marker.watch(self._mark)

    def _mark(self, time_ns: int) -> None:
        # Called within the hooks of torch: whatever a device says here must not reach the script.
        try:
            self._clock.mark(time_ns)
        except Exception as error:
            self._step_aside(error)

    def _step_aside(self, error: Exception) -> None:
        self._failed = True
        self._marker.watch(None)
        self._clock.forget()
        # So that no trace waits for the device any more.
        self._tell("device_events", from_step=self._marker.steps(), share=0.0)
        warn_once("device", f"no more device times ({type(error).__name__}: {error}); those of the host go on")
