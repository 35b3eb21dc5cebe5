"""What is done with models beside training them: copied, saved, exported, scripted, deleted."""

import pytest

from tests.integration.recorded import Pair, in_good_order, phases_of, run_both

STEP = [*["forward", "backward"] * 2, "optimizer"]


@pytest.fixture(scope="module")
def copies(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """Every use of a model, before the first step has ended and after some."""
    return run_both("copies.py", state=tmp_path_factory.mktemp("copies"))


def test_every_use_of_a_model_gives_the_same(copies: Pair) -> None:
    """Keys, bytes, graphs and code; a checkpoint must not need trainspan, nor a copy run the original's weights."""
    differences = copies.differences("pid")

    assert differences == [{}, {}]
    assert copies.recorded.stderr == copies.alone.stderr


def test_copies_answer_as_the_model_does(copies: Pair) -> None:
    """Equal to a run that is wrong in the same way would not be enough."""
    [line] = [line for line in copies.recorded.lines if line["scenario"] == "copies"]

    for uses, twins in (line["before"], line["after"]):
        assert uses["average"] == 0
        assert all(uses[name] for name in ("shallow", "loaded", "unpickled", "functional"))
        assert all(uses[name][1] for name in ("scripted", "traced", "exported", "symbolic"))
        assert twins == [True] * 4


def test_root_is_freed_with_its_last_user(copies: Pair) -> None:
    """A model that lingers holds the memory of the device."""
    [line] = [line for line in copies.recorded.lines if line["scenario"] == "freed"]

    assert line["freed"] == [True, True]


def test_training_between_them_is_recorded(copies: Pair) -> None:
    """A model that nobody marks would pass every test above."""
    [recording] = copies.recorded.recordings

    assert [step.microbatches for step in recording.steps] == [2] * 9
    assert phases_of(recording.steps[1]) == phases_of(recording.steps[-1]) == STEP
    assert in_good_order(recording)
