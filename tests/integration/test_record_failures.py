"""Exceptions in the middle of each phase: they reach the user as they are, and what follows is recorded right."""

import re

import pytest

from tests.integration.recorded import Pair, in_good_order, phases_of, run_both
from trainspan.relay.timeline.records import phase_of_end

PHASES = ("data_wait", "forward", "backward", "grad_clip", "optimizer")

STEP = ["data_wait", "data_wait", "h2d", "forward", "backward", "grad_clip", "optimizer"]
BEFORE = {
    "data_wait": ["data_wait", "data_wait!"],
    "forward": ["data_wait", "data_wait", "h2d", "forward!"],
    "backward": ["data_wait", "data_wait", "h2d", "forward", "backward!"],
    "grad_clip": ["data_wait", "data_wait", "h2d", "forward", "backward", "grad_clip!"],
    "optimizer": ["data_wait", "data_wait", "h2d", "forward", "backward", "grad_clip", "optimizer!"],
}
"""What an iteration shows in which a phase fails; the step goes on until an optimizer has stepped."""

THEIRS = re.compile(r'^ *File "[^"]*/tests/[^"]*", line .*\n.*$|^\S.*$', re.MULTILINE)
"""The frames of the script in a traceback, with their source, and every line that stands at the margin."""


@pytest.fixture(scope="module")
def failures(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """A loop that catches what fails and goes on; then, for each phase, one that does not."""
    return run_both("failures.py", "", *PHASES, state=tmp_path_factory.mktemp("failures"))


def test_loop_that_goes_on_is_recorded_right(failures: Pair) -> None:
    """Torch does not call the hook behind an optimizer's step that fails; nobody says that the phase is over."""
    recording = failures.recording_of("failures")

    expected = [phases for phase in PHASES for phases in (STEP, [*BEFORE[phase], *STEP])]
    assert [phases_of(step) for step in recording.steps] == expected
    assert in_good_order(recording)


def test_what_is_caught_is_what_was_raised(failures: Pair) -> None:
    """Type, arguments, attributes, context, and the user's own frames: handlers decide by them."""
    [line] = [line for line in failures.recorded.lines if line.get("scenario") == "failures"]

    assert [caught[2] for caught in line["caught"]] == list(PHASES)
    assert all(plain for _type, _arguments, _phase, plain, _frames in line["caught"])
    assert failures.differences("pid") == [{}] * 7


def test_uncaught_exception_ends_the_process_as_before(failures: Pair) -> None:
    """Exit code and traceback: what is new in it are our frames, between those of the script."""
    codes = {line["name"]: line["exit_code"] for line in failures.recorded.lines if "name" in line}

    assert codes == {"": 0, **dict.fromkeys(PHASES, 1)}
    assert THEIRS.findall(failures.recorded.stderr) == THEIRS.findall(failures.alone.stderr)
    assert len(THEIRS.findall(failures.alone.stderr)) > 5 * 5
    assert failures.alone.stderr.count("Trouble: ") == 5


@pytest.mark.parametrize("phase", PHASES)
def test_uncaught_exception_is_recorded_with_its_phase(failures: Pair, phase: str) -> None:
    """The first question after a crash: what was the rank doing?"""
    [pid] = [line["pid"] for line in failures.recorded.lines if line.get("name") == phase]
    [recording] = [found for found in failures.recorded.recordings if found.identity.pid == pid]

    [exception] = [event for event in recording.events if event["event"] == "exception"]
    assert exception["type"] == "__main__.Trouble"
    assert "message" not in exception
    assert exception["stack"][-1].endswith(" in may_fail")
    assert recording.unfinished is not None
    assert phase_of_end(recording.unfinished).wire == phase
