"""The wall clock of one rank, or of the job, over all attempts: lives, and what lies between them.

A rank's clock runs while the rank is part of the run: through each of its lives, and from the end of one to the
beginning of the next when the rank was in both attempts and no other lies between. What lies between is `restart`:
with the uncovered head of the next life it makes the recovery, from the last sign of life to the first new step.
Lives that overlap (a zombie, a clock that stepped) are cut at the beginning of the later attempt.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from trainspan.relay.goodput.life import NEVER, Ending, Frame, Life
from trainspan.relay.goodput.states import RESTART
from trainspan.relay.goodput.steps import Count
from trainspan.relay.goodput.track import Sums, add


class Period(NamedTuple):
    """One life on a clock, and the recovery before it, which begins at `gap_ns`."""

    gap_ns: int
    life: Life
    frame: Frame
    base: int
    """Number in the run of the life's step 0."""


class Resume(NamedTuple):
    """Where an attempt took the run up. `step`: its first step, as a number of the run; None: not known (yet).

    `lowest`: the lowest step it made. A loop that goes back by itself may go back behind its own beginning.
    """

    base: int
    step: int | None
    known_by: str
    lowest: int | None = None


def cuts_of(resumes: Sequence[Resume]) -> list[int | None]:
    """For each attempt the first step that a later one did again, as a number of the run."""
    cuts: list[int | None] = []
    cut: int | None = None
    for resume in reversed(resumes):
        cuts.append(cut)
        again = [step for step in (cut, resume.step, resume.lowest) if step is not None]
        if resume.step is not None:
            cut = min(again)
    return cuts[::-1]


def periods_of(lives: Sequence[Life | None], resumes: Sequence[Resume]) -> list[Period]:
    """The periods of a clock, in order. A life that still runs stops at its last sign of life.

    Args:
        lives: the life in each attempt of the run; None where the rank took no part.
        resumes: where each attempt took the run up.
    """
    periods: list[Period] = []
    cuts, newest = cuts_of(resumes), len(lives) - 1
    limit_ns, later = NEVER, -1
    for place in range(newest, -1, -1):
        life = lives[place]
        if life is None:
            continue
        begin_ns, base, cut = min(life.begun_ns, limit_ns), resumes[place].base, cuts[place]
        frame = Frame(
            begin_ns=begin_ns,
            stop_ns=max(min(life.alive_ns, limit_ns), begin_ns),
            ending=_ending_of(life, is_newest=place == newest),
            recovers=place > 0,
            cut=None if cut is None else cut - base,
        )
        if later == place + 1:
            periods[-1] = periods[-1]._replace(gap_ns=frame.stop_ns)
        periods.append(Period(begin_ns, life, frame, base))
        limit_ns, later = begin_ns, place
    return periods[::-1]


def _ending_of(life: Life, *, is_newest: bool) -> Ending:
    if life.ended_ns is None:
        return Ending.RUNNING if is_newest else Ending.DIED
    return Ending.ORDERLY if life.orderly else Ending.DIED


