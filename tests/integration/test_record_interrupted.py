"""Ctrl-C in a notebook, and a signal's handler that raises: the cell is run again, and is recorded."""

from pathlib import Path

from tests.integration.recorded import start


def test_an_interrupt_at_any_place_of_ours_leaves_no_phase_open(tmp_path: Path) -> None:
    """A phase that nobody leaves holds no other: nothing would be recorded from then on."""
    run = start("interrupted.py", state=tmp_path).ended()

    (said,) = run.lines
    assert run.exit_code == 0, run.stderr
    assert said["places"] > 60
    assert said["stuck"] == []
