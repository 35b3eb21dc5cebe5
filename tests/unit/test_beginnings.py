"""A node whose clock is put right after its start must not send points that end before they begin."""

from trainspan.relay.signals.beginnings import Beginnings

HOUR_NS = 3_600_000_000_000
START = 1_700_000_000_000_000_000


def test_clock_that_only_grows_changes_nothing() -> None:
    """A beginning that moved would be a reset."""
    beginnings = Beginnings()

    told = [beginnings.of(START, START + after_ns) for after_ns in (0, 1, HOUR_NS)]

    assert told == [START] * 3


def test_what_began_after_the_time_it_is_told_at_begins_then_once() -> None:
    """One reset when the clock is set back, and none afterwards: also not when it has caught up."""
    beginnings = Beginnings()
    back = START - HOUR_NS

    told = [beginnings.of(START, time_ns) for time_ns in (START + 5, back, back + 5, START + HOUR_NS)]
    later = beginnings.of(back + 7, back + 9)
    again = beginnings.of(START, back - HOUR_NS)

    assert told == [START, back, back, back]
    assert later == back + 7
    assert again == back - HOUR_NS
