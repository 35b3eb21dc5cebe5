"""When a rank that gives no sign has come to a stall, and what is told of it."""

import pytest

from trainspan.names import Phase
from trainspan.relay.timeline.stalls import Stalls, Standing
from trainspan.relay.timeline.steps import RankTimeline
from trainspan.testing.builders import MarkTape

S = 1_000_000_000
STANDING = Standing(7, Phase.BACKWARD, 100 * S)


@pytest.mark.parametrize(
    ("still_s", "usual_s", "stalled"), [(61, 1.0, True), (60, 1.0, False), (61, 6.2, False), (63, 6.2, True)]
)
def test_stall_takes_longer_than_the_floor_and_ten_steps(still_s: int, usual_s: float, stalled: bool) -> None:
    """A job of long steps is not called stalled in each of them."""
    stalls = Stalls(60 * S)

    began = stalls.begin(STANDING, STANDING.since_ns + still_s * S, lambda: usual_s)

    assert began is stalled
    assert stalls.now == (STANDING if stalled else None)


def test_stall_in_the_first_step_needs_no_usual_one() -> None:
    """A rank that never comes through its first step has none."""
    stalls = Stalls(60 * S)

    assert stalls.begin(STANDING, STANDING.since_ns + 61 * S, lambda: None)


def test_stall_begins_once_and_ends_once() -> None:
    """Whoever looks five times a second would tell of it as often."""
    stalls = Stalls(60 * S)
    began = [stalls.begin(STANDING, STANDING.since_ns + s * S, lambda: 0.1) for s in (50, 61, 62, 300)]

    ended = [stalls.end(), stalls.end()]

    assert began == [False, True, False, False]
    assert ended == [STANDING, None]
    assert stalls.begin(Standing(8, Phase.OTHER, 500 * S), 600 * S, lambda: 0.1)


def test_floor_of_zero_means_never() -> None:
    """Who works for hours without torch between steps wants no word of it."""
    assert not Stalls(0).begin(STANDING, STANDING.since_ns + 86_400 * S, lambda: 0.1)


def test_rank_stands_where_its_newest_mark_has_put_it() -> None:
    """The phase, the step it belongs to, and since when."""
    timeline, tape = RankTimeline(), MarkTape(5 * S)
    before = timeline.standing()
    tape.spend(Phase.FORWARD, 10)
    tape.step(0, optimizer_ns=5)
    tape.mark(0, Phase.BACKWARD)

    timeline.feed(tape.words)

    assert before is None
    assert timeline.standing() == Standing(1, Phase.BACKWARD, 5 * S + 15, entered=1)
    timeline.gap(3)
    assert timeline.standing() is None
