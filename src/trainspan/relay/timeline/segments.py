"""Stretches of an attempt for its trace, so that a long run shows in the backend while it runs.

A segment is 60 s long, and twice as long after each `PER_LENGTH` of them: `MOST` segments cover 88 days, and the trace
stays bounded. Where they lie follows from the start of the process alone, so a relay that starts anew cuts them alike.
"""

from typing import Final, NamedTuple

SHORTEST_NS: Final = 60_000_000_000
PER_LENGTH: Final = 500
MOST: Final = 4000


class Segment(NamedTuple):
    """Stretch number `number` of an attempt. `first_step` to `last_step` ended in it; None where no step did."""

    number: int
    start_ns: int
    end_ns: int
    first_step: int | None
    last_step: int | None


def offset_of(index: int) -> int:
    """Where segment `index` starts, in ns from the start of the process."""
    doubled, rest = divmod(index, PER_LENGTH)
    return SHORTEST_NS * (PER_LENGTH * ((1 << doubled) - 1) + (rest << doubled))


class Segments:
    """The segments of one process, as time goes on."""

    def __init__(self, process_start_ns: int):
        self._process_start_ns = process_start_ns
        self._index = 0
        self._first_step: int | None = None
        self._last_step: int | None = None

    def count(self, number: int, end_ns: int) -> list[Segment]:
        """The segments that are over, now that step `number` has ended at `end_ns`; it counts for the one after."""
        over = self.advance(end_ns)
        if self._first_step is None:
            self._first_step = number
        self._last_step = number
        return over

    def advance(self, until_ns: int) -> list[Segment]:
        """The segments that end before `until_ns`. Steps that ended before it must have been counted."""
        over = []
        while self._index < MOST and self._end_ns() < until_ns:
            over.append(self._close(self._end_ns()))
        return over

    def end(self, at_ns: int) -> list[Segment]:
        """The segments that are over when the process ends at `at_ns`: the last one is cut short."""
        over = self.advance(at_ns)
        if self._index < MOST:
            over.append(self._close(at_ns))
        return over

    def _end_ns(self) -> int:
        return self._process_start_ns + offset_of(self._index + 1)

    def _close(self, end_ns: int) -> Segment:
        start_ns = self._process_start_ns + offset_of(self._index)
        segment = Segment(self._index, start_ns, max(start_ns, end_ns), self._first_step, self._last_step)
        self._index += 1
        self._first_step = self._last_step = None
        return segment
