"""How our own failures end, in a process that is somebody else's."""

import subprocess
import sys

import pytest

from trainspan.guard import seen, warn_once


def run_python(program: str, redirection: str = "") -> subprocess.CompletedProcess[str]:
    """The result of `program` in an interpreter of its own, with a shell's redirection of its streams."""
    command = ["/bin/sh", "-c", f'exec "$0" -c "$1" {redirection}', sys.executable, program]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_warning_comes_once_for_each_cause(capsys: pytest.CaptureFixture[str]) -> None:
    """A hook that fails fails in every step: a line for each would bury the user's own output."""
    before = seen().get("test-once", 0)

    for _ in range(3):
        warn_once("test-once", "the hook is off")
    warn_once("test-another", "so is this one")

    assert before == 0
    assert capsys.readouterr().err == "trainspan: the hook is off\ntrainspan: so is this one\n"
    assert (seen()["test-once"], seen()["test-another"]) == (3, 1)


def test_warning_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """What CUDA says of an error has several, of which only the first would be ours."""
    warn_once("test-lines", "no more device times (CUDA error: an illegal access\nFor debugging:\n  a flag)")

    assert capsys.readouterr().err == (
        "trainspan: no more device times (CUDA error: an illegal access For debugging: a flag)\n"
    )


def test_counts_handed_out_are_a_copy() -> None:
    """A reader that changes the counts would silence a warning that never came."""
    warn_once("test-copy", "said")

    seen()["test-copy"] = 0

    assert seen()["test-copy"] == 1


@pytest.mark.parametrize("redirection", ["2>&-", "2>/dev/full"])
def test_warning_without_a_stderr_disturbs_nobody(redirection: str) -> None:
    """A daemon closes its stderr, a disk runs full: neither may end the training or write into its output."""
    program = "from trainspan.guard import warn_once; warn_once('cause', 'message'); print('trained')"

    ran = run_python(program, redirection)

    assert ran.stdout == "trained\n"
    assert ran.returncode == 0


def test_warning_after_stderr_was_closed_raises_nothing() -> None:
    """A script may close sys.stderr itself; the next write to it raises ValueError."""
    program = (
        "import sys; from trainspan.guard import warn_once as w; sys.stderr.close(); w('a', 'b'); print('trained')"
    )

    ran = run_python(program)

    assert ran.stdout == "trained\n"
    assert ran.returncode == 0
