"""A model that holds scopes is averaged, saved whole and loaded, with trainspan on or off on either side."""

from pathlib import Path

import pytest

from tests.integration.recorded import Run, in_good_order, phases_of, start

HELD = ["custom.of_its_own", "forward", "custom.of_its_own"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Run]]:
    """The model as it is saved by a process that records, and by one that does not."""
    place = tmp_path_factory.mktemp("kept")
    started = {
        side: start("kept_torch.py", "save", str(place / side), state=place / "state" if side == "on" else None)
        for side in ("on", "off")
    }
    return {side: (place / side, training.ended()) for side, training in started.items()}


@pytest.fixture(scope="module")
def loaded(saved: dict[str, tuple[Path, Run]], tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Run]:
    """Each of them as it is trained on, by either: by (saved, loaded)."""
    runs = {}
    for side, (file, _) in saved.items():
        place = tmp_path_factory.mktemp(f"from_{side}")
        started = {
            other: start("kept_torch.py", "load", str(file), state=place if other == "on" else None)
            for other in ("on", "off")
        }
        runs.update({(side, other): training.ended() for other, training in started.items()})
    return runs


def test_model_is_saved_and_loaded_wherever_trainspan_is_on(
    saved: dict[str, tuple[Path, Run]], loaded: dict[tuple[str, str], Run]
) -> None:
    """A checkpoint is what a job of days leaves: it is written, it is read, and every bit of the weights is there."""
    runs = [run for _, run in saved.values()], list(loaded.values())

    for alike in runs:
        assert [(run.exit_code, run.stderr) for run in alike] == [(0, "")] * len(alike)
        assert len({run.lines[0]["weights"] for run in alike}) == 1
        assert [run.lines[0]["warned"] for run in alike] == [{}] * len(alike)
    assert [run.recordings for (_, side), run in loaded.items() if side == "off"] == [[], []]


@pytest.mark.parametrize(("side", "phases", "timed"), [("on", HELD, 2), ("off", ["forward"], 0)])
def test_loaded_model_says_what_it_said_where_it_was_made(
    side: str, phases: list[str], timed: int, loaded: dict[tuple[str, str], Run]
) -> None:
    """What was made with trainspan off says nothing; a method is decorated where its class is imported."""
    (recording,) = loaded[side, "on"].recordings

    assert in_good_order(recording)
    assert phases_of(recording.steps[-1]) == [*phases, "backward", "optimizer"]
    spans = [event["name"] for event in recording.events if event["event"] == "span"]
    assert (spans.count("training.custom.export"), spans.count("training.custom.scaled")) == (timed, 2)


def test_copy_of_a_model_says_what_the_model_says(saved: dict[str, tuple[Path, Run]]) -> None:
    """The average is made in a training that goes on."""
    (recording,) = saved["on"][1].recordings

    assert in_good_order(recording)
    first, *others = (phases_of(step) for step in recording.steps)
    assert first == [*HELD[1:], "backward", "optimizer"]  # it begins with the first forward
    assert others == [[*HELD, "backward", "optimizer"]] * 3
