"""The checkpoint interval that loses the least time, from what a run has shown."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.goodput_facts import S, activity, begun, ended, history_of, steps
from trainspan.relay.goodput.facts import Fact, Saved
from trainspan.relay.goodput.projection import Measured, best_interval_s, expected_ettr, measure, project

RATE = st.floats(1e-7, 1e-3)
SAVE = st.floats(0.01, 300)
RECOVERY = st.floats(0, 600)


@given(rate=RATE, save=SAVE, recovery=RECOVERY, factor=st.floats(0.01, 100))
def test_no_other_interval_does_better(rate: float, save: float, recovery: float, factor: float) -> None:
    """It is the maximum of the expectation it is printed beside."""
    best = best_interval_s(rate, save, recovery)

    other = expected_ettr(rate, save, recovery, best * factor)

    assert other <= expected_ettr(rate, save, recovery, best) + 1e-12


@pytest.mark.parametrize("factor", [0.5, 0.9, 0.99, 1.01, 1.1, 2.0])
def test_best_interval_is_exact_where_saves_are_dear(factor: float) -> None:
    """A failure every ten minutes, a minute to save: Young's formula would say 268 s."""
    best = best_interval_s(1 / 600, save_s=60.0, recovery_s=60.0)

    assert best == pytest.approx(math.sqrt(68_400) - 60)
    assert expected_ettr(1 / 600, 60.0, 60.0, best * factor) < expected_ettr(1 / 600, 60.0, 60.0, best)


@pytest.mark.parametrize(("rate", "save"), [(1e-6, 0.5), (1e-5, 0.1)])
def test_best_interval_is_youngs_where_failures_are_rare(rate: float, save: float) -> None:
    """The paper's formula is the limit of ours."""
    best = best_interval_s(rate, save, recovery_s=60.0)

    assert best == pytest.approx(math.sqrt(2 * save / rate), rel=0.01)


def test_expectation_is_the_papers() -> None:
    """Worked by hand: 8 failures a day, recovery of 5 min, a save of 10 s every half hour."""
    rate = 8 / 86_400

    expected = expected_ettr(rate, save_s=10.0, recovery_s=300.0, interval_s=1800.0)

    assert expected == pytest.approx((1 - rate * (300 + 900)) / (1 + 10 / 1800))


def test_expectation_ends_at_zero() -> None:
    """A run that fails faster than it recovers gets nowhere; it does not go backwards."""
    assert expected_ettr(rate_per_s=1.0, save_s=1.0, recovery_s=10.0, interval_s=60.0) == 0.0


def run() -> list[Fact]:
    """Two failures in 600 s. A save of 2 s every 50 s; 20 s from the last sign of life to the next step."""
    facts: list[Fact] = []
    for attempt in range(3):
        at = attempt * 200
        facts += [begun(at, attempt=attempt), activity("init", at, at + 10, attempt=attempt)]
        facts += steps(attempt * 18, range(at + 10, at + 200, 10), attempt=attempt)
        for save in (at + 60, at + 110, at + 160):
            facts.append(activity("checkpoint_save", save - 2, save, attempt=attempt))
            facts.append(Saved(attempt, 0, save * S, attempt * 18 + (save - at) // 10 - 1))
        facts.append(ended(at + 190, attempt=attempt))
    return facts


def test_run_is_measured() -> None:
    """Everything the formula needs is in the history."""
    measured = measure(history_of(run()))

    assert measured == Measured(failures=2, elapsed_s=590.0, save_s=2.0, recovery_s=20.0, interval_s=48.0)


def test_projection_says_what_the_interval_costs() -> None:
    """So many seconds a day, which is what somebody can decide on."""
    projection = project(measure(history_of(run())))

    assert projection is not None
    rate = 2 / 590
    assert projection.best_interval_s == pytest.approx(best_interval_s(rate, 2.0, 20.0))
    assert projection.best_interval_s < projection.interval_s
    assert projection.cost_s_per_day == pytest.approx((projection.best_ettr - projection.expected_ettr) * 86_400)
    assert projection.cost_s_per_day > 0
    assert set(projection.to_json()) == {
        "failures_per_day",
        "save_s",
        "recovery_s",
        "interval_s",
        "best_interval_s",
        "expected_ettr",
        "best_ettr",
        "cost_s_per_day",
    }


def test_run_without_failures_projects_nothing() -> None:
    """No rate can be had from none."""
    facts = [fact for fact in run() if fact.attempt == 0]

    assert project(measure(history_of(facts))) is None


def test_saving_for_free_means_saving_always() -> None:
    """Fully asynchronous saves block nothing."""
    projection = project(Measured(failures=2, elapsed_s=600.0, save_s=0.0, recovery_s=20.0, interval_s=50.0))

    assert projection is not None
    assert projection.best_interval_s == 0.0
    assert projection.best_ettr > projection.expected_ettr
