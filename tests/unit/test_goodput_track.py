"""A track is a picture of claims: checked instant by instant against painting an array."""

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainspan.relay.goodput.states import CUSTOM, HANG, OVERFLOW_CODE, PRODUCTIVE, UNCOVERED, Palette
from trainspan.relay.goodput.track import CHUNK_SEGMENTS, Track

END = 60
CODES = st.integers(PRODUCTIVE, HANG).filter(lambda code: code != CUSTOM)
STROKES = st.lists(st.tuples(st.integers(0, END), st.integers(0, END), CODES), max_size=25)


def painted(strokes: list[tuple[int, int, int]]) -> Track:
    """A track with all strokes on it."""
    track = Track(Palette().keys)
    for stroke in strokes:
        track.paint(*stroke)
    return track


def picture(strokes: list[tuple[int, int, int]]) -> list[int]:
    """The code of every instant, by brute force."""
    instants = [UNCOVERED] * END
    for start, end, code in strokes:
        for instant in range(start, min(end, END)):
            instants[instant] = max(instants[instant], code)
    return instants


def positive(sums: dict[int, int]) -> dict[int, int]:
    """The sums that hold any time, without what is uncovered."""
    return {code: length for code, length in sums.items() if length and code != UNCOVERED}


def stripes(count: int) -> Track:
    """So many segments of one instant each, two codes in turn."""
    return painted([(place, place + 1, PRODUCTIVE + place % 2) for place in range(count)])


@given(strokes=STROKES, since=st.integers(0, END), length=st.integers(0, END))
def test_sums_of_any_window_are_those_of_the_picture(
    strokes: list[tuple[int, int, int]], since: int, length: int
) -> None:
    """Every answer about time is a difference of two of these sums."""
    track, until = painted(strokes), min(since + length, END)

    sums = track.sums(since, until)

    assert positive(sums) == positive(Counter(picture(strokes)[since:until]))


@given(strokes=STROKES, order=st.randoms(use_true_random=False))
def test_order_of_strokes_changes_nothing(strokes: list[tuple[int, int, int]], order: Random) -> None:
    """Facts arrive in any order, some of them twice."""
    shuffled = [*strokes, *strokes]
    order.shuffle(shuffled)

    segments = list(painted(shuffled).segments(0, END))

    assert segments == list(painted(strokes).segments(0, END))


@given(strokes=STROKES, time=st.integers(1, END))
def test_cut_leaves_what_was_before(strokes: list[tuple[int, int, int]], time: int) -> None:
    """The job's track is cut where a rank changed, and painted again from there."""
    track = painted(strokes)

    track.cut(time)

    assert track.end_ns <= time
    assert positive(track.total()) == positive(Counter(picture(strokes)[:time]))


