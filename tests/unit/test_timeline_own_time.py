"""A rank's own time: what tells who is late from who waits."""

from trainspan.names import AnyPhase, Phase, named_phase
from trainspan.relay.timeline.own_time import OwnTime

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
