"""Where a rank is in its run, as its framework counts: the step over all attempts, and the epoch.

The event `progress` says once what holds from a step on: step (of the attempt), global_step (how many optimizer steps
the run has made once that one is complete), epoch. It is told again when one of them changes its course.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

REMEMBERED: Final = 64
_MOST: Final = 1 << 62


class Position(NamedTuple):
    """What the framework calls a step. None: it has not said."""

    global_step: int | None = None
    epoch: int | None = None


class _Course(NamedTuple):
    from_step: int
    offset: int | None
    epoch: int | None


class Progress:
    """The course of one rank."""

    def __init__(self) -> None:
        self._courses: list[_Course] = []

    def take(self, event: Mapping[str, Any]) -> None:
        """Take over an event `progress`, or `scalars` where it says its step, read with distrust; of others nothing."""
        if event["event"] not in ("progress", "scalars"):
            return
        of_step = "step" if event["event"] == "progress" else "at_step"
        step, global_step, epoch = (_count(event.get(name)) for name in (of_step, "global_step", "epoch"))
        if step is None:
            return
        newest = self._courses[-1] if self._courses else None
        if newest is not None and event["event"] == "scalars":
            epoch = newest.epoch  # a script that logs says nothing of epochs
        offset = None if global_step is None else global_step - step
        if newest is None or newest[1:] != (offset, epoch):
            self._courses.append(_Course(step, offset, epoch))
            del self._courses[:-REMEMBERED]

    def of(self, number: int) -> Position:
        """The position of step `number` of the attempt."""
        course = next((course for course in reversed(self._courses) if course.from_step <= number), None)
        if course is None:
            return Position()
        return Position(None if course.offset is None else number + course.offset, course.epoch)


def _count(value: object) -> int | None:
    return value if type(value) is int and 0 <= value < _MOST else None
