"""What an answer costs once a record has come in, counted in calls: the past of a run must not be read again for it."""

import sys
from collections.abc import Callable, Iterator
from types import FrameType

import pytest

from tests.unit.goodput_facts import S, activity, begun, ended, history_of, steps
from trainspan.relay.goodput.facts import Fact, Piece, Saved, Step
from trainspan.relay.goodput.history import RunHistory
from trainspan.relay.goodput.projection import measure, project
from trainspan.relay.goodput.queries import Scope, Window, account_ns, disruptions_in, pace, report, reports
from trainspan.report.goodput import Question, Source, answer

ATTEMPT_S = 500


def long_run(attempts: int) -> Iterator[Fact]:
    """Attempts of 40 steps with two saves, each killed; the newest still runs."""
    for attempt in range(attempts):
        at = attempt * ATTEMPT_S
        yield begun(at, attempt=attempt)
        yield activity("init", at, at + 10, attempt=attempt)
        yield from steps(attempt * 30, range(at + 10, at + 420, 10), attempt=attempt, wait=1.0)
        for save, done in ((at + 100, 10), (at + 200, 20)):
            yield activity("checkpoint_save", save - 1, save, attempt=attempt)
            yield Saved(attempt, 0, save * S, attempt * 30 + done)
        if attempt < attempts - 1:
            yield ended(at + 430, attempt=attempt)


def questions(history: RunHistory, now_s: int) -> dict[str, Callable[[], object]]:
    """Every question there is."""
    hour = Window((now_s - 3600) * S, now_s * S)
    return {
        "report": lambda: report(history),
        "window": lambda: report(history, hour),
        "exclusion": lambda: report(history, Window(exclude=((600 * S, 700 * S),))),
        "rank": lambda: report(history, scope=Scope(rank=0)),
        "attempt": lambda: report(history, scope=Scope(attempt=1)),
        "states": lambda: account_ns(history),
        "pace": lambda: pace(history),
        "projection": lambda: project(measure(history)),
        "disruptions": lambda: disruptions_in(history, hour),
        "by rank": lambda: reports(history, "rank"),
        "by node": lambda: reports(history, "node"),
        "by attempt": lambda: reports(history, "attempt"),
        "command": lambda: answer(Source("run", history, 0, ()), Question(Window(), (3600 * S,))),
    }


def calls_of(ask: Callable[[], object]) -> int:
    """How many calls of Python functions `ask()` makes."""
    calls = 0

    def count(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        ask()
    finally:
        sys.setprofile(before)
    return calls


def calls_after_a_record(attempts: int) -> dict[str, int]:
    """Calls of each question after one more step in a run of so many attempts, all of which has been asked about."""
    history = history_of(long_run(attempts))
    now_s = (attempts - 1) * ATTEMPT_S + 420
    counted: dict[str, int] = {}
    for number in range(2):
        start_ns = (now_s + 10 * number - 10) * S
        piece = Piece("data_wait", start_ns, start_ns + S)
        history.add(Step(attempts - 1, 0, attempts * 30 + 10 + number, start_ns, start_ns + 10 * S, (piece,)))
        counted = {name: calls_of(ask) for name, ask in questions(history, now_s + 10 * number).items()}
    return counted


@pytest.fixture(scope="module")
def counted() -> tuple[dict[str, int], dict[str, int]]:
    """Of a run of 25 attempts, and of one of 200."""
    return calls_after_a_record(25), calls_after_a_record(200)


def test_no_answer_reads_the_attempts_that_are_over(counted: tuple[dict[str, int], dict[str, int]]) -> None:
    """Eight times the attempts: what is searched is halved three times more, and nothing else is done again."""
    few, many = counted

    grown = {name: many[name] - few[name] for name in few}

    assert {name: growth for name, growth in grown.items() if growth > 3 * 30} == {}


def test_two_hundred_rows_are_one_report_made_anew(counted: tuple[dict[str, int], dict[str, int]]) -> None:
    """The row of the newest attempt; the others are as they were."""
    _, many = counted

    assert many["by attempt"] < 3 * many["report"]
    assert many["projection"] < 3 * many["report"]


def test_a_cold_answer_by_attempt_costs_as_many_reports_as_it_has_rows() -> None:
    """A window that has not been asked before; each row finds its attempt without looking through the others."""
    history = history_of(long_run(200))
    window = Window(0, 200 * ATTEMPT_S * S)
    one = calls_of(lambda: report(history, window))

    rows = calls_of(lambda: reports(history, "attempt", window))

    assert rows < 200 * one


def test_counting_counts() -> None:
    """A counter that stands still would let everything pass."""
    assert calls_of(lambda: [abs_of(number) for number in range(9)]) >= 9


def abs_of(number: int) -> int:
    """One call."""
    return abs(number)
