"""Segments cut an attempt without gap, a bounded number of them, each with the steps that ended in it."""

from hypothesis import given
from hypothesis import strategies as st

from trainspan.relay.timeline.segments import MOST, PER_LENGTH, SHORTEST_NS, Segment, Segments, offset_of

S = 1_000_000_000
DAY = 86_400 * S


def test_a_segment_is_over_after_a_minute_with_the_steps_that_ended_in_it() -> None:
    """It is what a running job shows of itself in the trace of its attempt."""
    segments = Segments(process_start_ns=5 * S)

    early = segments.count(0, 20 * S) + segments.count(1, 64 * S)
    over = segments.count(2, 66 * S)
    rest = segments.end(70 * S)

    assert early == []
    assert over == [Segment(0, 5 * S, 65 * S, first_step=0, last_step=1)]
    assert rest == [Segment(1, 65 * S, 70 * S, first_step=2, last_step=2)]


def test_time_alone_ends_a_segment_without_steps() -> None:
    """A rank that hangs completes no step, and must show all the same."""
    segments = Segments(0)

    over = segments.advance(121 * S)

    assert over == [Segment(0, 0, 60 * S, None, None), Segment(1, 60 * S, 120 * S, None, None)]


def test_a_long_attempt_has_a_bounded_number_of_ever_longer_segments() -> None:
    """One trace must stay readable for a backend after three months."""
    segments = Segments(0)

    over = segments.advance(200 * DAY)

    assert len(over) == MOST
    assert over[0].end_ns == SHORTEST_NS
    assert over[PER_LENGTH].end_ns - over[PER_LENGTH].start_ns == 2 * SHORTEST_NS
    assert over[-1].end_ns > 88 * DAY
    assert segments.end(201 * DAY) == []


@given(st.integers(0, MOST - 2))
def test_segments_follow_each_other_without_gap(number: int) -> None:
    """Time in no segment would look like an outage."""
    length_ns = offset_of(number + 1) - offset_of(number)

    assert length_ns == SHORTEST_NS << number // PER_LENGTH
