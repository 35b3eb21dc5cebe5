"""What a script with torch says, beside what the hooks see: nothing counts twice, and what is compiled stays."""

import pytest

from tests.integration.recorded import Recording, Run, in_good_order, phases_of, start

SCENARIOS = ("around", "step_in_a_known_phase", "two_optimizers_a_step", "failing_optimizer", "compiled")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """Each scenario, recorded. They run side by side."""
    places = {scenario: tmp_path_factory.mktemp(scenario) for scenario in SCENARIOS}
    started = {
        scenario: start("spoken_torch.py", scenario, str(place / "model.pt"), state=place / "state")
        for scenario, place in places.items()
    }
    return {scenario: training.ended() for scenario, training in started.items()}


def recording_of(runs: dict[str, Run], scenario: str) -> Recording:
    """The one recording of a scenario that went well and had nothing to warn of."""
    run = runs[scenario]
    assert run.exit_code == 0, run.stderr
    assert run.lines[-1]["warned"] == {}
    (recording,) = run.recordings
    assert in_good_order(recording)
    return recording


def test_word_around_an_automatic_phase_is_one_phase(runs: dict[str, Run]) -> None:
    """Who moves from a library that needs every call leaves them where they are; each phase is there once."""
    recording = recording_of(runs, "around")

    loop = ["data_wait", "h2d", "forward", "custom.tune", "backward", "custom.tune", "optimizer"]
    after = ["optimizer", "custom.tune"]  # until the script leaves what it has put around the optimizer's step
    assert [phases_of(step) for step in recording.steps] == [["data_wait", *loop], after + loop, after + loop]
    assert [step.microbatches for step in recording.steps] == [1, 1, 1]


def test_word_around_a_save_is_one_checkpoint(runs: dict[str, Run]) -> None:
    """Two would be two credits of the same work; and the file is known to who loads it without a word."""
    recording = recording_of(runs, "around")

    assert recording.unfinished is not None
    assert phases_of(recording.unfinished)[-4:] == ["checkpoint_save", "validation", "checkpoint_save", "validation"]
    saves = [event for event in recording.events if event["event"] == "checkpoint"]
    assert [(save["kind"], save["ok"], save["blocking"], save["step"]) for save in saves] == [
        ("save", True, True, 3),
        ("save", True, True, 3),
    ]
    assert all(save["bytes"] > 1000 for save in saves)
    assert len({save["file"] for save in saves}) == 2


def test_validation_loop_counts_its_batches(runs: dict[str, Run]) -> None:
    """Its forwards, its data and what is between them are one state."""
    recording = recording_of(runs, "around")

    (span,) = [e for e in recording.events if e["event"] == "span" and e["name"] == "training.validation"]
    assert (span["state"], span["attributes"]) == ("validation", {"training.validation.iterations": 2})


def test_init_that_the_script_tells_is_told_once(runs: dict[str, Run]) -> None:
    """The hooks see the optimizer being made, too."""
    recording = recording_of(runs, "around")

    spans = [event["name"] for event in recording.events if event["event"] == "span"]
    assert spans.count("training.init.optimizer") == 1


def test_step_of_the_script_is_the_step(runs: dict[str, Run]) -> None:
    """An optimizer's step ends it only where the script has not said what a step is."""
    recording = recording_of(runs, "two_optimizers_a_step")

    both = ["forward", "backward", "optimizer"] * 2
    none = ["forward", "backward"] * 2
    assert [phases_of(step) for step in recording.steps] == [both, both, none, both, ["optimizer"]]


def test_step_in_a_known_phase_is_a_step(runs: dict[str, Run]) -> None:
    """A phase that holds no other must not swallow it: the job would seem to hang."""
    recording = recording_of(runs, "step_in_a_known_phase")

    assert [phases_of(step) for step in recording.steps] == [
        ["backward", "optimizer"],
        *[["backward", "backward", "optimizer"]] * 2,
    ]
    assert recording.unfinished is not None
    assert "optimizer" not in phases_of(recording.unfinished)


def test_exception_out_of_an_optimizer_leaves_what_is_around_it_whole(runs: dict[str, Run]) -> None:
    """Torch calls no hook for it: the next phase would seem to be inside of an optimizer that is gone."""
    recording = recording_of(runs, "failing_optimizer")

    first, second = (phases_of(step) for step in recording.steps)
    tuned = ["custom.tune", "forward", "custom.tune", "backward", "custom.tune", "optimizer"]
    failed = ["custom.tune", "optimizer!"]
    assert first == ["forward", "backward", *failed, *failed, *tuned]
    assert second == tuned


def test_compiled_code_is_what_it_is_without_a_word(runs: dict[str, Run]) -> None:
    """A model that says what it does must compile whole, recorded or not."""
    alone = start("spoken_torch.py", "compiled").ended()

    recording = recording_of(runs, "compiled")

    assert alone.exit_code == 0, alone.stderr
    assert len(recording.steps) == 1
    assert [event["event"] for event in recording.events if event["event"] in ("user_event", "misuse")] == []
