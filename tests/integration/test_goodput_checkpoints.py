"""`torch.save` and `torch.load` of a script that knows nothing of us: the phases, the events, and nothing disturbed."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.integration.recorded import Recording, start
from trainspan.names import Phase


class Pair(NamedTuple):
    """The same script without and with us."""

    plain: list[dict[str, Any]]
    lines: list[dict[str, Any]]
    recording: Recording
    stderr: str
    folder: Path


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """Both, run once."""
    folders = [tmp_path_factory.mktemp(name) for name in ("plain", "watched")]
    plain = start("checkpoints.py", str(folders[0])).ended()
    watched = start("checkpoints.py", str(folders[1]), state=tmp_path_factory.mktemp("state")).ended()
    assert plain.exit_code == watched.exit_code == 0, watched.stderr
    (recording,) = watched.recordings
    return Pair(plain.lines, watched.lines, recording, watched.stderr, folders[1])


def events_of(pair: Pair) -> list[dict[str, Any]]:
    """What was noted of checkpoints, in order of their beginning."""
    events = [event for event in pair.recording.events if event["event"] == "checkpoint"]
    return sorted(events, key=lambda event: event["start_ns"])


def test_training_is_the_same_to_the_bit(pair: Pair) -> None:
    """A tool that watches must not be part of the experiment; the user's exception comes through as it is."""
    plain, watched = (
        {json.dumps(line) for line in lines if "weights" not in line and "step" not in line}
        for lines in (pair.plain, pair.lines)
    )

    assert plain == watched
    assert '{"refused": "not to be saved"}' in watched
    assert pair.plain[-1]["weights"] == pair.lines[-1]["weights"]
    assert pair.stderr == ""


def test_every_call_is_noted_with_the_step_that_is_next(pair: Pair) -> None:
    """The relay learns from it where a restart takes the run up. Samples, buffers and workers say nothing."""
    noted = [(e["kind"], e["ok"], e["blocking"], e["step"], e["bytes"] is None) for e in events_of(pair)]

    assert noted == [
        ("save", True, True, 0, False),  # start.pt, before there was a recording
        ("load", True, True, 0, True),
        *[("save", True, True, 0, False)] * 4,  # the samples
        ("save", True, True, 0, False),  # large.pt
        ("save", True, True, 2, False),  # second.pt
        ("save", True, True, 2, False),  # rng.pt
        ("save", True, False, 3, False),  # by another thread
        ("save", False, True, 3, True),
    ]


def test_name_tells_files_apart_and_tells_nothing_else(pair: Pair) -> None:
    """A path can name a project, a customer, a person."""
    events = events_of(pair)

    names = [event["file"] for event in events]

    assert names[0] == names[1]
    assert len(set(names[1:])) == len(names) - 1
    assert str(pair.folder) not in json.dumps(pair.recording.events)
    assert "second" not in json.dumps(events)


def test_phase_holds_the_time_of_the_call_and_begins_no_step(pair: Pair) -> None:
    """What held training up is `checkpoint_save`; a load before the loop belongs to the init."""
    steps = [*pair.recording.steps, pair.recording.unfinished]
    clocked = {line["step"]: line["checkpoint_ns"] for line in pair.lines if "step" in line}

    saves = [
        [interval for interval in step.intervals if interval.phase is Phase.CHECKPOINT_SAVE] if step else []
        for step in steps
    ]

    assert [len(found) for found in saves] == [0, 0, 3, 1, 0]
    assert [found.failed for found in saves[3]] == [True]
    assert sum(found.end_ns - found.start_ns for found in saves[2]) <= clocked[1]
    assert not any(i.phase is Phase.CHECKPOINT_LOAD for step in pair.recording.steps for i in step.intervals)
    assert pair.recording.steps[0].intervals[0].phase is Phase.DATA_WAIT
    assert pair.recording.invalid == 0
