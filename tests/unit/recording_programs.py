"""Processes that record: each function is one, started by `start` and spoken with over its pipes."""

import atexit
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from tests.unit.recordings import CAPACITY, FIRST_WORD, Recording, record_into
from trainspan.errors import RecordingRefused
from trainspan.identity import Assignment
from trainspan.names import Phase
from trainspan.record.marker import make_marker
from trainspan.record.recorder import Recorder
from trainspan.recording import layout
from trainspan.recording.writer import RecordingWriter
from trainspan.settings import load
from trainspan.testing.builders import identity_of

REPOSITORY = Path(__file__).resolve().parents[2]
PATIENCE_S = 60


class Program:
    """One function of this module, running in a process of its own; killed at the end of the block."""

    def __init__(self, function: Any, *arguments: object):
        command = [sys.executable, "-m", __name__, function.__name__, *map(str, arguments)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY
        )

    def __enter__(self) -> "Program":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate(timeout=PATIENCE_S)

    def said(self) -> str:
        """The next line it prints."""
        assert self._process.stdout is not None
        return self._process.stdout.readline().rstrip("\n")

    def go_on(self) -> None:
        """Let it pass its `_wait`."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def kill(self) -> None:
        """Kill it, and return when it is gone."""
        self._process.kill()
        self._process.wait(PATIENCE_S)

    def ended(self) -> int:
        """Wait for its end; its exit code."""
        return self._process.wait(PATIENCE_S)

    def runs(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None


def _say(text: object) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _wait() -> None:
    sys.stdin.readline()


def _begin(directory: str, capacity: str) -> Recording:
    recording = record_into(Path(directory), int(capacity))
    _say(recording.writer.path)
    return recording


def mark_at_full_speed(directory: str, capacity: str, marks: str) -> None:
    """Say where; then, when told, end `marks` steps without a pause and close."""
    writer, marker = _begin(directory, capacity)
    _wait()
    step = marker.step
    for _ in range(int(marks)):
        step(0)
    writer.close(time.monotonic_ns())


def die_in_a_mark(directory: str, capacity: str, marks: str) -> None:
    """End `marks` steps, store one half of the next mark and be killed."""
    writer, marker = _begin(directory, capacity)
    for _ in range(int(marks)):
        marker.step(0)
    writer.words[FIRST_WORD + 2 * (int(marks) % int(capacity)) + 1] = layout.ABORT
    os.kill(os.getpid(), signal.SIGKILL)


def live(directory: str, capacity: str) -> None:
    """Record, and wait to be killed."""
    recording = _begin(directory, capacity)
    _wait()
    recording.writer.close(1)


def live_in_run(directory: str, *runs: str) -> None:
    """Record into each of these runs, a step each; close the first when told, then the second, and so on."""
    begun_ns = time.monotonic_ns()
    writers = [RecordingWriter.create(Path(directory), identity_of(run=run), CAPACITY, begun_ns) for run in runs]
    for writer in writers:
        marker = make_marker(threading.get_ident)
        marker.attach(writer.words, CAPACITY)
        marker.step(0)
        marker.step(0)
    _say("recording")
    for writer in writers:
        _wait()
        writer.close(time.monotonic_ns())
        _say("closed")


def live_twice(directory: str, capacity: str) -> None:
    """Record, fork a child that lives on with all that was open, and wait to be killed. The child says who it is."""
    recording = _begin(directory, capacity)
    if os.fork() == 0:
        _say(os.getpid())
        threading.Event().wait(PATIENCE_S)
    _wait()
    recording.writer.close(1)


def abandon_in_a_child(directory: str, capacity: str) -> None:
    """Record, and have a forked child let go of the recording, as the recorder does after a fork."""
    writer, _marker = _begin(directory, capacity)
    child = os.fork()
    if child == 0:
        writer.abandon()
        os._exit(0)
    os.waitpid(child, 0)
    _say("abandoned")
    _wait()


def leave_at_once(directory: str, capacity: str) -> None:
    """Record, and end without running anything at exit."""
    recording = _begin(directory, capacity)
    _wait()
    os._exit(0 if recording.writer.words else 1)


def leave_unclosed(directory: str, capacity: str) -> None:
    """Record, and end as programs do, but nobody closes the recording."""
    recording = _begin(directory, capacity)
    _wait()
    recording.marker.step(0)


def leave_in_order(directory: str, capacity: str) -> None:
    """Record, close, and live on."""
    writer, _marker = _begin(directory, capacity)
    _wait()
    writer.close(time.monotonic_ns())
    _say("closed")
    _wait()


def make_many(directory: str, capacity: str, count: str) -> None:
    """When told, make `count` recordings and keep them open until told again."""
    _say("ready")
    _wait()
    recordings = [record_into(Path(directory), int(capacity)) for _ in range(int(count))]
    _say(len(recordings))
    _wait()


def record_on_a_full_disk(directory: str, capacity: str, file_bytes: str) -> None:
    """Say why no recording can be made where no file may be larger than `file_bytes`; then how many it left open."""
    before = _open_files()
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(file_bytes), int(file_bytes)))
    _say_refusal(directory, capacity)
    _say(_open_files() - before)


def record_with_few_files(directory: str, capacity: str) -> None:
    """Say why no recording can be made where the ring can be opened and mapped, and nothing else."""
    before = _open_files()
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free + 2, hard))
    _say_refusal(directory, capacity)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    _say(_open_files() - before)


def record_as_nobody(directory: str, capacity: str) -> None:
    """Say why no recording can be made in a directory that this user may not write."""
    if os.geteuid() == 0:
        os.setuid(65534)
    _say_refusal(directory, capacity)


def _open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def _say_refusal(directory: str, capacity: str) -> None:
    try:
        record_into(Path(directory), int(capacity))
    except RecordingRefused as refused:
        _say(refused)
    else:
        _say("it was made")


def append_until_full(directory: str, capacity: str, file_bytes: str) -> None:
    """Append events of 100 bytes and more to a log that may have `file_bytes`; then, with room again, one more."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    writer, _marker = _begin(directory, capacity)
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(file_bytes), hard))
    kept = [writer.append_event({"ts": number, "event": "x" * 100}) for number in range(1, 101)]
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    kept.append(writer.append_event({"ts": 101, "event": "room again"}))
    writer.close(1)
    _say(" ".join(str(number) for number, was_kept in enumerate(kept, start=1) if was_kept))


