"""Time adds up, whatever is told and in whatever order."""

import random
from functools import partial
from itertools import pairwise
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from tests.unit.goodput_facts import HISTORIES, HOSTILE, LONGEST_S, S, as_runs, history_of, runs
from trainspan.relay.goodput.facts import Activity, Fact
from trainspan.relay.goodput.history import JOB, RunHistory
from trainspan.relay.goodput.life import DETAIL_NS, Life
from trainspan.relay.goodput.projection import measure
from trainspan.relay.goodput.queries import (
    WHOLE,
    Axis,
    Scope,
    Window,
    account_ns,
    disruptions_in,
    pace,
    report,
    reports,
)
from trainspan.relay.goodput.states import PRODUCTIVE, STRAGGLER_WAIT, UNCOVERED, Palette

TIME = st.integers(-50, 3 * LONGEST_S).map(lambda time: time * S + time % 7)
TIMES = st.lists(TIME, min_size=2, max_size=5).map(sorted)
NOW = st.none() | TIME


# For the job: who waits for a straggler works less than it does, and who is not heard of is not known to work.
WEAKEST = (STRAGGLER_WAIT, PRODUCTIVE)


def strength(palette: Palette, code: int) -> tuple[Any, ...]:
    """How strong a claim is on the job; what the user has named has one place among the claims, whatever its code."""
    return (WEAKEST.index(code) - len(WEAKEST),) if code in WEAKEST else palette.keys[code]


def code_at(life: Life, instant: int) -> int:
    """What a life claims at one instant."""
    return next((code for _, _, code in life.track.segments(instant, instant + 1)), UNCOVERED)


def scopes_of(history: RunHistory) -> list[Scope]:
    """The job, every rank, every node and every attempt."""
    ranks = [Scope(rank=rank) for rank in history.ranks]
    nodes = [Scope(node=node) for node in history.nodes]
    return [Scope(), *ranks, *nodes, *(Scope(attempt=attempt) for attempt in history.attempts)]


def answers_of(history: RunHistory, window: Window) -> list[object]:
    """Everything a history can be asked."""
    everything = Window(now_ns=window.now_ns)
    accounts = [account_ns(history, asked, scope) for scope in scopes_of(history) for asked in (window, everything)]
    whole = [report(history, asked).to_json() for asked in (window, everything)]
    axes: tuple[Axis, ...] = ("attempt", "rank", "node")
    parts = [reports(history, axis, asked) for axis in axes for asked in (window, everything, WHOLE)]
    measured = [measure(history, asked) for asked in (window, everything)]
    disruptions = [history.disruptions(window.now_ns), disruptions_in(history, window)]
    rest = [history.saves(), history.resumes(), history.last_sign_ns]
    return [accounts, whole, parts, measured, pace(history), disruptions, *rest]


def merged(parts: list[dict[str, int]]) -> dict[str, int]:
    """The sum of some accounts."""
    states = {state for part in parts for state in part}
    return {state: sum(part.get(state, 0) for part in parts) for state in states}


@given(facts=HISTORIES, times=TIMES, now=NOW)
def test_states_add_up_to_the_clock(facts: list[Fact], times: list[int], now: int | None) -> None:
    """The one law of the account: every nanosecond of a clock in exactly one state."""
    history = history_of(facts)
    since, until = times[0], times[-1]

    for rank in [JOB, *history.ranks]:
        states = account_ns(history, Window(since, until, (), now), Scope(rank=None if rank == JOB else rank))
        periods = history.clock(rank, now).periods
        ran = [min(period.frame.stop_ns, until) - max(period.gap_ns, since) for period in periods]

        assert sum(states.values()) == sum(max(length, 0) for length in ran)
        assert all(length > 0 for length in states.values())


@given(facts=HISTORIES, times=TIMES, now=NOW)
def test_windows_side_by_side_make_the_whole(facts: list[Fact], times: list[int], now: int | None) -> None:
    """A window must not see, lose or repeat what lies at its edges."""
    history = history_of(facts)
    for scope in scopes_of(history):
        parts = [account_ns(history, Window(since, until, (), now), scope) for since, until in pairwise(times)]

        whole = account_ns(history, Window(times[0], times[-1], (), now), scope)

        assert merged(parts) == whole


@given(facts=HISTORIES, times=TIMES, exclude=st.lists(st.tuples(TIME, TIME), max_size=3), now=NOW)
def test_exclusions_take_away_what_they_cover(
    facts: list[Fact], times: list[int], exclude: list[tuple[int, int]], now: int | None
) -> None:
    """Also where nothing is known: the peer ignored an excluded gap."""
    history = history_of(facts)
    asked = Window(times[0], times[-1], tuple(exclude), now)
    edges = sorted({*(time for stretch in exclude for time in stretch), times[0], times[-1]})
    inner = [(since, until) for since, until in pairwise(edges) if times[0] <= since and until <= times[-1]]
    left_out = [span for span in inner if any(start <= span[0] and span[1] <= end for start, end in exclude)]

    answer = report(history, asked)

    excluded = merged([account_ns(history, Window(*span, (), now)) for span in left_out])
    assert answer.excluded_s == sum(excluded.values()) / S
    assert merged([account_ns(history, asked), excluded]) == account_ns(history, asked._replace(exclude=()))
    assert abs(answer.total_s - answer.productive_s - sum(answer.badput_s.values())) < 1e-6


