"""Optimizers that are made of others: one step of training is counted once."""

import pytest

from tests.integration.recorded import Pair, in_good_order, phases_of, run_both

STEP = ["forward", "backward", "optimizer"]

PHASES = {
    "outer": [STEP] * 6,
    "cautious": [STEP] * 6,
    # The shards are exchanged within the step: three broadcasts are launched, and the last is waited for at once.
    "zero": [[*STEP, *["collective", "optimizer"] * 4]] * 6,
    # After eight steps without the first optimizer the second one leads; its model is found in the step after.
    "alternating": [*[STEP] * 10, ["backward", "optimizer"] * 8, STEP, STEP, *[[*STEP, *STEP]] * 10],
    # The first one ends with its backward: no other optimizer is known until then.
    "in_backward": [["forward", "forward", "backward"], ["optimizer", "forward", *STEP], *[["forward", *STEP]] * 4],
}


@pytest.fixture(scope="module")
def optimizers(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """All of them, with and without trainspan."""
    return run_both("optimizers.py", *PHASES, state=tmp_path_factory.mktemp("optimizers"))


def test_nothing_in_the_process_differs(optimizers: Pair) -> None:
    """The hooks of all optimizers run inside each other here."""
    differences = optimizers.differences("pid")

    assert differences == [{}] * (2 * len(PHASES))
    assert optimizers.recorded.stderr == optimizers.alone.stderr == ""


@pytest.mark.parametrize("scenario", PHASES)
def test_a_step_is_counted_once(optimizers: Pair, scenario: str) -> None:
    """Wrappers call the step of what they wrap: torch calls its hooks for both, and after a failure for one."""
    recording = optimizers.recording_of(scenario)

    assert [phases_of(step) for step in recording.steps] == PHASES[scenario]
    assert in_good_order(recording)
