"""What the device did in a step, by the marks that the host made in it.

A boundary of a phase on the host is an event on the device; from one event to the next the device was at work on what
the host had asked for between them, or had nothing to do. So a phase has two durations: how long the host was in it,
and how long the device took for what it launched.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from trainspan.names import AnyPhase
from trainspan.relay.timeline.fields import field
from trainspan.relay.timeline.records import Interval, RankStep

_MOST_MARKS: Final = 4096
_LONGEST_NS: Final = 1 << 62


class Stretch(NamedTuple):
    """What the device did of one interval: from when, counted from the step's beginning on the device, and how long."""

    start_ns: int
    duration_ns: int


class DeviceStep(NamedTuple):
    """A step that was timed on the device.

    `number`: of the step.
    `times_ns`: of its marks on the host; `offsets_ns`: when the device got to each, from the step's beginning there.
    """

    number: int
    times_ns: tuple[int, ...]
    offsets_ns: tuple[int, ...]

    @property
    def duration_ns(self) -> int:
        """Of the whole step on the device."""
        return self.offsets_ns[-1]

    def stretches(self, step: RankStep) -> tuple[Stretch | None, ...]:
        """What the device did of each interval of `step`, which is this one; None where their boundaries differ."""
        at = dict(zip(self.times_ns, self.offsets_ns, strict=True))
        at.setdefault(step.start_ns, 0)
        return tuple(_stretch(at, interval) for interval in step.intervals)

    def phase_times(self, step: RankStep) -> dict[AnyPhase, int]:
        """Ns on the device by phase."""
        times_ns: dict[AnyPhase, int] = {}
        for interval, stretch in zip(step.intervals, self.stretches(step), strict=True):
            if stretch is not None:
                times_ns[interval.phase] = times_ns.get(interval.phase, 0) + stretch.duration_ns
        return times_ns


def device_step_of(event: Mapping[str, Any]) -> DeviceStep:
    """What an event `device_step` tells. It is read with distrust.

    Raises:
        ValueError: it tells nothing.
    """
    times_ns, offsets_ns = _numbers(event, "times_ns"), _numbers(event, "offsets_ns")
    if len(offsets_ns) != len(times_ns) + 1 or not times_ns:
        raise ValueError(f"{len(times_ns)} marks and {len(offsets_ns)} events")
    return DeviceStep(field(event, "step", int), times_ns, offsets_ns[1:])


def _numbers(event: Mapping[str, Any], name: str) -> tuple[int, ...]:
    numbers: list[Any] = field(event, name, list)
    if len(numbers) > _MOST_MARKS or not all(type(n) is int and 0 <= n < _LONGEST_NS for n in numbers):
        raise ValueError(f"{name} holds what is no time")
    if numbers != sorted(numbers):
        raise ValueError(f"{name} goes backwards")
    return tuple(numbers)


def _stretch(at: Mapping[int, int], interval: Interval) -> Stretch | None:
    start_ns, end_ns = at.get(interval.start_ns), at.get(interval.end_ns)
    return None if start_ns is None or end_ns is None else Stretch(start_ns, end_ns - start_ns)
