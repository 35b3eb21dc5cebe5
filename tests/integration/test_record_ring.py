"""A ring smaller than the run, and nobody who reads along."""

import pytest

from tests.integration.recorded import Recording, start
from trainspan.recording.layout import CAPACITY_MIN


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> tuple[Recording, Recording]:
    """The same four hundred steps in a ring that holds them, and in the smallest one."""
    large = start("loops.py", "long", state=tmp_path_factory.mktemp("large"))
    small = start("loops.py", "long", state=tmp_path_factory.mktemp("small"), TRAINSPAN_RING_MARKS=str(CAPACITY_MIN))
    [whole], [lapped] = large.ended().recordings, small.ended().recordings
    return whole, lapped


def test_lost_marks_are_counted_exactly(recordings: tuple[Recording, Recording]) -> None:
    """What is missing must be known to the mark, or the account does not add up."""
    whole, lapped = recordings

    assert whole.lost == 0
    assert lapped.lost > 0
    assert lapped.lost + lapped.marks == whole.marks


def test_what_is_left_are_the_last_steps(recordings: tuple[Recording, Recording]) -> None:
    """The end of a run is what one asks for after a crash."""
    whole, lapped = recordings

    numbers = [step.number for step in lapped.steps]
    assert numbers == list(range(numbers[0], 400))
    assert len(numbers) > CAPACITY_MIN // 6 - 3
    assert len(whole.steps) == 400
