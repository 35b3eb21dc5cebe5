"""What launchers say of how their workers end, read with distrust: a log can hold anything."""

from pathlib import Path
from typing import Any

import pytest

from tests.unit.recordings import opened, record_into
from trainspan import settings
from trainspan.relay.launchers import Launchers
from trainspan.relay.tail import Sighting
from trainspan.sampling import SpanNames, sampling_from


def heard(folder: Path, *events: dict[str, Any], ended: str | None = None) -> Launchers:
    """Launchers that have heard this of one."""
    launchers = Launchers(sampling_from({})[0], SpanNames.of(settings.load({})[0]), {})
    reader = opened(record_into(folder).writer.path)
    launchers.take(Sighting(reader, [], 0, list(events), ended), 0)
    return launchers


def test_end_of_a_worker_is_told_by_signal_or_exit_code(tmp_path: Path) -> None:
    """The relay is nobody's parent: it sees a process vanish, and not why."""
    killed = {"event": "worker_ended", "pid": 7, "exit_code": -9, "signal": "SIGKILL"}
    exited = {"event": "worker_ended", "pid": 8, "exit_code": 3, "signal": None}
    well = {"event": "worker_ended", "pid": 9, "exit_code": 0, "signal": None}
    stopped = {"event": "worker_stopped", "pid": 10, "signal": "SIGTERM"}

    launchers = heard(tmp_path, killed, exited, well, stopped)

    assert launchers.causes == {7: "SIGKILL", 8: "exit code 3"}
    assert launchers.stopped == {10: "SIGTERM"}
    assert [pid for pid in range(6, 12) if launchers.has_told(pid)] == [7, 8, 9, 10]


@pytest.mark.parametrize(
    "event",
    [
        {"event": "worker_ended"},
        {"event": "worker_ended", "pid": "7", "signal": "SIGKILL"},
        {"event": "worker_ended", "pid": True, "exit_code": 1},
        {"event": "worker_ended", "pid": 7, "exit_code": "3", "signal": 9},
        {"event": "worker_stopped", "pid": 7, "signal": None},
        {"event": "worker_stopped", "pid": None, "signal": "SIGTERM"},
        {"event": "worker_resting", "pid": 7, "signal": "SIGTERM"},
    ],
)
def test_what_makes_no_sense_is_passed_over(tmp_path: Path, event: dict[str, Any]) -> None:
    """Whoever can write into the folder of a run can write this."""
    launchers = heard(tmp_path, event)

    assert not launchers.has_told(7)


def test_launcher_lives_until_its_recording_has_ended(tmp_path: Path) -> None:
    """So long the end of a worker waits for its word."""
    assert heard(tmp_path).living
    assert not heard(tmp_path, ended="closed").living
