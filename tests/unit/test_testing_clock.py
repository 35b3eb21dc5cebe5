"""The fake clock of the test kit is a clock, and moves only when it is told to."""

import pytest

from trainspan.clock import Clock
from trainspan.testing.clock import FakeClock


def test_sleeping_moves_both_clocks_and_is_remembered() -> None:
    """Code that waits must run in a test without waiting."""
    fake = FakeClock(monotonic_ns=10, unix_ns=1000)
    clock: Clock = fake

    clock.sleep(2.5)

    assert (clock.monotonic_ns(), clock.unix_ns()) == (2_500_000_010, 2_500_001_000)
    assert fake.sleeps_s == [2.5]


def test_a_step_of_the_wall_clock_is_not_seen_by_the_monotonic_one() -> None:
    """It is the case for which there are two clocks."""
    clock = FakeClock(monotonic_ns=10, unix_ns=1000)

    clock.set_unix(5)
    clock.advance(1)

    assert (clock.monotonic_ns(), clock.unix_ns()) == (11, 6)


def test_monotonic_time_cannot_go_back() -> None:
    """A test that asks for it has a mistake in it."""
    clock = FakeClock()

    with pytest.raises(ValueError, match="-1"):
        clock.advance(-1)
