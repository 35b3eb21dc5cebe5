"""The job as one more rank: at every instant it does what the rank that holds it back does.

Definition. Among the ranks that make steps and whose process exists at an instant, the job is in the state of the one
with the strongest claim (`states.CLAIMS`), with two exceptions: work outranks `straggler_wait`, because who waits is
not who holds the job back, and uncovered time outranks work, because nobody can say that such a rank worked. So the job
is productive exactly when its slowest rank is: no rank does anything but work or wait for that one. The job has made a
step when the last of the ranks that make steps has; the step begins when the last of them begins it. What follows from
the claims (lost work, restarts, compile, hangs) then follows for the job as it does for a rank.

A rank that makes no step in an attempt in which others do (it evaluates, or serves samples) has its own account and no
part in the job's: it would be in its `init` all its life, and the job with it. Before anybody has made one, all count.

Ranks that never wait for each other (local SGD) make the job look worse than it is: their views are the truth there.
"""

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise
from operator import lt

from trainspan.relay.goodput.facts import Step
from trainspan.relay.goodput.life import NEVER, Life
from trainspan.relay.goodput.states import PRODUCTIVE, STRAGGLER_WAIT, UNCOVERED, Palette
from trainspan.relay.goodput.steps import Steps
from trainspan.relay.goodput.track import Segment

CHUNKS_A_SLICE = 16
STEPS_AT_ONCE = 1024
SINGLY = 64
"""Steps that are looked at one by one where the ranks have not made the same ones."""

_STRENGTH = {STRAGGLER_WAIT: (-1, 0, "")}


class Job:
    """The job's life in one attempt, made from the lives of its ranks."""

    __slots__ = ("_runs", "life")

    def __init__(self, attempt: int, palette: Palette) -> None:
        self.life = Life(attempt, -1, palette)
        self._runs = array("q")  # of each step of the job, how often the loop had gone back before it

    def refresh(self, ranks: Sequence[Life], *, is_newest: bool) -> None:
        """Bring the life up to what the ranks say. Cost: the time they changed since, over all of them.

        Args:
            ranks: the lives of this attempt's ranks, at least one.
            is_newest: no later attempt is known, so a rank that is silent may still run.
        """
        changed_from_ns = min(rank.changed_from_ns for rank in ranks)
        if changed_from_ns == NEVER:
            return
        self._describe(ranks)
        self.life.forget(changed_from_ns)
        del self._runs[len(self.life.steps) :]
        stepping = [rank for rank in ranks if len(rank.steps)]
        self._repaint(stepping or ranks, is_newest=is_newest)
        self._restep([rank.steps for rank in stepping])
        for rank in ranks:
            rank.changed_from_ns = NEVER

    def _describe(self, ranks: Sequence[Life]) -> None:
        life, stepped = self.life, any(len(rank.steps) for rank in ranks)
        life.version += 1
        life.begun_ns = min(rank.begun_ns for rank in ranks)
        life.alive_ns = max(rank.alive_ns for rank in ranks)
        life.ended_ns = None if any(rank.ended_ns is None for rank in ranks) else life.alive_ns
        life.orderly = all(rank.orderly for rank in ranks)
        life.world_size = max(rank.world_size for rank in ranks)
        life.opens = {opened for rank in ranks if len(rank.steps) or not stepped for opened in rank.opens}

    def _repaint(self, ranks: Sequence[Life], *, is_newest: bool) -> None:
        life = self.life
        begin_ns = life.begun_ns if life.track.start_ns is None else life.track.end_ns
        gone_ns = [life.alive_ns if is_newest and rank.ended_ns is None else rank.alive_ns for rank in ranks]
        inner = ranks[0].track.edges(begin_ns)[::CHUNKS_A_SLICE]
        cuts = [begin_ns, *(cut_ns for cut_ns in inner if cut_ns < life.alive_ns), life.alive_ns]
        for start_ns, end_ns in pairwise(cuts):
            lines = [
                _line(rank, max(start_ns, rank.begun_ns), min(end_ns, until_ns))
                for rank, until_ns in zip(ranks, gone_ns, strict=True)
            ]
            for segment in strongest(lines, life.palette):
                life.track.append(*segment)

    def _restep(self, ranks: Sequence[Steps]) -> None:
        """Add the steps that all `ranks` have made since the last one."""
        made = self.life.steps
        if not ranks:
            return
        after = (self._runs[-1], made.numbers[-1]) if self._runs else (-1, -1)
        places = [_place_after(steps, after) for steps in ranks]
        alike, singly = 0, 0
        while all(place < len(steps) for place, steps in zip(places, ranks, strict=True)):
            if not singly:
                alike = self._restep_alike(ranks, places)
                places = [place + alike for place in places]
                singly = 0 if alike else SINGLY
                continue
            singly -= 1
            keys = [_key(steps, place) for place, steps in zip(places, ranks, strict=True)]
            latest = max(keys)
            if min(keys) == latest:
                self._runs.append(latest[0])
                made.add(_joined(list(zip(ranks, places, strict=True))))
                places = [place + 1 for place in places]
            else:
                places = [place + (key < latest) for place, key in zip(places, keys, strict=True)]

    def _restep_alike(self, ranks: Sequence[Steps], places: Sequence[int]) -> int:
        """Add the steps from `places` on at once, where every rank has made the same; how many, 0 if they differ."""
        made = self.life.steps
        count = min(STEPS_AT_ONCE, *(len(steps) - place for steps, place in zip(ranks, places, strict=True)))
        runs, *others = {_key(steps, place)[0] for steps, place in zip(ranks, places, strict=True)}
        spans = [(steps, place, place + count) for steps, place in zip(ranks, places, strict=True)]
        numbers = ranks[0].numbers[places[0] : places[0] + count]
        if others or not all(map(lt, numbers, numbers[1:])):
            return 0
        if not all(steps.numbers[first:end] == numbers and steps.are_plain(first, end) for steps, first, end in spans):
            return 0
        starts_ns = list(map(max, zip(*(steps.starts[first:end] for steps, first, end in spans), strict=True)))
        ends_ns = list(map(max, zip(*(steps.ends[first:end] for steps, first, end in spans), strict=True)))
        if len(made) and (made.tangled or starts_ns[0] <= made.starts[-1] or starts_ns[0] < made.ends[-1]):
            return 0
        self._runs.extend(array("q", [runs]) * count)
        made.extend(numbers, starts_ns, ends_ns)
        return count

    def thin(self, now_ns: int) -> None:
        """As `Life.thin`."""
        del self._runs[: self.life.thin(now_ns)]


