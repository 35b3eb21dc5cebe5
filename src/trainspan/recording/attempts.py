"""Which number the next attempt of a run has, where nobody counts its restarts: one more than its run folder knows.

For who decides alone: a process that trains by itself, or the launcher of all ranks. Ranks that are started side by
side would each find another number, unless all of them know which launch they are of: then the first one takes it.

    <run folder>/attempts/<number>    a file for each attempt that was begun so; empty, or with the launch whose it is
"""

import contextlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from trainspan.errors import RecordingRefused
from trainspan.identity import Identity, is_new, launch_of
from trainspan.recording import places
from trainspan.role import Role, role_of
from trainspan.settings import Settings, state_dir

MOST_DIGITS: Final = 9

LAUNCHES_AT_A_TIME: Final = 16
"""How many of the newest attempts are looked at for a rank's own, however many there were."""

_LAUNCH_BYTES: Final = 128

_taken: dict[tuple[int, Path], int] = {}
"""By process and run folder, what was found out: a process is one attempt, however often it asks."""


def numbered(
    identity: Identity,
    settings: Settings,
    environ: Mapping[str, str],
    *,
    begins: bool,
    undo: contextlib.ExitStack | None = None,
) -> Identity:
    """`identity` with the number of its attempt, if that is for this process to find out.

    Args:
        identity: as the environment has it.
        settings: in force.
        environ: of the process.
        begins: the attempt begins with this: from now on nobody else gets the number.
        undo: gives it back.
    """
    launch = launch_together(identity, settings, environ)
    alone = is_open(identity, settings, environ) and role_of(sys.orig_argv, environ, identity.pid) == Role.RANK
    if not alone and launch is None:
        return identity
    folder = places.run_folder(state_dir(settings, environ), identity.run)
    key = identity.pid, folder
    if key in _taken:
        return identity._replace(attempt=_taken[key])
    if not begins:
        return identity._replace(attempt=max(identity.attempt, next_of(folder, launch)))
    try:
        _taken[key] = take_next(folder, identity.attempt, undo, launch)
    except (OSError, RecordingRefused):
        return identity  # who records says what is wrong with the folder
    if undo is not None:
        undo.callback(_taken.pop, key, None)
    return identity._replace(attempt=_taken[key])


def is_open(identity: Identity, settings: Settings, environ: Mapping[str, str]) -> bool:
    """Whether nobody gives the attempt its number: a process trains alone, in a run that has a name.

    A count of the scheduler's is only the least that it can be.
    """
    return not _is_counted(settings, environ) and identity.world_size < 2 and not is_new(identity)


def _is_counted(settings: Settings, environ: Mapping[str, str]) -> bool:
    return settings.attempt is not None or "TORCHELASTIC_RESTART_COUNT" in environ


def launch_together(identity: Identity, settings: Settings, environ: Mapping[str, str]) -> str | None:
    """The launch that this is a rank of, if all its ranks find out together which attempt of a named run it is."""
    together = identity.launcher == "user" and identity.world_size > 1 and not _is_counted(settings, environ)
    return launch_of(environ) if together else None


def next_of(folder: Path, launch: str | None = None) -> int:
    """The number of the next attempt of the run in `folder`, which need not exist, or the one that `launch` has."""
    try:
        known = [int(name) for name in os.listdir(folder / "attempts") if _is_number(name)]
    except OSError:
        return 0
    newest = sorted(known, reverse=True)[:LAUNCHES_AT_A_TIME]
    mine = [attempt for attempt in newest if launch and _launch_in(folder / "attempts" / str(attempt)) == launch]
    return mine[0] if mine else max(known, default=-1) + 1


def take(folder: Path, attempt: int, undo: contextlib.ExitStack | None = None, launch: str | None = None) -> bool:
    """Note that `attempt` has begun; False if it was noted already. `undo` takes back what was made for it.

    Args:
        folder: of the run.
        attempt: the number.
        undo: see above.
        launch: whose ranks all may begin it; None: only one process may.

    Raises:
        OSError: the folder cannot be used.
        RecordingRefused: likewise.
    """
    place = places.make_private(places.make_private(folder, undo=undo) / "attempts", undo=undo)
    note = place / str(attempt)
    with contextlib.suppress(FileExistsError):
        if launch is None:
            os.close(_created(note))
        else:
            _link(note, launch)
        if undo is not None:
            undo.callback(note.unlink, missing_ok=True)
        return True
    return launch is not None and _launch_in(note) == launch


def take_next(folder: Path, least: int, undo: contextlib.ExitStack | None = None, launch: str | None = None) -> int:
    """Begin the next attempt, whose number is `least` or more, and which nobody else begins.

    Args:
        folder: of the run.
        least: the number may be.
        undo: as of `take`, and so is `launch`.
        launch: who begins it together.

    Raises:
        OSError: the folder cannot be used.
        RecordingRefused: likewise.
    """
    attempt = max(least, next_of(folder, launch))
    while not take(folder, attempt, undo, launch):
        attempt += 1
    return attempt


def _created(path: Path) -> int:
    return os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, 0o600)


def _link(note: Path, launch: str) -> None:
    """Make the file with what it says, so that nobody sees the one without the other; on any number of hosts."""
    scratch = note.with_name(f".{os.urandom(8).hex()}")
    descriptor = _created(scratch)
    try:
        os.write(descriptor, launch.encode())
        os.link(scratch, note)
    finally:
        os.close(descriptor)
        scratch.unlink(missing_ok=True)


def _launch_in(note: Path) -> str:
    """What a file says; nothing if it is gone, or no file."""
    try:
        descriptor = os.open(note, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return ""
    try:
        return os.read(descriptor, _LAUNCH_BYTES).decode(errors="replace")
    except OSError:
        return ""
    finally:
        os.close(descriptor)


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdecimal() and len(name) <= MOST_DIGITS
