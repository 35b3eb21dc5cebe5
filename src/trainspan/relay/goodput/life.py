"""One rank in one attempt: its facts folded, and its clock read.

`take` folds a fact in O(1) when it is the newest. What a fact cannot say alone is decided when the clock is read, as
*recolours*: a stretch in which time under one code counts under another. They never overlap under one code, so the
sums stay whole. With the recolours of a stretch known, a window costs what `Track.sums` costs.

    head         uncovered before the first step, when the rank had an attempt before this one: `restart`
    first steps  and recompiled ones: their work beyond the reference step, taken from their beginning: `compile`
    long steps   work > max(60 s, 10 reference steps): what is beyond the first reference step: `hang`
    gaps         uncovered between two steps for longer than that: what is beyond one reference step: `hang`
    tail         after the last step: uncovered and unfinished time. Silent for longer than that and not closed in good
                 order: `hang` from one reference step after the last progress. The rest: `lost_work` when the rank
                 died, `shutdown` when it closed in good order, `unaccounted` while it runs.
    open         uncovered from the start of an activity without end to the next thing heard: that activity
    lost         from the first step done again to the last one: whatever is losable
"""

from collections.abc import Iterator
from enum import Enum
from itertools import islice
from typing import NamedTuple

from trainspan.relay.goodput.excess import HANG_FLOOR_NS, Claim, Excess, Recolour, is_hang
from trainspan.relay.goodput.facts import Activity, Begun, Ended, Fact, Loaded, Saved, Step, StepRun
from trainspan.relay.goodput.states import (
    HANG,
    LOST_WORK,
    PRODUCTIVE,
    RESTART,
    SHUTDOWN,
    UNCOVERED,
    UNFINISHED,
    Palette,
)
from trainspan.relay.goodput.steps import Count, Lost, Steps
from trainspan.relay.goodput.track import Segment, Sums, Track

DETAIL_NS = 3600 * 1_000_000_000
DETAIL_STEPS = 16_384
"""What a thinned life knows exactly: its last hour, or so many steps where an hour has more of them (1.2 MB)."""

PIECES = 256
"""What lies before that is told in pieces no longer than this part of their age. Edges of a window of any length are
off by 0.4 % of it at most, and a run of years has some 2,000 pieces: their number grows with the logarithm of its age.
"""

NEVER = 1 << 63
_NO_PROGRESS = frozenset({UNCOVERED, UNFINISHED})


class Ending(Enum):
    """How a life ended, as far as the run knows."""

    RUNNING = "running"
    ORDERLY = "orderly"
    DIED = "died"


class Frame(NamedTuple):
    """Where a life lies in its run. `cut`: the first step, in the life's own numbers, that was done again later."""

    begin_ns: int
    stop_ns: int
    ending: Ending
    recovers: bool
    cut: int | None


