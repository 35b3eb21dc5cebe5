"""The finished steps of one rank in one attempt, by start time, and what a normal one costs.

The *reference step* for a place is the median of the work in its neighbours: the 32 steps before it or, near the
beginning, the first 32 after the first. Steps marked as recompiled, and steps that held anything besides work and
waiting, do not count while there are others. A median of the neighbours follows a run whose steps change; the mean
of all steps, as the peers have it, does not.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import chain, islice
from operator import lt, sub
from typing import NamedTuple

from trainspan.relay.goodput.facts import Step
from trainspan.relay.goodput.states import IN_STEP, PRODUCTIVE
from trainspan.relay.goodput.track import Longest, Track

NEIGHBOURS = 32
NONE_YET = 1 << 62
"""The lowest number of no steps: above all numbers."""


class Lost(NamedTuple):
    """A stretch of steps that were done again."""

    start_ns: int
    end_ns: int
    steps: int


class Count(NamedTuple):
    """Steps that were kept, and steps that were done again."""

    kept: int
    lost: int


class Steps:
    """Arrays of equal length, sorted by (start, number). A place may hold several steps told as one (`count_of`).

    Attributes:
        lowest: the lowest of the numbers.
    """

    __slots__ = ("_counts", "_runs", "ends", "lowest", "marks", "numbers", "starts", "tangled")

    def __init__(self) -> None:
        self.numbers = array("q")
        self.starts = array("q")
        self.ends = array("q")
        self.marks: set[int] = set()
        self.tangled = False
        self.lowest = NONE_YET
        self._counts: dict[int, int] = {}
        self._runs: list[int] | None = []

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def end_ns(self) -> int:
        """When the last step ended; there must be one."""
        return max(self.ends) if self.tangled else self.ends[-1]

    def count_of(self, place: int) -> int:
        """How many steps are told at `place`."""
        return self._counts.get(self.starts[place], 1) if self._counts else 1

    def count(self, first: int, end: int) -> int:
        """How many steps are told at the places [first, end)."""
        if not self._counts or first >= end:
            return max(end - first, 0)
        if self.tangled:  # then several places can have one start
            return sum(map(self.count_of, range(first, end)))
        start_ns, last_ns = self.starts[first], self.starts[end - 1]
        return end - first + sum(more - 1 for at_ns, more in self._counts.items() if start_ns <= at_ns <= last_ns)

    def add(self, step: Step) -> None:
        """Take a finished step in; the same step again changes nothing."""
        if not self.starts or (step.start_ns > self.starts[-1] and step.start_ns >= self.ends[-1]):
            self._append(step)
        else:
            self._insert(step)
        self.lowest = min(self.lowest, step.number)
        if step.recompiled:
            self.marks.add(step.start_ns)
        if step.steps > 1:
            self._counts[step.start_ns] = max(self._counts.get(step.start_ns, 1), step.steps)

    def extend(self, numbers: Sequence[int], starts_ns: Sequence[int], ends_ns: Sequence[int]) -> None:
        """`add` plain steps, each alone, in order, that begin after everything known has ended."""
        if self._runs is not None and not all(map(lt, [*self.numbers[-1:], *numbers], numbers[not self.numbers :])):
            self._runs = None
        self.lowest = min(self.lowest, *numbers)
        self.numbers.extend(numbers)
        self.starts.extend(starts_ns)
        self.ends.extend(ends_ns)

    def are_plain(self, first: int, end: int) -> bool:
        """Whether the steps at the places [first, end) are told one by one, and none was recompiled."""
        starts_ns = self.starts[first:end]
        return not self.tangled and self.marks.isdisjoint(starts_ns) and self._counts.keys().isdisjoint(starts_ns)

    def _append(self, step: Step) -> None:
        if self._runs is not None and self.numbers and step.number <= self.numbers[-1]:
            self._runs.append(len(self.numbers))
        self.numbers.append(step.number)
        self.starts.append(step.start_ns)
        self.ends.append(step.end_ns)

    def _insert(self, step: Step) -> None:
        place = self._place_of(step)
        if place < len(self) and (self.starts[place], self.numbers[place]) == (step.start_ns, step.number):
            self.ends[place] = max(self.ends[place], step.end_ns)
        else:
            self._runs = None
            self.numbers.insert(place, step.number)
            self.starts.insert(place, step.start_ns)
            self.ends.insert(place, step.end_ns)
        self.tangled |= self._is_tangled(place)

    def _place_of(self, step: Step) -> int:
        place = bisect_left(self.starts, step.start_ns)
        while place < len(self) and (self.starts[place], self.numbers[place]) < (step.start_ns, step.number):
            place += 1
        return place

    def _is_tangled(self, place: int) -> bool:
        follows = place == 0 or self.ends[place - 1] <= self.starts[place]
        return not (follows and (place + 1 == len(self) or self.ends[place] <= self.starts[place + 1]))

    def cut(self, time_ns: int) -> None:
        """Forget the steps that end at or after `time_ns`."""
        place = 0 if self.tangled else bisect_left(self.ends, time_ns)
        for start_ns in self.starts[place:]:
            self.marks.discard(start_ns)
            self._counts.pop(start_ns, None)
        for column in (self.numbers, self.starts, self.ends):
            del column[place:]
        self._runs, self.lowest = None, min(self.numbers, default=NONE_YET)

    @property
    def runs(self) -> list[int]:
        """Places, after the first, where the number does not grow: the loop went back without a new process."""
        if self._runs is None:
            numbers = self.numbers
            self._runs = [place for place in range(1, len(numbers)) if numbers[place] <= numbers[place - 1]]
        return self._runs

    def places(self, cut: int | None) -> list[tuple[int, int, int]]:
        """Ranges of places [first, end) whose steps are lost when the run went on from step `cut`, in order.

        With each the step from which it was done again: `cut`, or one to which the loop itself went back before that.
        """
        if cut is None and not self.runs:
            return []
        ranges: list[tuple[int, int, int]] = []
        bounds = [0, *self.runs, len(self)]
        for first, end in zip(reversed(bounds[:-1]), reversed(bounds[1:]), strict=True):
            if first == end:
                continue
            if cut is not None:
                place = bisect_left(self.numbers, cut, first, end)
                if place > first and self.numbers[place - 1] + self.count_of(place - 1) > cut:
                    place -= 1
                if place < end:
                    ranges.append((place, end, cut))
            cut = self.numbers[first] if cut is None else min(cut, self.numbers[first])
        return ranges[::-1]

    def lost(self, cut: int | None) -> list[Lost]:
        """The stretches lost when the run went on from step `cut`; None: it has not gone on. They never overlap."""
        lost: list[Lost] = []
        for place in self.places(cut):
            start_ns, end_ns, steps = self._lost(*place)
            start_ns = max(start_ns, lost[-1].end_ns) if lost else start_ns
            lost.append(Lost(start_ns, max(start_ns, end_ns), steps))
        return lost

    def _lost(self, first: int, end: int, cut: int) -> Lost:
        start_ns, count = self.starts[first], self.count(first, end)
        kept = self._kept_at(first, cut)
        # Of several steps told as one, those before the cut are kept: each is taken to have lasted as long.
        start_ns += (self.ends[first] - start_ns) * kept // self.count_of(first)
        return Lost(start_ns, max(self.ends[first:end]), count - kept)

    def _kept_at(self, place: int, cut: int) -> int:
        """How many of the steps told at `place` come before `cut`."""
        return min(max(cut - self.numbers[place], 0), self.count_of(place))

    def made_by(self, cut: int | None, end_ns: int) -> Count:
        """How many steps that ended by `end_ns` were kept and lost when the run went on from step `cut`."""
        end = bisect_right(self.ends, end_ns)
        lost = sum(
            self.count(first, min(end, last)) - self._kept_at(first, again)
            for first, last, again in self.places(cut)
            if first < end
        )
        return Count(self.count(0, end) - lost, lost)

    def last_kept(self, cut: int | None, until_ns: int) -> int | None:
        """Number of the last step that ended by `until_ns` and was kept when the run went on from step `cut`."""
        place = bisect_right(self.ends, until_ns) - 1
        for first, end, _ in reversed(self.places(cut)):
            if first <= place < end:
                place = first - 1
        return None if place < 0 else self.numbers[place] + self.count_of(place) - 1

    def durations_ns(self, start_ns: int, end_ns: int, most: int) -> list[int]:
        """Durations of up to `most` steps that ended in (start_ns, end_ns], the newest first.

        Steps told as one are taken to have lasted equally long.
        """
        first, end = bisect_right(self.ends, start_ns), bisect_right(self.ends, end_ns)
        first = max(first, end - most)
        durations = list(map(sub, self.ends[first:end], self.starts[first:end]))[::-1]
        if not self._counts:
            return durations
        counts = [self.count_of(place) for place in range(end - 1, first - 1, -1)]
        each = ([duration_ns // count] * count for duration_ns, count in zip(durations, counts, strict=True))
        return list(islice(chain.from_iterable(each), most))

    def window(self, place: int) -> tuple[int, int]:
        """The neighbours [first, end) that the reference step at `place` is taken from."""
        if place > NEIGHBOURS:
            return place - NEIGHBOURS, place
        return min(1, len(self) - 1), min(len(self), NEIGHBOURS + 1)

    def reference_ns(self, track: Track, window: tuple[int, int]) -> int:
        """Work in a normal step among these neighbours; 0 when there are none."""
        works = _works(self, track, *window)
        usual = [work_ns for place, work_ns, is_clean in works if is_clean and self.starts[place] not in self.marks]
        return _median_low(usual or [work_ns for _, work_ns, _ in works])

    def thin(self, until_ns: int, longest_ns: Longest, spans: Sequence[tuple[int, int]]) -> int:
        """Tell neighbouring steps as one, of those that end before `until_ns`.

        Args:
            until_ns: what ends later keeps its detail, and so do the first steps and the last ones before it.
            longest_ns: how long what begins at a time may become.
            spans: in order; steps that touch one of them keep their detail.

        Returns:
            how many places are gone.
        """
        first, end = NEIGHBOURS + 1, bisect_right(self.ends, until_ns) - NEIGHBOURS
        if self.tangled or first >= end:
            return 0
        kept = self._pieces(first, end, longest_ns, spans)
        for column in (self.numbers, self.starts, self.ends):
            column[first:end] = array("q", [column[place] for place in kept])
        self._runs = None
        return end - first - len(kept)

    def _pieces(self, first: int, end: int, longest_ns: Longest, spans: Sequence[tuple[int, int]]) -> list[int]:
        """The places in [first, end) that stand for all of them, once what may be told as one is joined.

        Cost: 0.6 µs a place.
        """
        numbers, starts, ends, marks, counts = self.numbers, self.starts, self.ends, self.marks, self._counts
        heads: list[int] = []
        behind, reach_ns, following = 0, 0, -1
        for place in range(first, end):
            start_ns, end_ns = starts[place], ends[place]
            while behind < len(spans) and spans[behind][1] <= start_ns:
                behind += 1
            is_plain = start_ns not in marks and (behind == len(spans) or spans[behind][0] >= end_ns)
            count = counts.get(start_ns, 1)
            if is_plain and end_ns <= reach_ns and numbers[place] == following and start_ns == ends[heads[-1]]:
                counts.pop(start_ns, None)
                head = heads[-1]
                ends[head] = end_ns
                counts[starts[head]] = following + count - numbers[head]
            else:
                heads.append(place)
                reach_ns = start_ns + longest_ns(start_ns) if is_plain else 0
            following = numbers[place] + count
        return heads


def _works(steps: Steps, track: Track, first: int, end: int) -> list[tuple[int, int, bool]]:
    """(place, work in ns for one step, held nothing but work and waiting) of the steps at [first, end)."""
    if first >= end:
        return []
    segments = list(track.segments(steps.starts[first], max(steps.ends[first:end])))
    works, begin = [], 0
    for place in range(first, end):
        start_ns, end_ns = steps.starts[place], steps.ends[place]
        while begin < len(segments) and segments[begin][1] <= start_ns:
            begin += 1
        work_ns, is_clean, at = 0, True, begin
        while at < len(segments) and segments[at][0] < end_ns:
            code = segments[at][2]
            if code == PRODUCTIVE:
                work_ns += min(segments[at][1], end_ns) - max(segments[at][0], start_ns)
            is_clean = is_clean and code in IN_STEP
            at += 1
        works.append((place, work_ns // steps.count_of(place), is_clean))
    return works


def _median_low(values: Iterable[int]) -> int:
    ordered = sorted(values)
    return ordered[(len(ordered) - 1) // 2] if ordered else 0
