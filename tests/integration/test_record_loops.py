"""Loops of every common shape, in real processes: nothing about them changes, and their steps are seen as they are."""

import pytest

from tests.integration.recorded import Pair, in_good_order, phases_of, run_both

SCENARIOS = (
    *("plain", "accumulation", "gan", "lbfgs", "scaler"),
    *("recompute", "reentrant", "iterable", "ahead"),
    *("distillation", "averaged", "repeating", "ensemble", "folds", "in_backward"),
)

BATCH = ["data_wait", "h2d", "forward", "backward"]
STEP = [*BATCH, "grad_clip", "optimizer"]
EPOCH_ENDS = ["data_wait"]
ITERATOR = ["data_wait"]
VALIDATION = [*EPOCH_ENDS, *ITERATOR, *["validation"] * 6, *EPOCH_ENDS]
CLOSURE = ["optimizer", "forward", "optimizer", "backward"]
CRITIC = ["data_wait", "h2d", "forward", "forward", "forward", "backward", "optimizer"]
SCALED = [*BATCH, "amp", "grad_clip", "amp"]
SCALED_STEP = ["amp", *SCALED, "optimizer"]
GENERATOR = ["forward", "backward", "optimizer"]
UNCLIPPED = [*BATCH, "optimizer"]
ONE_BATCH = [*EPOCH_ENDS, *ITERATOR, *["validation"] * 3, *EPOCH_ENDS]
TAUGHT = ["data_wait", "h2d", "forward", "forward", "backward", "optimizer"]

PHASES = {
    "plain": [[*ITERATOR, *STEP], STEP, STEP, STEP, [*VALIDATION, *ITERATOR, *STEP], STEP, STEP, STEP],
    "accumulation": [[*ITERATOR, *BATCH * 3, "optimizer"], *[[*BATCH * 3, "optimizer"]] * 3],
    "gan": [[*ITERATOR, *CRITIC], *[[*GENERATOR, *CRITIC]] * 4],
    "lbfgs": [[*ITERATOR, "data_wait", *CLOSURE * 4, "optimizer"], *[["data_wait", *CLOSURE * 4, "optimizer"]] * 2],
    "scaler": [[*ITERATOR, *SCALED, "optimizer"], ["amp", *SCALED, "optimizer"], ["amp", *SCALED], *[SCALED_STEP] * 3],
    # What is computed once more in the backward is no forward.
    "recompute": [[*ITERATOR, *BATCH, "optimizer"], *[[*BATCH, "optimizer"]] * 3],
    "reentrant": [[*ITERATOR, *BATCH, "optimizer"], *[[*BATCH, "optimizer"]] * 3],
    "iterable": [
        *[[*ITERATOR, *BATCH, "optimizer"], *[[*BATCH, "optimizer"]] * 3],
        *[[*EPOCH_ENDS, *ITERATOR, *BATCH, "optimizer"], *[[*BATCH, "optimizer"]] * 3],
    ],
    "ahead": [[*ITERATOR, "data_wait", *BATCH, "optimizer"], *[[*BATCH, "optimizer"]] * 3],
    "distillation": [[*ITERATOR, *TAUGHT], TAUGHT, TAUGHT, [*ONE_BATCH, *ITERATOR, *TAUGHT], TAUGHT, TAUGHT],
    "averaged": [
        *[[*ITERATOR, *UNCLIPPED], UNCLIPPED, UNCLIPPED],
        *[[*VALIDATION, *ITERATOR, *UNCLIPPED], UNCLIPPED, UNCLIPPED],
    ],
    # No iterator is made, and none ends.
    "repeating": [*[UNCLIPPED] * 3, [*["validation"] * 6, *UNCLIPPED], UNCLIPPED, UNCLIPPED],
    # The first optimizer's step ends each, so the first model of the next batch is in it.
    "ensemble": [[*ITERATOR, *UNCLIPPED], *[[*GENERATOR * 2, *UNCLIPPED]] * 3],
    "folds": [
        *[[*ITERATOR, *UNCLIPPED], UNCLIPPED, UNCLIPPED],
        *[[*ONE_BATCH, *ITERATOR, *UNCLIPPED], UNCLIPPED, UNCLIPPED] * 4,
    ],
    # What the optimizers do is a part of the backward.
    "in_backward": [[*ITERATOR, *BATCH], *[BATCH] * 3],
}
"""Of each step. The third step under the scaler is skipped for its infinite gradient; it ends all the same."""

