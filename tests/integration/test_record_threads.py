"""Training that is not done by the main thread, and threads beside it."""

import pytest

from tests.integration.recorded import Pair, in_good_order, phases_of, run_both

STEP = ["forward", "backward", "optimizer"]
LOADED = ["data_wait", "h2d", *STEP]
FIRST = ["data_wait", *LOADED]

PHASES = {
    "whole": [FIRST, *[LOADED] * 5],
    # Until its first backward nobody knows that this thread trains.
    "loop": [["data_wait", "backward", "optimizer"], *[LOADED] * 5],
    # The second model is looked for where its optimizer is made.
    "twice": [FIRST, *[LOADED] * 5, ["data_wait", "data_wait", *LOADED], *[LOADED] * 5],
    "prefetch": [STEP] * 6,
    "beside": [STEP] * 6,
}


@pytest.fixture(scope="module")
def threads(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """All of them, with and without trainspan."""
    return run_both("threads.py", *PHASES, state=tmp_path_factory.mktemp("threads"))


def test_nothing_in_the_process_differs(threads: Pair) -> None:
    """How many threads there are at the end depends on how fast the last one is gone."""
    differences = threads.differences("pid", "threads")

    assert differences == [{}] * (2 * len(PHASES))
    assert threads.recorded.stderr == threads.alone.stderr == ""


@pytest.mark.parametrize("scenario", PHASES)
def test_the_thread_that_trains_is_recorded_and_no_other(threads: Pair, scenario: str) -> None:
    """Ray trains in a thread; and marks of two threads in one ring would make no step at all."""
    recording = threads.recording_of(scenario)

    assert [phases_of(step) for step in recording.steps] == PHASES[scenario]
    assert in_good_order(recording)
