"""What a script without torch says with `import trainspan`, as recorded: each scenario is a process of its own."""

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.integration.recorded import Recording, Run, in_good_order, phases_of, start

MISUSE = {
    "end_without_start": 3,
    "nested": 4,
    "reentered": 3,
    "unended": 1,
    "crossed": 1,
    "thread": 4,
    "value": 3,
    "names": 9,
}
"""Scenarios of misuse, and how often each one does it."""


SAID = {
    "reentered": "trainspan: trainspan.phase('mine') is entered while the rank is in it; the inner one is ignored",
    "nested": "trainspan: trainspan.training_loop() is inside another; the inner one is ignored",
    "end_without_start": "trainspan: trainspan.on_step has ended and had not begun; the end is ignored",
}


def ran(scenario: str, state: Path, *arguments: str, **more: str) -> Run:
    """The scenario, recorded below `state`."""
    return start("spoken.py", scenario, *arguments, state=state, **more).ended()


def only(run: Run) -> Recording:
    """The one recording of a run that went well."""
    assert run.exit_code == 0, run.stderr
    (recording,) = run.recordings
    return recording


def told(recording: Recording, kind: str, *fields: str) -> list[Any]:
    """These fields of every event of a kind; all of them if none is named."""
    events = [event for event in recording.events if event["event"] == kind]
    return [tuple(event.get(field) for field in fields) if len(fields) > 1 else event[fields[0]] for event in events]


def misuse_of(recording: Recording) -> dict[str, int]:
    """The last count of each kind."""
    return dict(told(recording, "misuse", "kind", "count"))


def test_a_loop_without_torch_is_recorded_as_it_says(tmp_path: Path) -> None:
    """A JAX loop has no hook in it: its own words make its steps, its phases and its spans."""
    run = ran("loop", tmp_path)

    recording = only(run)
    assert in_good_order(recording)
    assert [phases_of(step) for step in recording.steps] == [
        ["data_wait", "custom.roll_out", "forward", "custom.roll_out", "custom.score", "custom.roll_out"]
    ] * 3
    assert [early.phase.wire for early in recording.early] == ["custom.tokenize"]
    assert told(recording, "progress", "step", "global_step") == [(0, 100)]
    assert told(recording, "span", "name", "state", "ok", "attributes") == [
        ("training.init.model", "model_init", True, None),
        ("training.validation", "validation", True, {"set": "held-out", "training.validation.iterations": 4}),
        ("training.loop", None, True, {"training.steps": 3}),
        ("training.custom.export", None, True, {"format": "onnx", "files": 3}),
        ("training.application", None, True, {"training.steps": 3}),
    ]
    assert told(recording, "user_event", "name", "step", "attributes") == [
        ("reward", step, {"mean": 0.5}) for step in range(3)
    ]
    assert told(recording, "configured", "values", "tags")[0] == (
        {"training.global_batch_size": 8, "training.perf_tag": "8b", "training.baseline": False},
        {"team": "vision"},
    )
    assert run.lines[-1]["warned"] == {}


def test_callbacks_are_the_same_scopes(tmp_path: Path) -> None:
    """A framework has hooks for a begin and an end, and no place for a `with`."""
    run = ran("callbacks", tmp_path)

    recording = only(run)
    assert [phases_of(step) for step in recording.steps] == [["forward", "custom.mine!"]] * 2
    assert told(recording, "span", "name") == ["training.validation", "training.loop", "training.application"]
    assert run.lines[-1]["warned"] == {}


def test_decorators_are_around_calls(tmp_path: Path) -> None:
    """An asynchronous function is in its phase until it has ended, and a generator is nobody's."""
    recording = only(ran("decorators", tmp_path))

    assert [phases_of(step) for step in recording.steps] == [
        ["custom.plain", "custom.waiting"],
        ["custom.plain"],
        ["custom.plain"],
    ]
    assert in_good_order(recording)


def test_exceptions_are_recorded_and_pass(tmp_path: Path) -> None:
    """The script sees its own exception, and telemetry sees where it went through, and not a word of its message."""
    run = ran("failures", tmp_path)

    recording = only(run)
    spans = told(recording, "span", "name", "ok", "attributes")
    failed = {"error.type": "ValueError"}
    assert spans == [
        ("training.custom.t", False, failed),
        ("training.validation", False, {"training.validation.iterations": 0, **failed}),
        ("training.init.x", False, failed),
    ]
    assert len(recording.steps) == 2  # the one that failed was not completed: its time is in the next
    assert any(interval.failed for interval in recording.steps[1].intervals)
    assert phases_of(recording.steps[1]) == ["data_wait"]
    assert "secret" not in str(recording.events)
    assert not recording.invalid
    assert recording.unfinished is not None
    assert phases_of(recording.unfinished) == ["data_wait"]


