"""Time beyond the reference step: `compile` in first and recompiled steps, `hang` in long ones and between steps.

Steps are examined once, in order, and again only when a fact lands in them or before them. The first 33 wait for each
other: their reference changes until all are known.
"""

from bisect import bisect_left
from typing import NamedTuple

from trainspan.relay.goodput.states import COMPILE, HANG, PRODUCTIVE, UNCOVERED
from trainspan.relay.goodput.steps import NEIGHBOURS, Steps
from trainspan.relay.goodput.track import Track

HANG_FLOOR_NS = 60_000_000_000
HANG_STEPS = 10
FIRST_STEPS = 5
"""Steps at the beginning of an attempt whose excess is `compile`: autotuning, lazy optimizer state, bucket rebuilds."""

Claim = tuple[int, int, int]
"""(start_ns, end_ns, code)."""


class Recolour(NamedTuple):
    """In [start_ns, end_ns), the `amount_ns` under code `source` counts under `target`."""

    start_ns: int
    end_ns: int
    source: int
    target: int
    amount_ns: int


def is_hang(silent_ns: int, reference_ns: int) -> bool:
    """Whether so long without progress is a hang: more than 60 s and more than ten reference steps."""
    return silent_ns > max(HANG_FLOOR_NS, HANG_STEPS * reference_ns)


class Excess:
    """What was found in one life's steps so far. `gaps`: claims on the uncovered time between steps."""

    __slots__ = ("_examined", "_found", "_references", "_steps", "_track", "gaps")

    def __init__(self, track: Track, steps: Steps) -> None:
        self._track = track
        self._steps = steps
        self._found: list[Recolour] = []
        self._examined = 0
        self._references: dict[tuple[int, int], int] = {}  # by window, for one pass: the first steps share theirs
        self.gaps: list[Claim] = []

    def recolours(self) -> list[Recolour]:
        """The excess of every step that has one, in order and without overlap. Brings `gaps` up to date too."""
        steps, marks = self._steps, self._steps.marks
        if len(steps) <= NEIGHBOURS:
            self._examined = 0
        if not self._examined:
            self._found, self.gaps = [], []
        self._references.clear()
        for place in range(self._examined, len(steps)):
            start_ns, end_ns = steps.starts[place], steps.ends[place]
            is_first = place < FIRST_STEPS or start_ns in marks
            if is_first or end_ns - start_ns > HANG_FLOOR_NS:
                self._examine(place, is_first=is_first)
            if place and start_ns - steps.ends[place - 1] > HANG_FLOOR_NS:
                self._examine_gap(place)
        self._examined = len(steps)
        return self._found

    def forget(self, time_ns: int) -> None:
        """Drop what rests on the time from `time_ns` on; it is examined again."""
        steps = self._steps
        if not self._examined or (time_ns >= steps.ends[self._examined - 1] and not steps.tangled):
            return
        place = bisect_left(steps.ends, time_ns)
        self._examined = 0 if steps.tangled or place <= NEIGHBOURS else min(place, self._examined)
        kept_ns = steps.starts[self._examined]
        while self._found and self._found[-1].end_ns > kept_ns:
            self._found.pop()
        while self.gaps and self.gaps[-1][1] >= kept_ns:
            self.gaps.pop()

    def spans(self) -> list[tuple[int, int]]:
        """Where time was found to be in excess: the places that must keep their detail."""
        return [(found.start_ns, found.end_ns) for found in self.recolours()] + [gap[:2] for gap in self.gaps]

    def shift(self, places: int) -> None:
        """So many examined places have been told as fewer."""
        self._examined = max(self._examined - places, 0)

    def _examine(self, place: int, *, is_first: bool) -> None:
        steps = self._steps
        start_ns, end_ns, count = steps.starts[place], steps.ends[place], steps.count_of(place)
        reference_ns = self._reference_ns(place)
        work_ns = self._track.sums(start_ns, end_ns).get(PRODUCTIVE, 0)
        usual_ns = reference_ns * count
        if not reference_ns or work_ns <= usual_ns or not (is_first or is_hang(work_ns // count, reference_ns)):
            return
        if is_first:
            self._find(start_ns, self._worked_until_ns(start_ns, end_ns, work_ns - usual_ns), COMPILE)
        else:
            self._find(self._worked_until_ns(start_ns, end_ns, usual_ns), end_ns, HANG)

    def _reference_ns(self, place: int) -> int:
        window = self._steps.window(place)
        if window not in self._references:
            self._references[window] = self._steps.reference_ns(self._track, window)
        return self._references[window]

    def _find(self, start_ns: int, end_ns: int, target: int) -> None:
        """Note an excess; where steps overlap, only what lies behind the one before."""
        start_ns = max(start_ns, self._found[-1].end_ns) if self._found else start_ns
        if start_ns < end_ns:
            amount_ns = self._track.sums(start_ns, end_ns).get(PRODUCTIVE, 0)
            self._found.append(Recolour(start_ns, end_ns, PRODUCTIVE, target, amount_ns))

    def _worked_until_ns(self, start_ns: int, end_ns: int, work_ns: int) -> int:
        """When `work_ns` of work had been done after `start_ns`."""
        for begin_ns, finish_ns, code in self._track.segments(start_ns, end_ns):
            if code == PRODUCTIVE:
                if finish_ns - begin_ns >= work_ns:
                    return begin_ns + work_ns
                work_ns -= finish_ns - begin_ns
        return end_ns

    def _examine_gap(self, place: int) -> None:
        start_ns, end_ns = self._steps.ends[place - 1], self._steps.starts[place]
        reference_ns = self._reference_ns(place)
        if is_hang(self._track.sums(start_ns, end_ns).get(UNCOVERED, 0), reference_ns):
            self.gaps.append((start_ns + reference_ns, end_ns, HANG))
