"""How a command that `trainspan run` has started came to its end: who started it knows, and tells the relay so.

    <state>/launches/<launch id>    two lines of JSON: the process that was started, and how it ended

    {"ts": 81234567890, "event": "worker_started", "pid": 4711}
    {"ts": 91234567890, "event": "worker_ended", "pid": 4711, "exit_code": 1, "signal": null}

A `trainspan run` within another appends its own. The outermost removes the file when the relays have left.
"""

import contextlib
import json
import os
import re
from pathlib import Path
from signal import Signals
from time import monotonic_ns
from typing import Any, Final

from trainspan.errors import RecordingRefused
from trainspan.recording import places

_NAME: Final = re.compile(r"\w[\w.:-]{0,127}", re.ASCII)
_MOST_BYTES: Final = 1 << 16


class LastWords:
    """Those of one launch.

    Args:
        state: the state directory.
        launch: its id; None, or one that names no file: nobody tells anything.
    """

    def __init__(self, state: Path, launch: str | None):
        self._path = state / "launches" / launch if launch and _NAME.fullmatch(launch) else None
        self._makes_state = False

    def started(self, pid: int) -> None:
        """Note the process that was started."""
        self._append({"event": "worker_started", "pid": pid})

    def ended(self, pid: int, exit_code: int) -> None:
        """Note how it ended. `exit_code`: below zero the number of the signal that killed it."""
        self._append({"event": "worker_ended", "pid": pid, "exit_code": exit_code, "signal": signal_of(exit_code)})

    def read(self) -> list[dict[str, Any]]:
        """What has been noted so far; nothing where that cannot be read."""
        events = []
        with contextlib.suppress(OSError, ValueError, RecursionError):
            for line in self._bytes().splitlines():
                event = json.loads(line)
                if isinstance(event, dict) and "event" in event:
                    events.append(event)
        return events

    def forget(self) -> None:
        """Remove the file, and the folders that were made for it and hold nothing else."""
        if self._path is not None:
            with contextlib.suppress(OSError):
                self._path.unlink()
                self._path.parent.rmdir()
                if self._makes_state:
                    self._path.parent.parent.rmdir()

    def _bytes(self) -> bytes:
        if self._path is None:
            return b""
        with self._path.open("rb") as file:
            return file.read(_MOST_BYTES)

    def _append(self, event: dict[str, Any]) -> None:
        # What cannot be noted is not known, as without `trainspan run`; the ranks say what is wrong with the place.
        if self._path is None:
            return
        with contextlib.suppress(OSError, RecordingRefused):
            self._makes_state = self._makes_state or not self._path.parent.parent.exists()
            places.make_private(self._path.parent)
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(self._path, flags, 0o600)
            try:
                os.write(descriptor, json.dumps({"ts": monotonic_ns(), **event}).encode() + b"\n")
            finally:
                os.close(descriptor)


def signal_of(exit_code: int) -> str | None:
    """The signal that has killed a process; None: none has.

    Args:
        exit_code: as Python has it, below zero the number of the signal.
    """
    if exit_code >= 0:
        return None
    try:
        return Signals(-exit_code).name
    except ValueError:  # a real-time signal
        return f"signal {-exit_code}"