class Clock:
    """The periods of one rank or of the job; what is behind the newest is summed once."""

    __slots__ = ("_gaps_ns", "_overlaps", "_parts", "_prefix", "periods")

    def __init__(self, periods: list[Period]) -> None:
        self.periods = periods
        self._gaps_ns = [period.gap_ns for period in periods]
        self._overlaps = [
            (max(frame.stop_ns, life.begun_ns), life.alive_ns)
            for _, life, frame, _ in periods
            if max(frame.stop_ns, life.begun_ns) < life.alive_ns
        ]
        self._prefix: list[tuple[Sums, Count]] = [({}, Count(0, 0))]
        self._parts: dict[tuple[str | None, int | None], Clock] = {}

    def advance(self, now_ns: int | None) -> None:
        """Let the newest life run until its last sign of life, or until `now_ns` if it has not ended."""
        last = self.periods[-1]
        stop_ns = max(last.frame.begin_ns, last.life.alive_ns)
        if last.frame.ending is Ending.RUNNING and now_ns is not None:
            stop_ns = max(stop_ns, now_ns)
        if last.frame.stop_ns != stop_ns:
            self.periods[-1] = last._replace(frame=last.frame._replace(stop_ns=stop_ns))

    def part(self, node: str | None, attempt: int | None) -> "Clock | None":
        """The clock of the periods on a node, or in an attempt; None where there are none. Valid as long as this is.

        Cost: O(1) an attempt; the periods once for a node.
        """
        part = self._parts.get((node, attempt))
        if part is None:
            periods = self.periods if attempt is None else self._in_attempt(attempt)
            part = Clock([period for period in periods if node in (None, period.life.node)])
            self._parts[node, attempt] = part
        if not part.periods:
            return None
        if part.periods[-1].life is self.periods[-1].life:
            part.periods[-1] = self.periods[-1]  # which may have advanced
        return part

    def _in_attempt(self, attempt: int) -> list[Period]:
        place = bisect_left(self.periods, attempt, key=_attempt_of)
        return [period for period in self.periods[place : place + 1] if period.life.attempt == attempt]

    def sums(self, start_ns: int, end_ns: int) -> Sums:
        """ns under each code in [start_ns, end_ns), as far as the clock ran."""
        sums = self._sums_before(end_ns)
        for code, length_ns in self._sums_before(start_ns).items():
            sums[code] = sums.get(code, 0) - length_ns
        return sums

    def overlap_ns(self, start_ns: int, end_ns: int) -> int:
        """How much of [start_ns, end_ns) lives have recorded that were cut there, because a later one had begun."""
        return sum(max(min(last_ns, end_ns) - max(first_ns, start_ns), 0) for first_ns, last_ns in self._overlaps)

    def steps(self, start_ns: int, end_ns: int) -> Count:
        """How many steps that ended after `start_ns` and not after `end_ns` were kept, and how many lost."""
        before, until = self._steps_before(start_ns), self._steps_before(end_ns)
        return Count(until.kept - before.kept, until.lost - before.lost)

    def last_step(self, until_ns: int) -> int | None:
        """Number in the run of the last kept step that ended by `until_ns`."""
        for period in reversed(self.periods):
            number = period.life.steps.last_kept(period.frame.cut, min(until_ns, period.frame.stop_ns))
            if number is not None:
                return number + period.base
        return None

    def _sums_before(self, time_ns: int) -> Sums:
        place = self._place_at(time_ns)
        if place < 0:
            return {}
        sums = dict(self._before(place)[0])
        add(sums, _sums_of(self.periods[place], time_ns))
        return sums

    def _steps_before(self, time_ns: int) -> Count:
        place = self._place_at(time_ns)
        if place < 0:
            return Count(0, 0)
        _, life, frame, _ = self.periods[place]
        return _total(self._before(place)[1], life.made(frame, time_ns))

    def _place_at(self, time_ns: int) -> int:
        """The last period that has begun at `time_ns`; -1 before the first."""
        return bisect_right(self._gaps_ns, time_ns) - 1

    def _before(self, place: int) -> tuple[Sums, Count]:
        """Sums and steps of the periods before `place`."""
        prefix = self._prefix
        while len(prefix) <= place:
            period = self.periods[len(prefix) - 1]
            sums, count = dict(prefix[-1][0]), prefix[-1][1]
            add(sums, _sums_of(period, period.frame.stop_ns))
            prefix.append((sums, _total(count, period.life.made(period.frame, period.frame.stop_ns))))
        return prefix[place]


def _attempt_of(period: Period) -> int:
    return period.life.attempt


def _total(first: Count, second: Count) -> Count:
    return Count(first.kept + second.kept, first.lost + second.lost)


def _sums_of(period: Period, until_ns: int) -> Sums:
    """ns under each code in a period, as far as it lies before `until_ns`."""
    gap_ns, life, frame, _ = period
    sums = {RESTART: max(min(frame.begin_ns, until_ns) - gap_ns, 0)}
    end_ns = min(frame.stop_ns, until_ns)
    if end_ns > frame.begin_ns:
        add(sums, life.sums(frame, end_ns))
    return sums
