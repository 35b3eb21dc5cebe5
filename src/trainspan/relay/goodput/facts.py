"""What the engine is told: facts about one rank in one attempt. All times are Unix ns.

A fact says the same thing however often and in whatever order it is told. `identity` names what it is about; there is
no sequence number to keep, because the same fact changes nothing the second time (see `history`).

    Begun     a process of the rank began
    Step      a step was made, cut into what it held besides work
    StepRun   many steps were made
    Activity  from here to there the rank did one thing; without an end: until something else is heard of it
    Saved     a save succeeded
    Loaded    a checkpoint was loaded
    Alive     a sign of life that says nothing more
    Ended     the process is gone, orderly or not
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice, repeat
from operator import le, lt
from typing import Any, NamedTuple

from trainspan.clock import Anchor
from trainspan.names import AnyPhase, NamedPhase, Phase
from trainspan.relay.goodput.states import DEPTH_MAX, is_activity
from trainspan.relay.timeline.records import RankStep


class Begun(NamedTuple):
    """A process of `rank` began. `counts_in_run`: its steps carry numbers of the run, not of the attempt."""

    attempt: int
    rank: int
    at_ns: int
    node: str = ""
    world_size: int = 1
    counts_in_run: bool = False


class Piece(NamedTuple):
    """A stretch of a step that was not work."""

    state: str
    start_ns: int
    end_ns: int


class Step(NamedTuple):
    """One step, or several (`steps`) told as one. `number`: of the first. Not `complete`: the process ended in it."""

    attempt: int
    rank: int
    number: int
    start_ns: int
    end_ns: int
    pieces: tuple[Piece, ...] = ()
    recompiled: bool = False
    steps: int = 1
    complete: bool = True


class StepRun(NamedTuple):
    """Many steps of one rank as columns: the same as telling each of them, at a third of the cost.

    `flags`: of each step, `steps << 2 | recompiled << 1 | complete`. `counts`: how many of the pieces are its own; the
    last three columns hold the pieces of all steps, one after the other.
    """

    attempt: int
    rank: int
    numbers: Sequence[int]
    starts_ns: Sequence[int]
    ends_ns: Sequence[int]
    flags: Sequence[int]
    counts: Sequence[int]
    states: Sequence[str]
    firsts_ns: Sequence[int]
    lasts_ns: Sequence[int]

    @classmethod
    def of(cls, steps: Sequence[Step]) -> "StepRun":
        """The columns of some steps of one rank in one attempt, at least one."""
        pieces = [piece for step in steps for piece in step.pieces]
        return cls(
            attempt=steps[0].attempt,
            rank=steps[0].rank,
            numbers=[step.number for step in steps],
            starts_ns=[step.start_ns for step in steps],
            ends_ns=[step.end_ns for step in steps],
            flags=[step.steps << 2 | step.recompiled << 1 | step.complete for step in steps],
            counts=[len(step.pieces) for step in steps],
            states=[piece.state for piece in pieces],
            firsts_ns=[piece.start_ns for piece in pieces],
            lasts_ns=[piece.end_ns for piece in pieces],
        )

    def told(self) -> list[Step]:
        """The steps, one by one."""
        pieces = map(Piece, self.states, self.firsts_ns, self.lasts_ns)
        rows = zip(self.numbers, self.starts_ns, self.ends_ns, self.counts, self.flags, strict=True)
        return [
            Step(
                *self[:2], number, start_ns, end_ns, tuple(islice(pieces, count)), flag & 2 > 0, flag >> 2, flag & 1 > 0
            )
            for number, start_ns, end_ns, count, flag in rows
        ]

    def is_plain(self) -> bool:
        """Whether the steps follow each other in time, each finished, alone, and with its pieces in order inside it."""
        starts_ns, ends_ns, firsts_ns, lasts_ns = self.starts_ns, self.ends_ns, self.firsts_ns, self.lasts_ns
        if set(self.flags) != {PLAIN} or not all(map(lt, starts_ns, starts_ns[1:])):
            return False
        if not (all(map(le, ends_ns, starts_ns[1:])) and all(map(lt, starts_ns, ends_ns))):
            return False
        if not (all(map(lt, firsts_ns, lasts_ns)) and all(map(le, lasts_ns, firsts_ns[1:]))):
            return False
        begins_ns, finishes_ns = of_each_piece(starts_ns, self.counts), of_each_piece(ends_ns, self.counts)
        return all(map(le, begins_ns, firsts_ns)) and all(map(le, lasts_ns, finishes_ns))


def of_each_piece(column: Iterable[int], counts: Iterable[int]) -> Iterator[int]:
    """For every piece what `column` holds for its step."""
    return chain.from_iterable(map(repeat, column, counts))


class Activity(NamedTuple):
    """The rank was in `state`. `end_ns` None: still is. `depth`: of custom states, how deeply nested."""

    attempt: int
    rank: int
    state: str
    start_ns: int
    end_ns: int | None
    depth: int = 0


class Saved(NamedTuple):
    """A file, or what is told of as a checkpoint, was saved: it holds the work of every step below `step`.

    `name` tells it from others (a hash of its path). `size_bytes`: None: it is no single file. Whether the run can be
    resumed from it is for `checkpoints` to say.
    """

    attempt: int
    rank: int
    at_ns: int
    step: int
    name: str = ""
    size_bytes: int | None = None


class Loaded(NamedTuple):
    """A checkpoint was loaded: the next step is `step`, a number of the run, or None when only `name` is known."""

    attempt: int
    rank: int
    at_ns: int
    step: int | None
    name: str = ""


class Alive(NamedTuple):
    """The rank was alive at this time."""

    attempt: int
    rank: int
    at_ns: int


class Ended(NamedTuple):
    """The rank's process is gone. `orderly`: it closed its recording; otherwise it was killed or crashed."""

    attempt: int
    rank: int
    at_ns: int
    orderly: bool


