"""Facts for the goodput tests: a small language for histories, and strategies that make hostile ones."""

from collections.abc import Iterable, Iterator
from itertools import pairwise

from hypothesis import strategies as st

from trainspan.relay.goodput.facts import Activity, Alive, Begun, Ended, Fact, Loaded, Piece, Saved, Step
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


_ATTEMPT = st.integers(0, 2)
_RANK = st.integers(0, 2)
_TIME = st.integers(0, LONGEST_S).map(lambda time: time * S)
_SPAN = st.tuples(_TIME, st.integers(0, 200)).map(lambda span: (span[0], span[0] + span[1] * S))
_STATE = st.sampled_from([*sorted(ACTIVITIES), "custom.eval", "custom.log"])
_PIECE = st.builds(lambda state, span: Piece(state, *span), _STATE, _SPAN)
_FLAG = st.booleans()


def _step(attempt: int, rank: int, number: int, span: tuple[int, int], held: tuple[Piece, ...], more: int) -> Step:
    return Step(attempt, rank, number, *span, held, more % 5 == 1, 1 + (more == 7) * 9, more != 8)


def _done(attempt: int, rank: int, state: str, span: tuple[int, int], depth: int) -> Activity:
    return Activity(attempt, rank, state, span[0], span[1], depth)


HOSTILE_FACT: st.SearchStrategy[Fact] = st.one_of(
    st.builds(_step, _ATTEMPT, _RANK, st.integers(0, 20), _SPAN, st.tuples(), st.integers(0, 9)),
    st.builds(_step, _ATTEMPT, _RANK, st.integers(0, 20), _SPAN, st.tuples(_PIECE), st.integers(0, 9)),
    st.builds(
        lambda a, r, s, span, d: Activity(a, r, s, span[0], span[1], d),
        _ATTEMPT,
        _RANK,
        _STATE,
        _SPAN,
        st.integers(0, 2),
    ),
    st.builds(lambda a, r, s, at: Activity(a, r, s, at, None), _ATTEMPT, _RANK, _STATE, _TIME),
    st.builds(Begun, _ATTEMPT, _RANK, _TIME, st.sampled_from(["n0", "n1"]), st.integers(1, 3), _FLAG),
    st.builds(Ended, _ATTEMPT, _RANK, _TIME, _FLAG),
    st.builds(Saved, _ATTEMPT, _RANK, _TIME, st.integers(0, 20), st.sampled_from(["", "a", "b"])),
    st.builds(Loaded, _ATTEMPT, _RANK, _TIME, st.none() | st.integers(0, 20), st.sampled_from(["", "a", "b"])),
    st.builds(Alive, _ATTEMPT, _RANK, _TIME),
)
HOSTILE: st.SearchStrategy[list[Fact]] = st.lists(HOSTILE_FACT, min_size=1, max_size=30)
"""Any facts: overlapping, contradicting, from before the beginning."""


@st.composite
def runs(draw: st.DrawFn) -> list[Fact]:
    """A run as it may really go: attempts one after the other, steps end to end, crashes anywhere."""
    facts: list[Fact] = []
    now, number = 0, 0
    for attempt in range(draw(st.integers(1, 4))):
        ranks = draw(st.integers(1, 3))
        now += draw(st.integers(0, 100))
        first = draw(st.integers(0, number))
        work = draw(st.lists(st.integers(1, 12) | st.integers(50, 200), max_size=45))
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