@given(facts=HISTORIES, times=TIMES, now=NOW, seed=st.integers(0, 1 << 32))
def test_order_and_repetition_change_no_answer(facts: list[Fact], times: list[int], now: int | None, seed: int) -> None:
    """Relays of many nodes, restarted at will, tell the same facts in any order and more than once."""
    window = Window(times[0], times[-1], (), now)
    shuffled = [*facts, *facts[: len(facts) // 2]]
    random.Random(seed).shuffle(shuffled)

    answers = answers_of(history_of(shuffled), window)

    assert answers == answers_of(history_of(facts), window)


@given(facts=HISTORIES, times=TIMES, now=NOW, seed=st.integers(0, 1 << 32))
def test_asking_in_between_changes_no_answer(facts: list[Fact], times: list[int], now: int | None, seed: int) -> None:
    """What was concluded too early must be forgotten when a fact lands behind it."""
    window = Window(times[0], times[-1], (), now)
    shuffled = list(facts)
    chance = random.Random(seed)
    chance.shuffle(shuffled)
    history = RunHistory()

    for fact in shuffled:
        history.add(fact)
        if chance.random() < 0.3:
            answers_of(history, window)

    assert answers_of(history, window) == answers_of(history_of(facts), window)


@given(facts=HISTORIES, times=TIMES, seed=st.integers(0, 1 << 32))
def test_steps_told_as_a_run_say_the_same(facts: list[Fact], times: list[int], seed: int) -> None:
    """Reading a ledger is three times as fast with them; they take a shorter way through the engine."""
    window = Window(times[0], times[-1])
    shuffled = as_runs(facts)
    random.Random(seed).shuffle(shuffled)

    in_order, in_any_order = history_of(as_runs(facts)), history_of(shuffled)

    answers = answers_of(history_of(facts), window)
    assert answers_of(in_order, window) == answers
    assert answers_of(in_any_order, window) == answers


@given(facts=runs(), times=TIMES)
def test_a_node_is_the_sum_of_its_ranks(facts: list[Fact], times: list[int]) -> None:
    """The view of a node has no time of its own."""
    history, window = history_of(facts), Window(times[0], times[-1])

    nodes = merged([account_ns(history, window, Scope(node=node)) for node in history.nodes])
    ranks = merged([account_ns(history, window, Scope(rank=rank)) for rank in history.ranks])

    assert nodes == ranks


@given(facts=HISTORIES, fraction=st.floats(0, 1))
@example([Activity(1, 0, "checkpoint_load", 0, 50 * S), Activity(1, 1, "custom.eval", 0, 50 * S)], 0.0)
def test_job_does_what_its_strongest_rank_does(facts: list[Fact], fraction: float) -> None:
    """The definition of the job's view, checked at single instants."""
    history = history_of(facts)
    for period in history.clock(JOB).periods:
        ranks = history.lives_in(period.life.attempt)
        ranks = [rank for rank in ranks if len(rank.steps)] or ranks
        instant = round(period.life.begun_ns + fraction * (period.life.alive_ns - 1 - period.life.begun_ns))
        silent_runs = period.life.attempt == history.attempts[-1]
        present = [
            rank
            for rank in ranks
            if rank.begun_ns <= instant < (period.life if silent_runs and rank.ended_ns is None else rank).alive_ns
        ]

        codes = [code_at(rank, instant) for rank in present]

        if codes:
            assert code_at(period.life, instant) == max(codes, key=partial(strength, period.life.palette)), instant


@given(facts=HOSTILE | runs())
def test_attempts_make_the_job(facts: list[Fact]) -> None:
    """The recovery before an attempt is part of it, so nothing lies between two attempts."""
    history = history_of(facts)

    by_attempt = merged([account_ns(history, scope=Scope(attempt=attempt)) for attempt in history.attempts])

    assert by_attempt == account_ns(history)
    assert sum(part.steps for part in reports(history, "attempt").values()) == report(history).steps


@given(facts=runs(), until=st.integers(0, 2 * LONGEST_S))
def test_thinning_changes_no_sum(facts: list[Fact], until: int) -> None:
    """Memory is bounded by giving up places in time, never time itself."""
    history, thinned = history_of(facts), history_of(facts)

    thinned.thin(until * S + DETAIL_NS)

    for scope in scopes_of(history):
        assert account_ns(thinned, scope=scope) == account_ns(history, scope=scope)
    assert report(thinned).to_json() == report(history).to_json()