MICROBATCHES = {
    "plain": [1] * 8,
    "accumulation": [3] * 4,
    "gan": [1, 2, 2, 2, 2],
    "lbfgs": [4] * 3,
    "scaler": [1] * 6,
    "recompute": [1] * 4,
    "reentrant": [1] * 4,
    "iterable": [1] * 8,
    "ahead": [1] * 4,
    "distillation": [1] * 6,
    "averaged": [1] * 6,
    "repeating": [1] * 6,
    "ensemble": [1, 3, 3, 3],
    "folds": [1] * 15,
    "in_backward": [1] * 4,
}

SAMPLES = {
    "distillation": [8] * 6,
    "averaged": [8] * 6,
    "repeating": [8] * 6,
    "ensemble": [8] * 4,
    "folds": [8] * 15,
    "in_backward": [8] * 4,
}


@pytest.fixture(scope="module")
def loops(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """All loops, with and without trainspan."""
    return run_both("loops.py", *SCENARIOS, state=tmp_path_factory.mktemp("loops"))


def test_nothing_in_the_process_differs(loops: Pair) -> None:
    """Weights, the state of every generator, threads, sockets: whoever watches must not be seen in any of them."""
    differences = loops.differences("pid")

    assert differences == [{}] * (2 * len(SCENARIOS))
    assert not any(line["opentelemetry"] for line in loops.recorded.lines if "scenario" in line)


def test_nothing_is_said_and_all_end_well(loops: Pair) -> None:
    """A user who sees a line that his script has not printed begins to search."""
    said = (loops.alone.stderr, loops.recorded.stderr)

    assert said == ("", "")
    assert {line["exit_code"] for line in loops.recorded.lines if "name" in line} == {0}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_steps_have_their_phases_in_order(loops: Pair, scenario: str) -> None:
    """What is one step differs from loop to loop; everything else is counted from it."""
    steps = loops.recording_of(scenario).steps

    assert [phases_of(step) for step in steps] == PHASES[scenario]
    assert [step.microbatches for step in steps] == MICROBATCHES[scenario]


@pytest.mark.parametrize("scenario", SAMPLES)
def test_samples_are_those_that_were_trained_on(loops: Pair, scenario: str) -> None:
    """A batch that a teacher gets as well is trained on; one that is validated is not."""
    steps = loops.recording_of(scenario).steps

    assert [step.samples for step in steps] == SAMPLES[scenario]


def test_what_is_trained_is_no_teacher(loops: Pair) -> None:
    """Two models of the same size are called, and the run is about one of them."""
    [of_student] = [event for event in loops.recording_of("distillation").events if event["event"] == "facts"]
    [of_averaged] = [event for event in loops.recording_of("averaged").events if event["event"] == "facts"]

    sizes = [facts["attributes"]["training.model.parameters"] for facts in (of_student, of_averaged)]
    assert sizes[0] == sizes[1] > 0


def test_only_the_step_that_the_scaler_skipped_says_so(loops: Pair) -> None:
    """A run whose loss scale never settles trains nothing, and looks like one that does."""
    steps = loops.recording_of("scaler").steps

    assert [step.number for step in steps if step.skipped] == [2]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_nanosecond_of_a_step_is_in_one_phase(loops: Pair, scenario: str) -> None:
    """Time that is counted twice, or not at all, makes every share wrong."""
    recording = loops.recording_of(scenario)

    assert in_good_order(recording)


def test_each_process_makes_one_recording(loops: Pair) -> None:
    """The process that forks them never trains."""
    pids = [recording.identity.pid for recording in loops.recorded.recordings]

    assert sorted(pids) == sorted(line["pid"] for line in loops.recorded.lines if "scenario" in line)