@pytest.mark.parametrize("count", [1, CHUNK_SEGMENTS, CHUNK_SEGMENTS + 1, 5 * CHUNK_SEGMENTS + 7])
def test_sums_hold_across_chunks(count: int) -> None:
    """A long run is many chunks; prefix sums must not lose or repeat one."""
    track = stripes(count)

    sums = [track.sums(since, until) for since in (0, count // 3) for until in (count // 2, count)]

    windows = [(since, until) for since in (0, count // 3) for until in (count // 2, count)]
    expected = [Counter(PRODUCTIVE + place % 2 for place in range(*window)) for window in windows]
    assert [positive(found) for found in sums] == [positive(counted) for counted in expected]


def test_stroke_over_many_chunks_repaints_all_of_them() -> None:
    """A late fact may cover what thousands of others painted."""
    track, count = stripes(4 * CHUNK_SEGMENTS), 4 * CHUNK_SEGMENTS
    before = track.sums(0, count)

    track.paint(10, count - 10, HANG)

    assert positive(before) == {PRODUCTIVE: count // 2, PRODUCTIVE + 1: count // 2}
    assert positive(track.total()) == {PRODUCTIVE: 10, PRODUCTIVE + 1: 10, HANG: count - 20}


@pytest.mark.parametrize("stroke", [(300, 305), (CHUNK_SEGMENTS - 3, CHUNK_SEGMENTS + 4), (200, 900)])
def test_late_stroke_is_seen_by_every_later_sum(stroke: tuple[int, int]) -> None:
    """Sums that were asked for before are remembered, and must be forgotten."""
    track, count = stripes(6 * CHUNK_SEGMENTS), 6 * CHUNK_SEGMENTS
    windows = [(0, count), (250, count), (1000, count - 5)]
    before = [positive(track.sums(*window)) for window in windows]

    track.paint(*stroke, HANG)

    assert before == [positive(stripes(count).sums(*window)) for window in windows]
    fresh = painted([*((place, place + 1, PRODUCTIVE + place % 2) for place in range(count)), (*stroke, HANG)])
    assert [positive(track.sums(*window)) for window in windows] == [
        positive(fresh.sums(*window)) for window in windows
    ]
    assert positive(track.total())[HANG] == stroke[1] - stroke[0]


def test_thinning_keeps_the_sums_and_gives_up_the_segments() -> None:
    """What is old is kept small, not wrong."""
    track, count = stripes(6 * CHUNK_SEGMENTS), 6 * CHUNK_SEGMENTS
    whole = track.total()

    track.thin(count // 2, lambda _: 2 * CHUNK_SEGMENTS)

    assert track.total() == whole
    assert len(list(track.segments(0, count))) < count // 2 + 10
    assert positive(track.sums(0, 2 * CHUNK_SEGMENTS)) == positive(stripes(count).sums(0, 2 * CHUNK_SEGMENTS))


def test_chunks_longer_than_they_may_become_keep_their_segments() -> None:
    """Slow steps have few segments: an hour of them must not become one colour."""
    track, count = stripes(6 * CHUNK_SEGMENTS), 6 * CHUNK_SEGMENTS

    track.thin(count // 2, lambda _: CHUNK_SEGMENTS - 1)

    assert list(track.segments(0, count)) == list(stripes(count).segments(0, count))


@pytest.mark.parametrize(
    ("first", "second", "winner"),
    [
        (("custom.a", 0), ("custom.b", 1), "custom.b"),
        (("custom.b", 1), ("custom.a", 0), "custom.b"),
        (("custom.a", 0), ("custom.b", 0), "custom.b"),
        (("custom.a", 3), ("checkpoint_save", 0), "checkpoint_save"),
        (("validation", 0), ("custom.a", 0), "custom.a"),
        (("init", 0), ("model_init", 0), "model_init"),
        (("checkpoint_load", 0), ("model_init", 0), "checkpoint_load"),
    ],
)
def test_of_two_claims_the_narrower_wins(first: tuple[str, int], second: tuple[str, int], winner: str) -> None:
    """The order is written down in `states`; a time charged twice was the peer's defect."""
    palette = Palette()
    track = Track(palette.keys)

    track.paint(0, 10, palette.code_of(*first))
    track.paint(0, 10, palette.code_of(*second))

    assert [palette.states[code] for _, _, code in track.segments(0, 10)] == [winner]


def test_palette_holds_a_bounded_number_of_names() -> None:
    """A segment has one byte for its code, and a user may name without end."""
    palette = Palette()

    codes = [palette.code_of(f"custom.{number}") for number in range(1000)]

    assert max(codes) == 255
    assert codes[-1] == OVERFLOW_CODE == palette.code_of("custom.other")
    assert palette.code_of("custom.0") == codes[0]


@pytest.mark.parametrize("state", ["productive", "lost_work", "unaccounted", "custom.", "sleep", "custom"])
def test_palette_refuses_what_is_no_activity(state: str) -> None:
    """What is derived cannot be told."""
    with pytest.raises(ValueError, match="is no activity"):
        Palette().code_of(state)
