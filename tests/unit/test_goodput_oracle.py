"""The engine against a second opinion: an account made second by second, without tracks, frames or recolours."""

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.goodput_facts import S, history_of
from trainspan.relay.goodput.facts import Activity, Alive, Begun, Ended, Fact, Loaded, Piece, Step
from trainspan.relay.goodput.queries import Scope, Window, account_ns, report, reports

WORK_S = 10
"""Of every step: so that no first step is longer than the others, and none is a hang."""


@dataclass
class Made:
    """One finished step: its number in the run, its second, and what it held besides work."""

    number: int
    start: int
    wait: int
    save: int
    checks: str

    @property
    def end(self) -> int:
        """The second after its last."""
        return self.start + self.wait + WORK_S + self.save + 2 * bool(self.checks)

    def state_at(self, second: int) -> str:
        """What it did: it waits first and saves last; a check, of two seconds, is in the middle."""
        place = second - self.start
        if place < self.wait:
            return "data_wait"
        if self.start + place >= self.end - self.save:
            return "checkpoint_save"
        return self.checks if self.checks and place - self.wait in (4, 5) else "productive"


@dataclass
class Attempt:
    """One life of the rank, in seconds. `init`: how much of the time before its first step is told."""

    begin: int
    init: int
    first: int
    steps: list[Made] = field(default_factory=list)
    unfinished: bool = False
    end: int = 0
    ending: str = ""

    @property
    def last(self) -> int:
        """Where the last finished step ended."""
        return self.steps[-1].end if self.steps else self.begin


@st.composite
def lives(draw: st.DrawFn, *, deep: bool = True) -> list[Attempt]:
    """A run: attempts that crash before, in or between steps, stop in good order, and resume anywhere behind.

    Args:
        draw: hypothesis' own.
        deep: the loop may go back by itself behind where its attempt began.
    """
    attempts: list[Attempt] = []
    now, reached = draw(st.integers(0, 5)), 0
    count = draw(st.integers(1, 5))
    for place in range(count):
        first = now + draw(st.integers(0, 30))
        life = Attempt(now, draw(st.integers(0, first - now)), first)
        number, at = draw(st.integers(0, reached)), first
        for _ in range(draw(st.integers(0, 7))):
            if life.steps and draw(st.integers(0, 9)) == 0:
                number = draw(st.integers(0 if deep else life.steps[0].number, number))  # the loop goes back by itself
            checks = draw(st.sampled_from(["", "", "validation", "custom.eval"]))
            made = Made(number, at, draw(st.integers(0, 3)), draw(st.sampled_from([0, 0, 4])), checks)
            life.steps.append(made)
            number, at = number + 1, made.end
        life.unfinished = bool(life.steps) and draw(st.booleans())
        life.end = max(at if life.steps else first, now) + draw(st.integers(0 if not life.unfinished else 1, 50))
        newest = place == count - 1
        life.ending = draw(st.sampled_from(["died", "orderly", "running"] if newest else ["died", "orderly", "silent"]))
        attempts.append(life)
        reached = max(reached, number)
        now = life.end + draw(st.integers(0, 40))
    return attempts


def facts_of(attempts: list[Attempt], *, in_run: bool = True) -> Iterator[Fact]:
    """What the ledger would hold of it; not `in_run`: steps count from 0 in each attempt, and a load tells where."""
    for place, life in enumerate(attempts):
        yield Begun(place, 0, life.begin * S, "n0", 1, in_run)
        base = 0 if in_run or not life.steps else life.steps[0].number
        if base:
            yield Loaded(place, 0, life.first * S, base)
        yield Activity(place, 0, "init", life.begin * S, (life.begin + life.init) * S)
        for made in life.steps:
            pieces = (Piece("data_wait", made.start * S, (made.start + made.wait) * S),) if made.wait else ()
            yield Step(place, 0, made.number - base, made.start * S, made.end * S, pieces)
            if made.save:
                yield Activity(place, 0, "checkpoint_save", (made.end - made.save) * S, made.end * S)
            if made.checks:
                since = made.start + made.wait + 4
                yield Activity(place, 0, made.checks, since * S, (since + 2) * S)
        if life.unfinished:
            number = life.steps[-1].number + 1 - base
            yield Step(place, 0, number, life.last * S, life.end * S, complete=False)
        yield Alive(place, 0, life.end * S)
        if life.ending in ("died", "orderly"):
            yield Ended(place, 0, life.end * S, life.ending == "orderly")