def test_checkpoints_are_what_the_script_says(tmp_path: Path) -> None:
    """The engine resumes from the step a save was made at, whoever wrote the file."""
    recording = only(ran("checkpoints", tmp_path / "state", str(tmp_path / "model.bin")))

    kinds = told(recording, "checkpoint", "kind", "step", "ok", "blocking", "staging", "bytes", "run_step")
    assert kinds == [
        ("load", 0, True, True, False, None, 4),
        ("save", 2, True, True, False, 5, None),
        ("save", 2, True, True, True, None, None),
        ("save", 2, True, False, False, None, None),
        ("save", 3, True, False, False, 5, None),
    ]
    files = told(recording, "checkpoint", "file")
    assert files[0] == files[1] == files[4] != ""
    assert files[2:4] == ["", ""]
    assert in_good_order(recording)


@pytest.mark.parametrize("kind", MISUSE)
def test_misuse_is_counted_said_once_and_never_raised(kind: str, tmp_path: Path) -> None:
    """A mistake in a call that is made at each step must not end a run, nor fill its log."""
    run = ran(kind, tmp_path)

    recording = only(run) if run.recordings or kind != "end_without_start" else None
    warned = {cause: count for cause, count in run.lines[-1]["warned"].items() if cause != "phases"}
    assert warned == {f"misuse.{kind}": MISUSE[kind]}
    assert run.stderr.count("trainspan: trainspan.") == 1
    assert run.stderr.count(SAID.get(kind, "trainspan: trainspan.")) == 1
    if recording is not None:
        assert misuse_of(recording) == {kind: MISUSE[kind]}
        assert not recording.invalid


def test_steps_are_whole_whatever_is_misused_in_them(tmp_path: Path) -> None:
    """What is ignored must leave nothing behind: the next phase begins where the rank is."""
    nested = only(ran("nested", tmp_path / "n"))
    crossed = only(ran("crossed", tmp_path / "c"))
    handed_over = only(ran("thread", tmp_path / "t"))
    names = only(ran("names", tmp_path / "m"))

    assert [phases_of(step) for step in nested.steps] == [[]]
    assert [phases_of(step) for step in crossed.steps] == [["custom.a", "custom.b"]]
    assert [phases_of(step) for step in handed_over.steps] == [[], ["custom.handed_over"]]
    assert told(handed_over, "span", "name") == ["training.custom.upload"]
    phases = Counter(phases_of(names.steps[0]))
    assert phases["custom.other"] == 9
    assert len(phases) == 32


def test_events_of_the_script_leave_room_for_checkpoints(tmp_path: Path) -> None:
    """An event at each step must not take from the engine which step a restart resumes at."""
    recording = only(ran("much", tmp_path))

    told_of = Counter(event["event"] for event in recording.events)
    assert told_of["checkpoint"] == 1
    assert told_of["progress"] == 1000
    assert 20_000 < told_of["user_event"] < 60_000
    assert in_good_order(recording)


def test_forked_child_of_a_loop_leaves_it_alone(tmp_path: Path) -> None:
    """A DataLoader's worker is forked inside of whatever is open, and marks what it does itself."""
    run = ran("fork", tmp_path)

    recording = only(run)
    child = next(line["child"] for line in run.lines if "child" in line)
    assert child == {"misuse.fork": 3}
    assert [phases_of(step) for step in recording.steps] == [["custom.mine"]]
    assert told(recording, "user_event", "name") == []
    assert in_good_order(recording)


def test_forked_child_that_trains_has_a_recording_of_its_own(tmp_path: Path) -> None:
    """Its names are told in it: the parent's recording is not what its reader sees."""
    run = ran("forked_rank", tmp_path)

    child = next(line["child"] for line in run.lines if "child" in line)
    of_child = next(recording for recording in run.recordings if recording.identity.pid == child)
    of_parent = next(recording for recording in run.recordings if recording.identity.pid != child)
    assert run.exit_code == 0, run.stderr
    assert [phases_of(step) for step in of_child.steps] == [["custom.shared", "custom.own", "custom.shared"]] * 2
    assert [phases_of(step) for step in of_parent.steps] == [["custom.shared"]]
    assert told(of_child, "progress", "step", "global_step") == [(0, 0)]
    assert in_good_order(of_child)
    assert in_good_order(of_parent)


def test_each_call_looks_first_whether_it_is_off() -> None:
    """Whatever is made ready before that is paid by every script that nobody looks at."""
    run = start("spoken.py", "off_looks_first", TRAINSPAN_ENABLED="").ended()

    assert run.exit_code == 0, run.stderr
    calls = run.lines[0]["calls"]
    assert {name: made for name, made in calls.items() if made} == {}
    assert len(calls) > 50


def test_nothing_is_done_while_it_is_off() -> None:
    """The calls stay in the script when nobody looks."""
    run = start("spoken.py", "off", TRAINSPAN_ENABLED="").ended()

    assert run.exit_code == 0, run.stderr
    assert run.lines[-1]["warned"] == {}
    assert run.stderr == ""
    assert "TRAINSPAN_ENABLED" not in os.environ