Fact = Begun | Step | StepRun | Activity | Saved | Loaded | Alive | Ended

PLAIN = 1 << 2 | 1
"""Flags of one finished step that was not recompiled."""


class _PieceStates(dict[AnyPhase, str]):
    """What a phase counts as that is no work; one that is work has no entry. What a user has named is its own."""

    def __contains__(self, phase: object) -> bool:
        return isinstance(phase, NamedPhase) or super().__contains__(phase)

    def __missing__(self, phase: NamedPhase) -> str:
        return phase.wire


_STATE_OF_PHASE = _PieceStates({Phase.DATA_WAIT: "data_wait", Phase.VALIDATION: "validation"})


def step_of(step: RankStep, attempt: int, rank: int, anchor: Anchor, *, recompiled: bool = False) -> Step:
    """The fact in one step of the timeline. All is work, but for waiting for input, validation, and what is named."""
    shift = anchor.unix_ns - anchor.monotonic_ns
    pieces = tuple(
        Piece(_STATE_OF_PHASE[interval.phase], interval.start_ns + shift, interval.end_ns + shift)
        for interval in step.intervals
        if interval.phase in _STATE_OF_PHASE
    )
    start_ns, end_ns = step.start_ns + shift, step.end_ns + shift
    return Step(attempt, rank, step.number, start_ns, end_ns, pieces, recompiled, complete=step.complete)


def start_of(fact: Fact) -> int:
    """When what the fact tells began, in Unix ns."""
    if isinstance(fact, StepRun):
        return fact.starts_ns[0]
    return fact.start_ns if isinstance(fact, Step | Activity) else fact.at_ns


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 62


def _is_count_or_none(value: Any) -> bool:
    return value is None or _is_count(value)


def _is_text(value: Any) -> bool:
    return type(value) is str and len(value) <= 256


def _is_flag(value: Any) -> bool:
    return type(value) is bool


def _is_state(value: Any) -> bool:
    return type(value) is str and is_activity(value)


def _is_depth(value: Any) -> bool:
    return type(value) is int and 0 <= value <= DEPTH_MAX


def _are_pieces(value: Any) -> bool:
    return type(value) is tuple and all(_fits(piece, _PIECE) and piece[1] <= piece[2] for piece in value)


def _fits(fields: tuple[Any, ...], checks: tuple[Callable[[Any], bool], ...]) -> bool:
    return len(fields) == len(checks) and all(check(field) for check, field in zip(checks, fields, strict=True))


_PIECE = (_is_state, _is_count, _is_count)
_KEY = (_is_count, _is_count)
_CHECKS: dict[type, tuple[Callable[[Any], bool], ...]] = {
    Begun: (*_KEY, _is_count, _is_text, _is_count, _is_flag),
    Step: (*_KEY, _is_count, _is_count, _is_count, _are_pieces, _is_flag, _is_count, _is_flag),
    Activity: (*_KEY, _is_state, _is_count, _is_count_or_none, _is_depth),
    Saved: (*_KEY, _is_count, _is_count, _is_text, _is_count_or_none),
    Loaded: (*_KEY, _is_count, _is_count_or_none, _is_text),
    Alive: (*_KEY, _is_count),
    Ended: (*_KEY, _is_count, _is_flag),
}


def is_sound(fact: Fact) -> bool:
    """Whether a fact that came from outside has the types and the order of times the engine relies on."""
    if isinstance(fact, StepRun):
        return all(map(is_sound, fact.told()))
    if not _fits(fact, _CHECKS[type(fact)]):
        return False
    if isinstance(fact, Step):
        return fact.start_ns <= fact.end_ns and fact.steps > 0
    return not isinstance(fact, Activity) or fact.end_ns is None or fact.start_ns <= fact.end_ns