def _line(rank: Life, start_ns: int, end_ns: int) -> Iterator[Segment]:
    """What the rank did in [start_ns, end_ns), without gaps."""
    at_ns = start_ns
    for segment in rank.track.segments(start_ns, end_ns):
        if segment[0] > at_ns:
            yield at_ns, segment[0], UNCOVERED
        yield segment
        at_ns = segment[1]
    if at_ns < end_ns:
        yield at_ns, end_ns, UNCOVERED


def strongest(lines: Sequence[Iterator[Segment]], palette: Palette) -> Iterator[Segment]:
    """The strongest claim at every instant that any of `lines` covers, in order; none of them has a gap.

    Nearly all of the time is work, so who works is counted as who is there and does nothing else.
    """
    edges: list[tuple[int, int, int]] = []
    for line in lines:
        begin_ns = end_ns = None
        for start_ns, end_ns, code in line:
            if begin_ns is None:
                begin_ns = start_ns
            if code != PRODUCTIVE:
                edges.append((start_ns, code, 1))
                edges.append((end_ns, code, -1))
        if begin_ns is not None and end_ns is not None:
            edges.append((begin_ns, PRODUCTIVE, 1))
            edges.append((end_ns, PRODUCTIVE, -1))
    edges.sort()
    held: dict[int, int] = {}
    working = 0
    at_ns = edges[0][0] if edges else 0
    for time_ns, code, change in edges:
        if time_ns > at_ns:
            best = max(held, key=lambda other: _STRENGTH.get(other, palette.keys[other])) if held else STRAGGLER_WAIT
            if held or working:
                yield at_ns, time_ns, PRODUCTIVE if working and best == STRAGGLER_WAIT else best
            at_ns = time_ns
        if code == PRODUCTIVE:
            working += change
            continue
        working -= change
        held[code] = held.get(code, 0) + change
        if not held[code]:
            del held[code]


def _joined(made: list[tuple[Steps, int]]) -> Step:
    """The job's step, from the places of the same step in each rank."""
    steps, place = made[0]
    return Step(
        attempt=0,
        rank=0,
        number=steps.numbers[place],
        start_ns=max(steps.starts[place] for steps, place in made),
        end_ns=max(steps.ends[place] for steps, place in made),
        recompiled=any(steps.starts[place] in steps.marks for steps, place in made),
        steps=min(steps.count_of(place) for steps, place in made),
    )


def _key(steps: Steps, place: int) -> tuple[int, int]:
    """(times the loop went back before it, number) of the step at `place`: grows from place to place."""
    return bisect_right(steps.runs, place), steps.numbers[place]


def _place_after(steps: Steps, key: tuple[int, int]) -> int:
    """The first place whose `_key` is beyond `key`."""
    low, high = 0, len(steps)
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if _key(steps, middle) <= key else (low, middle)
    return low
