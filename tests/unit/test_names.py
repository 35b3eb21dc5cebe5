"""Phases and their numbers, which are in every recording on disk."""

from trainspan.names import STATES, Phase
from trainspan.recording import layout


def test_phase_numbers_are_fixed() -> None:
    """Recordings on disk hold these numbers: one that changes turns old forwards into backwards."""
    expected = {
        "other": 0,
        "optimizer": 1,
        "forward": 2,
        "backward": 3,
        "data_wait": 4,
        "grad_clip": 5,
        "validation": 6,
        "h2d": 7,
        "graph_replay": 8,
        "checkpoint_save": 9,
        "checkpoint_load": 10,
        "collective": 11,
        "amp": 12,
        "generation": 13,
    }

    numbers = {phase.wire: phase.value for phase in Phase}

    assert numbers == expected


def test_phase_fits_beside_the_kind_in_a_code() -> None:
    """A phase of seven bits would be read as another kind of mark."""
    too_large = [phase for phase in Phase if phase & ~layout.PHASE_MASK]

    assert too_large == []


def test_phase_names_its_span() -> None:
    """Metric and span of a phase are found by the same word."""
    phase = Phase.DATA_WAIT

    names = phase.wire, phase.span

    assert names == ("data_wait", "training.data_wait")


def test_states_are_distinct_and_end_in_the_unexplained() -> None:
    """What nobody can explain is published, so it needs a state of its own."""
    distinct = set(STATES)

    assert len(distinct) == len(STATES)
    assert {"productive", "unaccounted"} <= distinct
