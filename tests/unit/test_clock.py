"""The bridge between the monotonic clock and Unix time."""

import time

from trainspan.clock import Anchor, SystemClock, anchor


def test_unix_time_follows_from_the_anchor_alone() -> None:
    """A wall clock that steps between two readings must not tear a step apart."""
    bridge = Anchor(monotonic_ns=1_000, unix_ns=1_700_000_000_000_000_000)

    before, at, after = bridge.unix_of(0), bridge.unix_of(1_000), bridge.unix_of(1_007)

    assert before == 1_699_999_999_999_999_000
    assert at == 1_700_000_000_000_000_000
    assert after == 1_700_000_000_000_000_007


def test_nanoseconds_survive_the_bridge() -> None:
    """A float in between would round a span's times to a quarter of a microsecond."""
    bridge = Anchor(monotonic_ns=123_456_789_012_345_678, unix_ns=1_790_000_000_123_456_789)

    unix_ns = bridge.unix_of(123_456_789_012_345_679)
    back_ns = bridge.monotonic_of(unix_ns)

    assert unix_ns == 1_790_000_000_123_456_790
    assert back_ns == 123_456_789_012_345_679


def test_anchor_is_one_instant_on_both_clocks() -> None:
    """Readings from two instants would shift every span of the rank against its peers'."""
    monotonic_before, unix_before = time.monotonic_ns(), time.time_ns()

    found = anchor()

    assert monotonic_before <= found.monotonic_ns <= time.monotonic_ns()
    assert unix_before <= found.unix_ns <= time.time_ns()


def test_system_clock_reads_the_clocks_of_this_host() -> None:
    """Marks of two processes are compared: both must read the clock that the host shares."""
    clock = SystemClock()
    monotonic_before, unix_before = time.monotonic_ns(), time.time_ns()

    monotonic_ns, unix_ns = clock.monotonic_ns(), clock.unix_ns()

    assert monotonic_before <= monotonic_ns <= time.monotonic_ns()
    assert unix_before <= unix_ns <= time.time_ns()


def test_system_clock_sleeps() -> None:
    """A sleep that returns at once turns the relay's loop into a busy one."""
    clock = SystemClock()
    before_ns = clock.monotonic_ns()

    clock.sleep(0.01)

    assert clock.monotonic_ns() - before_ns >= 10_000_000