def is_lost(attempts: list[Attempt], place: int, made: Made) -> bool:
    """Whether a later step, in this life or another, took the run up again at this one or before it."""
    later = [one for one in attempts[place].steps if one.start > made.start]
    later += [one for life in attempts[place + 1 :] for one in life.steps]
    return any(one.number <= made.number for one in later)


def second_opinion(attempts: list[Attempt]) -> dict[int, tuple[int, str]]:
    """The attempt to which each second belongs, and its state. The time before an attempt is its own."""
    seconds: dict[int, tuple[int, str]] = {}
    for place, life in enumerate(attempts):
        before = attempts[place - 1].end if place else life.begin
        seconds.update((second, (place, "restart")) for second in range(before, life.begin))
        head_s = life.first if life.steps else life.end
        seconds.update((second, (place, "restart" if place else "unaccounted")) for second in range(life.begin, head_s))
        seconds.update((second, (place, "init")) for second in range(life.begin, life.begin + life.init))
        for made in life.steps:
            lost = is_lost(attempts, place, made)
            for second in range(made.start, made.end):
                state = made.state_at(second)
                seconds[second] = place, "lost_work" if lost and state != "checkpoint_save" else state
        if life.steps:
            tail = {"died": "lost_work", "silent": "lost_work", "orderly": "shutdown", "running": "unaccounted"}
            seconds.update((second, (place, tail[life.ending])) for second in range(life.last, life.end))
    return seconds


def counted(seconds: dict[int, tuple[int, str]], chosen: range, place: int | None = None) -> dict[str, int]:
    """ns by state of some seconds."""
    found = (seconds[second] for second in chosen if second in seconds)
    return {state: n * S for state, n in Counter(state for at, state in found if place in (None, at)).items()}


@given(attempts=lives(), edges=st.tuples(st.integers(-5, 700), st.integers(-5, 700)), seed=st.integers(0, 1 << 32))
def test_engine_agrees_with_an_account_made_second_by_second(
    attempts: list[Attempt], edges: tuple[int, int], seed: int
) -> None:
    """Crashes, stops, roll-backs, in any order of facts, in any window: two ways to the same numbers."""
    facts = list(facts_of(attempts))
    random.Random(seed).shuffle(facts)
    seconds = second_opinion(attempts)
    since, until = min(edges), max(edges) + 1

    history = history_of(facts)

    whole = range(attempts[0].begin, attempts[-1].end)
    assert account_ns(history) == counted(seconds, whole)
    assert account_ns(history, Window(since * S, until * S)) == counted(seconds, range(since, until))
    for place in range(len(attempts)):
        assert account_ns(history, scope=Scope(attempt=place)) == counted(seconds, whole, place)


@given(attempts=lives(deep=False))
def test_numbers_from_a_load_say_the_same(attempts: list[Attempt]) -> None:
    """Most scripts do not number their steps over the run; what they load tells where they are in it."""
    seconds = second_opinion(attempts)

    history = history_of(facts_of(attempts, in_run=False))

    answer = report(history)
    kept = [one for place, life in enumerate(attempts) for one in life.steps if not is_lost(attempts, place, one)]
    assert account_ns(history) == counted(seconds, range(attempts[0].begin, attempts[-1].end))
    assert (answer.steps, answer.last_step) == (len(kept), kept[-1].number if kept else None)


@given(attempts=lives(), until=st.integers(0, 700))
def test_steps_and_stops_are_counted_as_by_hand(attempts: list[Attempt], until: int) -> None:
    """How many steps were kept, which was the last, and what was a failure."""
    history = history_of(facts_of(attempts))
    made = [(one, is_lost(attempts, place, one)) for place, life in enumerate(attempts) for one in life.steps]
    in_time = [(one, lost) for one, lost in made if one.end <= until]
    kept = [one for one, lost in in_time if not lost]
    began = [place for place, life in enumerate(attempts) if place and life.begin < until]

    answer = report(history, Window(until_ns=until * S))

    assert (answer.steps, answer.steps_lost) == (len(kept), len(in_time) - len(kept))
    assert answer.last_step == (kept[-1].number if kept else None)
    assert answer.planned_stops == sum(attempts[place - 1].ending == "orderly" for place in began)
    assert answer.disruptions == len(began) - answer.planned_stops
    assert sum(part.steps for part in reports(history, "attempt").values()) == sum(not lost for _, lost in made)
