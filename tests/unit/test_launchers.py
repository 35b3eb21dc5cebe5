"""What launchers say of how their workers end, read with distrust: a log can hold anything."""

from pathlib import Path
from typing import Any

import pytest

from tests.unit.recordings import CAPACITY, opened, record_into
from trainspan import settings
from trainspan.recording.reader import RecordingReader
from trainspan.recording.writer import RecordingWriter
from trainspan.relay.launchers import Launchers, Word
from trainspan.relay.tail import Sighting
from trainspan.sampling import SpanNames, sampling_from
from trainspan.testing.builders import identity_of


def heard(folder: Path, *events: dict[str, Any], ended: str | None = None) -> Launchers:
    """Launchers that have heard this of one, on node0."""
    launchers = Launchers(sampling_from({})[0], SpanNames.of(settings.load({})[0]), {})
    reader = opened(record_into(folder).writer.path)
    launchers.take(Sighting(reader, [], 0, list(events), ended), 0)
    return launchers


def worker(folder: Path, pid: int, *, host: str = "node0", start_ns: int = 0) -> RecordingReader:
    """The recording of a worker."""
    identity = identity_of()._replace(pid=pid, host=host)
    return opened(RecordingWriter.create(folder, identity, CAPACITY, start_ns).path)


def test_end_of_a_worker_is_told_by_signal_or_exit_code(tmp_path: Path) -> None:
    """The relay is nobody's parent: it sees a process vanish, and not why."""
    killed = {"event": "worker_ended", "ts": 1, "pid": 7, "exit_code": -9, "signal": "SIGKILL"}
    exited = {"event": "worker_ended", "ts": 2, "pid": 8, "exit_code": 3, "signal": None}
    well = {"event": "worker_ended", "ts": 3, "pid": 9, "exit_code": 0, "signal": None}
    stopped = {"event": "worker_stopped", "ts": 4, "pid": 10, "signal": "SIGTERM"}
    workers = {pid: worker(tmp_path, pid) for pid in range(6, 12)}

    launchers = heard(tmp_path, killed, exited, well, stopped)

    told = {pid: launchers.ended(one) for pid, one in workers.items()}
    assert told == {6: None, 7: Word(1, "SIGKILL"), 8: Word(2, "exit code 3"), 9: Word(3, None), 10: None, 11: None}
    assert [pid for pid, one in workers.items() if launchers.stopped(one)] == [10]
    assert [pid for pid, one in workers.items() if launchers.has_told(one)] == [7, 8, 9, 10]


def test_word_is_about_the_process_that_had_the_number_then(tmp_path: Path) -> None:
    """In a container that is started again, and in the pod beside it, the same number is another process."""
    launchers = heard(tmp_path, {"event": "worker_ended", "ts": 50, "pid": 7, "exit_code": -9, "signal": "SIGKILL"})

    ended = launchers.ended(worker(tmp_path, 7, start_ns=40))
    later = launchers.ended(worker(tmp_path, 7, start_ns=60))
    elsewhere = launchers.ended(worker(tmp_path, 7, host="node1"))

    assert ended == Word(50, "SIGKILL")
    assert (later, elsewhere) == (None, None)


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
        {"event": "worker_stopped", "pid": 7, "signal": "SIGTERM", "ts": None},
    ],
)
def test_what_makes_no_sense_is_passed_over(tmp_path: Path, event: dict[str, Any]) -> None:
    """Whoever can write into the folder of a run can write this."""
    launchers = heard(tmp_path, {"ts": 5, **event})

    assert not launchers.has_told(worker(tmp_path, 7))


def test_launcher_lives_until_its_recording_has_ended(tmp_path: Path) -> None:
    """So long the end of a worker waits for its word."""
    assert heard(tmp_path).living
    assert not heard(tmp_path, ended="closed").living
