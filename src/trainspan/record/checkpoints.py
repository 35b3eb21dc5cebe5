"""What is told of a checkpoint, once it has been saved or loaded: by the hooks, or by the script itself.

The event `checkpoint` says what came of it, so that the relay knows which step a restart resumes at:

    kind      save or load
    start_ns, end_ns
    ok        False: an exception left it
    blocking  False: another thread did it, while training went on
    staging   True: the part of an asynchronous save that blocks; another event tells what came of the save
    file      hash of the file's absolute path, for the engine
    path      what may be told: that hash, the path or nothing, as TRAINSPAN_CHECKPOINT_PATH has it
    step      number of the next step when the call began; of an asynchronous save, when its staging began
    bytes     size of the file after a save; null when it is no single file
    directory_bytes    what a save has written into a directory, where that is known (`record/directory_size.py`)

An event is written only for what has a file: not for a buffer in memory, not for what runs inside another phase (a
Dataset that loads a tensor a sample), and in another thread only for saves to a path.
"""

import contextlib
import os
from collections import deque
from collections.abc import Callable
from hashlib import blake2b
from time import monotonic_ns
from typing import Any, Final

from trainspan.record.directory_size import bytes_written_into
from trainspan.record.marker import FOREIGN, Marker

LOADS_TOLD: Final = 1024
"""Loads of one process that have an event: a program may read a file a sample, and the event log has a bound."""

EARLY_TOLD: Final = 16
"""Events before the recording is open: a process that never trains must not collect them."""

MOST_STAGED: Final = 64
"""Asynchronous saves under way of which the step is remembered; some never come back to this process."""

Teller = Callable[..., None]


class Cover:
    """What is saved or loaded inside of what the script says is one checkpoint.

    Attributes:
        kind: save or load.
        path: of the largest file; None: nothing with a path.
        staging: whether a part of it goes on in the background.
    """

    def __init__(self, kind: str):
        self.kind = kind
        self.path: str | bytes | None = None
        self.staging = False
        self._size_bytes = -1

    def add(self, path: str | bytes, size_bytes: int | None, *, staging: bool) -> None:
        """Take in one more file, or folder."""
        self.staging |= staging
        if (size_bytes or 0) > self._size_bytes:
            self.path, self._size_bytes = path, size_bytes or 0


class Notes:
    """Writes the events, and knows when to stop.

    Attributes:
        cover: what the script says is a checkpoint, while it lasts: what is saved and loaded in it is a part of it.

    Args:
        marker: knows the step.
        tell: `tell("checkpoint", **fields)` appends an event.
        is_recording: whether it goes to a recording, or is kept until there is one.
        path_shown: what is told of a path: `hash`, `plain` or `omit`.
        leads: whether this is the rank that measures directories.
    """

    def __init__(
        self,
        marker: Marker,
        tell: Teller,
        is_recording: Callable[[], bool],
        path_shown: str = "hash",
        leads: Callable[[], bool] = lambda: True,
    ):
        self._marker = marker
        self._tell = tell
        self._is_recording = is_recording
        self._path_shown = path_shown
        self._leads = leads
        self._staged: deque[tuple[str, int, int]] = deque(maxlen=MOST_STAGED)
        self.cover: Cover | None = None
        self._loads = 0
        self._early = 0

    def stage(self, file: Any, step: int) -> None:
        """Remember which step an asynchronous save is of: the thread that writes it begins later."""
        path = _path_of(file, blocking=False)
        if path is not None:
            self.stage_path(path, step, monotonic_ns())

    def stage_path(self, path: str | bytes | None, step: int, start_ns: int) -> None:
        """The same, where it is known when it began, and the path; None: only the script knows that."""
        self._staged.append((_name_of(path) if path is not None else "", step, start_ns))

    def note_covered(self, kind: str, file: Any, staging: bool) -> None:
        """Remember what was saved or loaded in the checkpoint that the script says this is."""
        path = _path_of(file, blocking=True)
        if self.cover is not None and path is not None and kind == self.cover.kind:
            self.cover.add(path, _size_of(path), staging=staging)

    def note(self, kind: str, outer: int, file: Any, start_ns: int, step: int, ok: bool, staging: bool) -> None:
        """Tell of one call that has ended. `outer`: what `enter` said to it."""
        early = outer == FOREIGN and not self._is_recording()
        blocking = outer >= 0 or early
        path = _path_of(file, blocking=blocking)
        if path is not None and not (kind == "load" and not blocking):
            self.tell(kind, path, start_ns, step, ok=ok, blocking=blocking, staging=staging)

    def tell(
        self,
        kind: str,
        path: str | bytes | None,
        start_ns: int,
        step: int,
        *,
        ok: bool,
        blocking: bool,
        staging: bool,
        **more: Any,
    ) -> None:
        """Tell of one checkpoint. `path`: None: only the script knows where it lies. `more`: other fields."""
        if not self._has_room(kind, early=not self._is_recording()):
            return
        name = _name_of(path) if path is not None else ""
        since_ns = start_ns
        if kind == "save" and (not ok if staging else not blocking):
            step, since_ns = self._unstage(name, step, start_ns)
        shown = {"hash": name, "plain": os.path.abspath(os.fsdecode(path))} if path is not None else {}
        end_ns = monotonic_ns()
        written = path if kind == "save" and ok and not staging else None
        self._tell(
            "checkpoint",
            kind=kind,
            start_ns=start_ns,
            end_ns=end_ns,
            ok=ok,
            blocking=blocking,
            staging=staging,
            file=name,
            path=shown.get(self._path_shown),
            step=step,
            bytes=None if written is None else _size_of(written),
            directory_bytes=None if written is None else self._directory_size(written, end_ns - since_ns),
            **more,
        )

    def _has_room(self, kind: str, early: bool) -> bool:
        self._loads += kind == "load"
        self._early += early
        return self._loads <= LOADS_TOLD and (not early or self._early <= EARLY_TOLD)

    def _directory_size(self, path: str | bytes, took_ns: int) -> int | None:
        if not self._leads():
            return None
        with contextlib.suppress(OSError):  # a framework removes or renames what it has written
            return bytes_written_into(path, took_ns) if os.path.isdir(path) else None
        return None

    def _unstage(self, name: str, step: int, start_ns: int) -> tuple[int, int]:
        """The step that was staged under that name the longest ago, and when; what is given if none was."""
        found = next((staged for staged in self._staged if staged[0] == name), None)
        if found is None:
            return step, start_ns
        self._staged.remove(found)
        return found[1:]


def _path_of(file: Any, *, blocking: bool) -> str | bytes | None:
    """The path of what was saved to or loaded from; None when it has none that counts."""
    if isinstance(file, str | bytes | os.PathLike):
        return os.fspath(file)
    # Of an open file in another thread nobody can say whether it is a checkpoint or a part of one.
    named = (getattr(file, "name", None), getattr(file, "path", None)) if blocking else ()
    return next((name for name in named if isinstance(name, str)), None)


def _name_of(path: str | bytes) -> str:
    return blake2b(os.fsencode(os.path.abspath(path)), digest_size=8).hexdigest()


def _size_of(path: str | bytes) -> int | None:
    return os.stat(path).st_size if os.path.isfile(path) else None
