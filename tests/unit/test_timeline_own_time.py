"""A rank's own time: what tells who is late from who waits."""

import pytest

from trainspan.names import AnyPhase, Phase, named_phase
from trainspan.relay.timeline.own_time import OwnTime, held_up_ns, own_ns

STEP: dict[AnyPhase, int] = {
    Phase.DATA_WAIT: 5,
    Phase.H2D: 1,
    Phase.FORWARD: 20,
    Phase.BACKWARD: 70,
    Phase.GRAD_CLIP: 9,
    Phase.OPTIMIZER: 4,
    Phase.VALIDATION: 50,
    Phase.OTHER: 3,
    named_phase("tokenize"): 2,
}


def test_what_a_rank_waits_for_others_is_not_its_own() -> None:
    """Who is late makes its peers wait inside backward and the clipping: that must not make them late too."""
    own = OwnTime().with_step(STEP).with_step({**STEP, Phase.BACKWARD: 7000})

    assert own == OwnTime(host_ns=60)


def test_the_device_is_counted_by_the_steps_it_has_timed() -> None:
    """It times a share of them: a mean over all would be far too small."""
    own = OwnTime().with_step(STEP).with_step(STEP).with_timed_step({Phase.FORWARD: 40, Phase.BACKWARD: 90})

    assert own == OwnTime(60, 40, timed=1)


def test_a_step_without_those_phases_says_nothing() -> None:
    """Zero would be a rank that is ahead of all others."""
    own = OwnTime().with_step({Phase.OTHER: 100}).with_timed_step({})

    assert own == OwnTime(None, None, 1)


@pytest.mark.parametrize(
    ("ranks", "held_up"),
    [
        # One is late by 50, and the others took as long.
        ([(150, 100), (150, 50)], 50),
        ([(150, 100), (148, 50), (149, 40), (150, 60)], 50),
        # Its peers went on without it: they did not wait.
        ([(150, 100), (100, 50)], 0),
        ([(150, 100), (150, 50), (100, 50)], 0),
        # Half of them are late: the middle one still is not.
        ([(150, 100), (150, 100), (150, 50), (150, 50)], 50),
        ([(150, 100), (150, 100), (150, 100), (150, 50)], 0),
        # Nobody to compare with, or nothing to compare.
        ([(150, 100)], 0),
        ([(150, 100), (150, None)], 0),
        ([], 0),
    ],
)
def test_one_rank_holds_the_others_up_by_what_it_needs_beyond_the_middle_one(
    ranks: list[tuple[int, int | None]], held_up: int
) -> None:
    """Ranks that do not wait for each other in every step have no straggler, however different they are."""
    assert held_up_ns(ranks) == held_up


def test_own_time_of_a_step_is_that_of_its_own_phases() -> None:
    """The same phases as in the sum over all steps."""
    assert own_ns(STEP) == OwnTime().with_step(STEP).host_ns
    assert own_ns({Phase.OTHER: 5}) is None
