"""Facts as the lines of a ledger: one a line, or the steps of a rank as columns.

A line is a JSON array: the kind, then the fact's fields as far as they differ from their defaults.

A line of columns is `["steps", attempt, rank, base64(zlib(json))]`. The columns hold differences where the values grow:
10 to 15 bytes for a step with one piece. What a rank waited for a slower one in a step is one of its pieces, too.
Nothing is rounded.
"""

import base64
import json
import zlib
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, chain
from operator import add, sub

from trainspan.relay.goodput.facts import (
    Activity,
    Alive,
    Begun,
    Ended,
    Fact,
    Loaded,
    Piece,
    Saved,
    Step,
    StepRun,
    is_sound,
    of_each_piece,
)
from trainspan.relay.goodput.states import is_activity

STEPS_PER_LINE = 1024
PIECES_PER_LINE = 8192
LINE_MAX_BYTES = 8 << 20
"""Bound of one line, and of what a line of columns may unpack to: a hostile file cannot fill the memory."""

DAMAGE = (ValueError, TypeError, KeyError, IndexError, OverflowError, RecursionError, zlib.error)
"""What a line that is torn, foreign or hostile raises."""

_KINDS: dict[str, Callable[..., Fact]] = {
    "begun": Begun,
    "step": Step,
    "activity": Activity,
    "saved": Saved,
    "loaded": Loaded,
    "alive": Alive,
    "ended": Ended,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}
_STEPS = "steps"
_WAIT = "straggler_wait"


def line_of(fact: Fact) -> bytes:
    """The line that holds one fact."""
    if isinstance(fact, StepRun):
        return _packed(fact)
    fields = list(fact)
    defaults = fact._field_defaults
    for name in reversed(fact._fields):
        if name not in defaults or defaults[name] != fields[-1]:
            break
        fields.pop()
    return json.dumps([_NAMES[type(fact)], *fields], separators=(",", ":")).encode() + b"\n"


def fact_of(line: bytes) -> Fact:
    """The fact in one line.

    Raises:
        DAMAGE: it is torn or none of ours.
    """
    kind, *fields = json.loads(line)
    if kind == _STEPS:
        return _unpacked(*fields)
    if kind == "step" and len(fields) > 5:
        fields[5] = tuple(Piece(*piece) for piece in fields[5])
    fact = _KINDS[kind](*fields)
    _require(is_sound(fact))
    return fact


def packed_lines(facts: Iterable[Fact]) -> Iterator[bytes]:
    """The lines of a packed file: the steps of each rank as columns, with its waits in them; the rest as it is."""
    steps: dict[tuple[int, int], dict[Step, None]] = {}
    waits: dict[tuple[int, int], dict[Activity, None]] = {}
    others: dict[Fact, None] = {}
    for fact in facts:
        if isinstance(fact, Step | StepRun):
            told = fact.told() if isinstance(fact, StepRun) else (fact,)
            steps.setdefault(fact[:2], {}).update(dict.fromkeys(told))
        elif isinstance(fact, Activity) and fact.state == _WAIT:
            waits.setdefault(fact[:2], {})[fact] = None
        else:
            others[fact] = None
    lines: list[bytes] = []
    for key, of_rank in steps.items():
        made = sorted(of_rank, key=lambda step: step[2:5])
        others.update(dict.fromkeys(_fold(waits.pop(key, ()), made)))
        lines += map(_packed, map(StepRun.of, _bunches(made)))
    yield from map(line_of, chain(others, *waits.values()))
    yield from lines


def _fold(waits: Iterable[Activity], steps: list[Step]) -> list[Activity]:
    """Tell the waits of a rank as pieces of its `steps`, which are in order; those that lie in no step are left.

    It is the same claim in a tenth of the room, and read with its step.
    """
    left = []
    for wait in waits:
        place = bisect_right(steps, wait.start_ns, key=lambda step: step.start_ns) - 1
        if place < 0 or wait.end_ns is None or wait.end_ns > steps[place].end_ns:
            left.append(wait)
            continue
        pieces = sorted(
            (*steps[place].pieces, Piece(wait.state, wait.start_ns, wait.end_ns)), key=lambda piece: piece[1:]
        )
        steps[place] = steps[place]._replace(pieces=tuple(pieces))
    return left


def _bunches(steps: Sequence[Step]) -> Iterator[Sequence[Step]]:
    """`steps` in order, as many at a time as one line may hold."""
    first, pieces = 0, 0
    for place, step in enumerate(steps):
        pieces += len(step.pieces)
        if place - first == STEPS_PER_LINE or (place > first and pieces > PIECES_PER_LINE):
            yield steps[first:place]
            first, pieces = place, len(step.pieces)
    if first < len(steps):
        yield steps[first:]


def _packed(run: StepRun) -> bytes:
    """The line that holds many steps: numbers and starts as differences, pieces relative to their steps."""
    states = sorted(set(run.states))
    columns = [
        list(map(sub, run.numbers, [0, *run.numbers])),
        list(map(sub, run.starts_ns, [0, *run.ends_ns])),
        list(map(sub, run.ends_ns, run.starts_ns)),
        list(run.counts),
        list(run.flags),
        states,
        [states.index(state) for state in run.states],
        list(map(sub, run.firsts_ns, of_each_piece(run.starts_ns, run.counts))),
        list(map(sub, run.lasts_ns, run.firsts_ns)),
    ]
    text = json.dumps(columns, separators=(",", ":")).encode()
    held = base64.b64encode(zlib.compress(text, 6)).decode()
    return json.dumps([_STEPS, *run[:2], held], separators=(",", ":")).encode() + b"\n"


def _unpacked(attempt: int, rank: int, packed: str) -> StepRun:
    """The steps in a line made by `_packed`."""
    columns = json.loads(zlib.decompressobj().decompress(base64.b64decode(packed, validate=True), LINE_MAX_BYTES))
    states = columns.pop(5)
    growths, gaps_ns, lengths_ns, counts, flags, codes, offsets_ns, spans_ns = (
        array("q", column) for column in columns
    )
    times_ns = list(accumulate(chain.from_iterable(zip(gaps_ns, lengths_ns, strict=True))))
    starts_ns, ends_ns, numbers = times_ns[::2], times_ns[1::2], list(accumulate(growths))
    firsts_ns = list(map(add, of_each_piece(starts_ns, counts), offsets_ns))
    lasts_ns = list(map(add, firsts_ns, spans_ns))
    _require(type(attempt) is type(rank) is int and len(numbers) == len(starts_ns) == len(counts) == len(flags))
    _require(len(codes) == len(offsets_ns) == len(spans_ns) == sum(counts))
    for column in ((attempt, rank), numbers, times_ns, lengths_ns, counts, codes, firsts_ns, spans_ns, lasts_ns):
        _require(not column or (min(column) >= 0 and max(column) < 1 << 62))
    _require(min(flags) >= 1 << 2 and all(type(state) is str and is_activity(state) for state in states))
    held = list(map(states.__getitem__, codes))
    return StepRun(attempt, rank, numbers, starts_ns, ends_ns, flags, counts, held, firsts_ns, lasts_ns)


def _require(holds: bool) -> None:
    if not holds:
        raise ValueError("a field is out of its range")
