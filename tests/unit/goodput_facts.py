"""Facts for the goodput tests: a small language for histories, and strategies that make hostile ones."""

from collections.abc import Iterable, Iterator
from itertools import pairwise

from hypothesis import strategies as st

from trainspan.relay.goodput.facts import Activity, Alive, Begun, Ended, Fact, Loaded, Piece, Saved, Step, StepRun
from trainspan.relay.goodput.history import RunHistory
from trainspan.relay.goodput.queries import THE_JOB, WHOLE, Scope, Window, account_ns
from trainspan.relay.goodput.states import ACTIVITIES

S = 1_000_000_000
LONGEST_S = 900


def history_of(facts: Iterable[Fact]) -> RunHistory:
    """A history that was told `facts`."""
    history = RunHistory()
    history.add_all(facts)
    return history


def seconds(history: RunHistory, window: Window = WHOLE, scope: Scope = THE_JOB) -> dict[str, float]:
    """The account in seconds."""
    return {state: length_ns / S for state, length_ns in account_ns(history, window, scope).items()}


def window_s(since: float | None = None, until: float | None = None, now: float | None = None) -> Window:
    """A window given in seconds."""
    since_ns, until_ns, now_ns = (None if time is None else round(time * S) for time in (since, until, now))
    return Window(since_ns, until_ns, (), now_ns)


def steps(
    first: int, times: Iterable[float], *, attempt: int = 0, rank: int = 0, wait: float = 0.0, recompiled: int = -1
) -> Iterator[Step]:
    """Steps from `first` on, each from one of `times` to the next, each waiting for input in its beginning."""
    edges = [round(time * S) for time in times]
    for place, (start_ns, end_ns) in enumerate(pairwise(edges)):
        pieces = (Piece("data_wait", start_ns, start_ns + round(wait * S)),) if wait else ()
        yield Step(attempt, rank, first + place, start_ns, end_ns, pieces, first + place == recompiled)


def as_runs(facts: Iterable[Fact]) -> list[Fact]:
    """The same facts, with the steps of each life told as one run, where the first of them was."""
    told: dict[tuple[int, int] | int, Fact | list[Step]] = {}
    for place, fact in enumerate(facts):
        if isinstance(fact, Step):
            made = told.setdefault(fact[:2], [])
            assert isinstance(made, list)
            made.append(fact)
        else:
            told[place] = fact
    return [StepRun.of(fact) if isinstance(fact, list) else fact for fact in told.values()]


def begun(at: float, *, attempt: int = 0, rank: int = 0, node: str = "n0", in_run: bool = True) -> Begun:
    """A process began; its steps carry numbers of the run."""
    return Begun(attempt, rank, round(at * S), node, 1, in_run)


def activity(
    state: str, since: float, until: float | None, *, attempt: int = 0, rank: int = 0, depth: int = 0
) -> Activity:
    """The rank did one thing."""
    return Activity(attempt, rank, state, round(since * S), None if until is None else round(until * S), depth)


def ended(at: float, *, attempt: int = 0, rank: int = 0, orderly: bool = False) -> Ended:
    """A process is gone."""
    return Ended(attempt, rank, round(at * S), orderly)


_STATE = st.sampled_from([*sorted(ACTIVITIES), "custom.eval", "custom.log"])
_FLAG = st.booleans()


def _step(attempt: int, rank: int, number: int, span: tuple[int, int], held: tuple[Piece, ...], more: int) -> Step:
    return Step(attempt, rank, number, *span, held, more % 5 == 1, 1 + (more == 7) * 9, more != 8)


def _done(attempt: int, rank: int, state: str, span: tuple[int, int], depth: int) -> Activity:
    return Activity(attempt, rank, state, span[0], span[1], depth)


def _opened(attempt: int, rank: int, state: str, at_ns: int) -> Activity:
    return Activity(attempt, rank, state, at_ns, None)


def hostile(last: int, unit_s: int, numbers: int) -> st.SearchStrategy[list[Fact]]:
    """Any facts about attempts and ranks 0 to `last`, at multiples of `unit_s`, steps numbered below `numbers`."""
    attempt, rank, number = st.integers(0, last), st.integers(0, last), st.integers(0, numbers)
    time = st.integers(0, LONGEST_S // unit_s).map(lambda units: units * unit_s * S)
    span = st.tuples(time, st.integers(0, 200 // unit_s).map(lambda units: units * unit_s * S))
    span = span.map(lambda found: (found[0], found[0] + found[1]))
    piece = st.builds(lambda state, found: Piece(state, *found), _STATE, span)
    name = st.sampled_from(["", "a", "b"])
    fact: st.SearchStrategy[Fact] = st.one_of(
        st.builds(_step, attempt, rank, number, span, st.tuples(), st.integers(0, 9)),
        st.builds(_step, attempt, rank, number, span, st.tuples(piece), st.integers(0, 9)),
        st.builds(_done, attempt, rank, _STATE, span, st.integers(0, 2)),
        st.builds(_opened, attempt, rank, _STATE, time),
        st.builds(Begun, attempt, rank, time, st.sampled_from(["n0", "n1"]), st.integers(1, 3), _FLAG),
        st.builds(Ended, attempt, rank, time, _FLAG),
        st.builds(Saved, attempt, rank, time, number, name, st.none() | st.sampled_from([1, 5, 40, 1000])),
        st.builds(Loaded, attempt, rank, time, st.none() | number, name),
        st.builds(Alive, attempt, rank, time),
    )
    return st.lists(fact, min_size=1, max_size=30)


HOSTILE: st.SearchStrategy[list[Fact]] = hostile(1, 50, 4) | hostile(2, 1, 20)
"""Overlapping, contradicting, from before the beginning: some so dense that everything meets everything."""


@st.composite
def runs(draw: st.DrawFn) -> list[Fact]:
    """A run as it may really go: attempts one after the other, steps end to end, crashes anywhere."""
    facts: list[Fact] = []
    now, number = 0, 0
    for attempt in range(draw(st.integers(1, 4))):
        ranks = draw(st.integers(1, 3))
        now += draw(st.integers(0, 100))
        first = draw(st.integers(0, number))
        lengths = st.integers(1, 12) | st.integers(50, 200)
        work = draw(st.lists(lengths, max_size=20) | st.lists(lengths, min_size=34, max_size=45))
        for rank in range(ranks):
            facts.extend(_life(draw, attempt, rank, first, now, work))
        number = max(number, first + len(work))
        now += 20 + sum(work)
    return facts


def _life(draw: st.DrawFn, attempt: int, rank: int, first: int, start: int, work: list[int]) -> Iterator[Fact]:
    yield begun(start, attempt=attempt, rank=rank, node=f"n{rank % 2}")
    yield activity("init", start, start + 5, attempt=attempt, rank=rank)
    wait = draw(st.sampled_from([0.0, 0.25, 0.5]))
    times, now = [start + 10.0], start + 10.0
    for length in work:
        now += length
        times.append(now)
    made = draw(st.integers(0, len(work)))
    yield from steps(first, times[: made + 1], attempt=attempt, rank=rank, wait=wait, recompiled=first + 7)
    if made > 2:
        yield activity("checkpoint_save", times[2], times[2] + 0.5, attempt=attempt, rank=rank)
        yield Saved(attempt, rank, round(times[2] * S), first + 2)
    if draw(_FLAG):
        yield ended(times[made] + draw(st.integers(0, 90)), attempt=attempt, rank=rank, orderly=draw(_FLAG))


HISTORIES: st.SearchStrategy[list[Fact]] = HOSTILE | runs()