def die_in_the_making(directory: str) -> None:
    """Be killed when the recording is whole, but has not its name yet."""
    sys.addaudithook(lambda event, _: os.kill(os.getpid(), signal.SIGKILL) if event == "os.rename" else None)
    record_into(Path(directory))


def wait_in_the_making(directory: str) -> None:
    """Wait there, then record until told to end."""

    def wait(event: str, _: object) -> None:
        if event == "os.rename":
            _say("making")
            _wait()

    sys.addaudithook(wait)
    recording = record_into(Path(directory))
    _say(recording.writer.path)
    _wait()


def train_after_the_end(state: str) -> None:
    """Take a step, and another one in a handler of the process's exit that runs after the recorder's."""
    environ = {"TRAINSPAN_DIR": state, "TRAINSPAN_RELAY": "off", "TRAINSPAN_RING_MARKS": str(layout.CAPACITY_MIN)}
    marker = make_marker(threading.get_ident)
    recorder = Recorder(marker, load(environ)[0])

    def take_step() -> None:
        recorder.claim()
        marker.step(marker.enter(Phase.OPTIMIZER))
        recorder.event("taken")

    # Handlers run in reverse order, and the recorder's is registered by the first step.
    atexit.register(lambda: _say(recorder.recording))
    atexit.register(take_step)
    atexit.register(lambda: marker.resume(Phase.OTHER))
    take_step()
    marker.enter(Phase.FORWARD)


def do_as_told(state: str) -> None:
    """Be one trial after another, as who has started this process says, and the last of them until it is stopped."""
    environ = {"TRAINSPAN_DIR": state, "TRAINSPAN_RELAY": "off", "TRAINSPAN_RING_MARKS": str(layout.CAPACITY_MIN)}
    marker = make_marker(threading.get_ident)
    recorder = Recorder(marker, load(environ)[0])

    def train(assignment: Assignment, steps: int) -> None:
        recorder.assign(assignment)
        recorder.claim()
        recorder.event("trains", trial=assignment.run)
        for _ in range(steps):
            marker.step(marker.enter(Phase.OPTIMIZER))

    train(Assignment("first"), 1)
    recorder.close()
    train(Assignment("second", 4), 2)
    train(Assignment("third", 0, 1, 1, 0, 2, 2), 3)
    marker.enter(Phase.BACKWARD)
    recorder.note_stop("SIGKILL")
    recorder.note_fatal(ValueError("the others are gone"))
    marker.enter(Phase.FORWARD)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