class Life:
    """What is known of one rank in one attempt."""

    def __init__(self, attempt: int, rank: int, palette: Palette) -> None:
        self.attempt = attempt
        self.rank = rank
        self.node = ""
        self.world_size = 1
        self.counts_in_run = False
        self.begun_ns = NEVER
        self.alive_ns = -NEVER
        self.ended_ns: int | None = None
        self.orderly = True
        self.track = Track(palette.keys)
        self.steps = Steps()
        self.saves: dict[tuple[int, int, str, int | None], Saved] = {}
        self.loads: dict[tuple[int, int | None, str], Loaded] = {}
        self.opens: set[tuple[int, int]] = set()
        self.changed_from_ns = -NEVER
        self.version = 0
        self.shape = 0  # grows with what other lives' clocks and the job's depend on
        self.palette = palette
        self.excess = Excess(self.track, self.steps)
        self._read: tuple[int, Frame, list[Recolour]] | None = None
        self._whole: tuple[int, Frame, Sums] | None = None
        self._made: tuple[int, Frame, Count] | None = None

    def take(self, fact: Fact) -> None:
        """Fold one fact in. Any order, any number of times."""
        self.version += 1
        if isinstance(fact, Step):
            self._take_step(fact)
        elif isinstance(fact, StepRun):
            self._take_run(fact)
        elif isinstance(fact, Activity):
            self._take_activity(fact)
        elif isinstance(fact, Begun):
            self._take_begun(fact)
        elif isinstance(fact, Ended):
            self._change(self.alive_ns)
            self._see(fact.at_ns, fact.at_ns)
            self.shape += 1
            self.ended_ns = fact.at_ns if self.ended_ns is None else max(self.ended_ns, fact.at_ns)
            self.orderly = self.orderly and fact.orderly
        else:
            self._see(fact.at_ns, fact.at_ns)
            if isinstance(fact, Saved):
                self.saves[fact[2:]] = fact
            elif isinstance(fact, Loaded):
                self.shape += 1
                self.loads[fact[2:]] = fact

    def _see(self, start_ns: int, end_ns: int) -> None:
        """The rank lived from `start_ns` to `end_ns`, at least."""
        if start_ns < self.begun_ns:
            self._change(start_ns)
            self.shape += 1
            self.begun_ns = start_ns
        if end_ns > self.alive_ns:
            self._change(self.alive_ns)
            self.alive_ns = end_ns

    def _change(self, time_ns: int) -> None:
        if time_ns < self.changed_from_ns:
            self.changed_from_ns = time_ns

    def leave(self) -> None:
        """A later attempt is known: if this rank has not ended, it is not running but gone."""
        self.version += 1
        self._change(self.alive_ns)

    def forget(self, time_ns: int) -> None:
        """Drop what the track holds from `time_ns` on, and the steps that end then or later: they are made again."""
        self.excess.forget(time_ns - 1)
        self.track.cut(time_ns)
        self.steps.cut(time_ns)

    def _take_begun(self, fact: Begun) -> None:
        self._see(fact.at_ns, fact.at_ns)
        self._change(fact.at_ns)
        self.shape += 1
        self.node = max(self.node, fact.node)
        self.world_size = max(self.world_size, fact.world_size)
        self.counts_in_run = self.counts_in_run or fact.counts_in_run

    def _take_step(self, step: Step) -> None:
        start_ns, end_ns = step.start_ns, step.end_ns
        if self.begun_ns <= self.alive_ns <= start_ns and not self.steps.tangled:
            self._change(self.alive_ns)  # the newest of all: nothing was concluded from its time yet
            self.alive_ns = end_ns
        else:
            self._see(start_ns, end_ns)
            self._touch(start_ns)
        base = PRODUCTIVE if step.complete else UNFINISHED
        if self.track.end_ns <= start_ns and _is_orderly(step):
            self._append(step, base)
        else:
            self.track.paint(start_ns, end_ns, base)
            for piece in step.pieces:
                self._see(piece.start_ns, piece.end_ns)
                self._touch(piece.start_ns)
                self.track.paint(piece.start_ns, piece.end_ns, self.palette.code_of(piece.state))
        if not step.complete:
            return
        starts = self.steps.starts
        self.shape += step.number < self.steps.lowest
        if not starts or start_ns <= starts[0]:
            self.shape += 1
            self._change(
                start_ns if starts else -NEVER
            )  # one more rank that makes steps counts for all the job's steps
        self.steps.add(step)

    def _take_run(self, run: StepRun) -> None:
        """Take many steps at once if they are plain and the newest of all; otherwise one by one."""
        is_newest = self.begun_ns <= self.alive_ns <= run.starts_ns[0] and not self.steps.tangled
        if not (is_newest and run.is_plain()):
            for step in run.told():
                self._take_step(step)
            return
        self._change(self.alive_ns if len(self.steps) else -NEVER)
        self.shape += min(run.numbers) < self.steps.lowest
        self.alive_ns = run.ends_ns[-1]
        self.track.extend(self._segments_of(run))
        self.steps.extend(run.numbers, run.starts_ns, run.ends_ns)

    def _segments_of(self, run: StepRun) -> Iterator[Segment]:
        """What a plain run paints."""
        pieces = zip(run.firsts_ns, run.lasts_ns, map(self.palette.code_of, run.states), strict=True)
        for start_ns, end_ns, count in zip(run.starts_ns, run.ends_ns, run.counts, strict=True):
            at_ns = start_ns
            for first_ns, last_ns, code in islice(pieces, count):
                if first_ns > at_ns:
                    yield at_ns, first_ns, PRODUCTIVE
                yield first_ns, last_ns, code
                at_ns = last_ns
            if end_ns > at_ns:
                yield at_ns, end_ns, PRODUCTIVE

    def _append(self, step: Step, base: int) -> None:
        """Paint a step that begins where nothing has been painted yet, piece by piece."""
        append, at_ns = self.track.append, step.start_ns
        for state, start_ns, end_ns in step.pieces:
            if start_ns > at_ns:
                append(at_ns, start_ns, base)
            if end_ns > start_ns:
                append(start_ns, end_ns, self.palette.code_of(state))
            at_ns = end_ns
        if step.end_ns > at_ns:
            append(at_ns, step.end_ns, base)

    def _take_activity(self, fact: Activity) -> None:
        code = self.palette.code_of(fact.state, fact.depth)
        end_ns = fact.start_ns if fact.end_ns is None else fact.end_ns
        self._see(fact.start_ns, end_ns)
        self._touch(fact.start_ns)
        if fact.end_ns is None:
            self.opens.add((fact.start_ns, code))
        else:
            self.track.paint(fact.start_ns, end_ns, code)

    def _touch(self, time_ns: int) -> None:
        """What was concluded from the time at and after `time_ns` no longer holds."""
        self._change(time_ns)
        self.excess.forget(time_ns)

    def sums(self, frame: Frame, end_ns: int) -> Sums:
        """ns under each code from the beginning of the frame to `end_ns`, inside it. They add up to that length."""
        if end_ns < frame.stop_ns:
            return self._sums(frame, end_ns)
        if self._whole is None or self._whole[:2] != (self.version, frame):
            self._whole = self.version, frame, self._sums(frame, frame.stop_ns)
        return self._whole[2]

    def _sums(self, frame: Frame, end_ns: int) -> Sums:
        sums = self._painted(frame.begin_ns, end_ns)
        for recolour in self.recolours(frame):
            first_ns, last_ns = max(recolour.start_ns, frame.begin_ns), min(recolour.end_ns, end_ns)
            if first_ns >= last_ns:
                continue
            whole = (first_ns, last_ns) == recolour[:2]
            amount_ns = recolour.amount_ns if whole else self._painted(first_ns, last_ns).get(recolour.source, 0)
            if amount_ns:
                sums[recolour.source] -= amount_ns
                sums[recolour.target] = sums.get(recolour.target, 0) + amount_ns
        return sums

    def made(self, frame: Frame, end_ns: int) -> Count:
        """How many steps that ended by `end_ns` were kept, and how many lost."""
        if end_ns < frame.stop_ns:
            return self.steps.made_by(frame.cut, end_ns)
        if self._made is None or self._made[:2] != (self.version, frame):
            self._made = self.version, frame, self.steps.made_by(frame.cut, frame.stop_ns)
        return self._made[2]

    def _painted(self, start_ns: int, end_ns: int) -> Sums:
        """`Track.sums`, with what is beyond the track as uncovered."""
        sums = self.track.sums(start_ns, end_ns)
        sums[UNCOVERED] = sums.get(UNCOVERED, 0) + end_ns - start_ns - sum(sums.values())
        return sums

    def recolours(self, frame: Frame) -> list[Recolour]:
        """Every stretch in which painted time counts as something else."""
        if self._read is None or self._read[:2] != (self.version, frame):
            self._read = self.version, frame, list(self._all_recolours(frame))
        return self._read[2]

    def _all_recolours(self, frame: Frame) -> Iterator[Recolour]:
        lost = self.steps.lost(frame.cut)
        yield from self._lost(lost)
        for excess in self.excess.recolours():
            if not any(excess.start_ns < part.end_ns and part.start_ns < excess.end_ns for part in lost):
                yield excess
        tail = self._tail(frame)
        opens = list(self._opened(frame))
        uncovered = [*self._head(frame), *self.excess.gaps, *(tail if len(self.steps) else ())]
        for source, claims in ((UNCOVERED, [*opens, *_outside(uncovered, opens)]), (UNFINISHED, tail)):
            for start_ns, end_ns, target in claims:
                amount_ns = self._painted(start_ns, end_ns).get(source, 0) if start_ns < end_ns else 0
                if amount_ns:
                    yield Recolour(start_ns, end_ns, source, target, amount_ns)

    def _lost(self, lost: list[Lost]) -> Iterator[Recolour]:
        for start_ns, end_ns, _ in lost:
            for code, amount_ns in self._painted(start_ns, end_ns).items():
                if amount_ns and self.palette.is_losable(code):
                    yield Recolour(start_ns, end_ns, code, LOST_WORK, amount_ns)

    def _head(self, frame: Frame) -> list[Claim]:
        end_ns = self.steps.starts[0] if len(self.steps) else frame.stop_ns
        return [(frame.begin_ns, end_ns, RESTART)] if frame.recovers else []

    def _tail(self, frame: Frame) -> list[Claim]:
        start_ns = self.steps.end_ns if len(self.steps) else frame.begin_ns
        hang_ns = self._hang_from_ns(frame, start_ns)
        claims = [(hang_ns, frame.stop_ns, HANG)]
        if frame.ending is not Ending.RUNNING:
            claims.append((start_ns, hang_ns, LOST_WORK if frame.ending is Ending.DIED else SHUTDOWN))
        return claims

    def _hang_from_ns(self, frame: Frame, last_step_ns: int) -> int:
        """When the silence at the end became a hang; the end when it did not."""
        if not len(self.steps) or frame.ending is Ending.ORDERLY or frame.stop_ns - last_step_ns <= HANG_FLOOR_NS:
            return frame.stop_ns
        quiet_ns = next((end for _, end, code in self.track.backwards() if code not in _NO_PROGRESS), last_step_ns)
        quiet_ns = max(quiet_ns, last_step_ns)
        reference_ns = self.steps.reference_ns(self.track, self.steps.window(len(self.steps)))
        return quiet_ns + reference_ns if is_hang(frame.stop_ns - quiet_ns, reference_ns) else frame.stop_ns

    def _opened(self, frame: Frame) -> Iterator[Claim]:
        """What activities without an end claim: from their start until something else is heard."""
        until_ns = frame.stop_ns
        for start_ns, code in sorted(self.opens, key=lambda opened: (opened[0], self.palette.keys[opened[1]]))[::-1]:
            end_ns = until_ns
            for begin_ns, _, held in self.track.segments(start_ns, until_ns):
                if held != UNCOVERED:
                    end_ns = begin_ns
                    break
            if start_ns < end_ns:
                yield start_ns, end_ns, code
            until_ns = min(start_ns, until_ns)

    def thin(self, now_ns: int) -> int:
        """Keep less detail of what lies back: the sums stay, the places of states in it blur.

        Returns:
            how many places of steps are gone.
        """
        self.version += 1
        until_ns = now_ns - DETAIL_NS
        if len(self.steps) > DETAIL_STEPS:
            until_ns = max(until_ns, self.steps.starts[-DETAIL_STEPS])

        def longest_ns(start_ns: int) -> int:
            return (now_ns - start_ns) // PIECES

        spans = sorted(self.excess.spans())
        gone = self.steps.thin(until_ns, longest_ns, spans)
        self.excess.shift(gone)
        self.track.thin(until_ns, longest_ns, spans)
        return gone


def _is_orderly(step: Step) -> bool:
    """Whether the pieces follow each other inside the step."""
    at_ns = step.start_ns
    for _, start_ns, end_ns in step.pieces:
        if start_ns < at_ns or end_ns < start_ns:
            return False
        at_ns = end_ns
    return at_ns <= step.end_ns


def _outside(claims: list[Claim], holes: list[Claim]) -> list[Claim]:
    """`claims` less the time that `holes` cover."""
    for hole_start_ns, hole_end_ns, _ in holes:
        claims = [
            (start_ns, end_ns, target)
            for first_ns, last_ns, target in claims
            for start_ns, end_ns in ((first_ns, min(last_ns, hole_start_ns)), (max(first_ns, hole_end_ns), last_ns))
            if start_ns < end_ns
        ]
    return claims
