"""Which number the next attempt of a run has, where nobody counts its restarts: one more than its run folder knows.

For who decides alone: a process that trains by itself, or the launcher of all ranks. Ranks that are started side by
side would each find another number.

    <run folder>/attempts/<number>    an empty file for each attempt that was begun so
"""

import contextlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from trainspan.errors import RecordingRefused
from trainspan.identity import Identity, is_new
from trainspan.recording import places
from trainspan.role import Role, role_of
from trainspan.settings import Settings, state_dir

MOST_DIGITS: Final = 9

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
    if not is_open(identity, settings, environ) or role_of(sys.orig_argv, environ, identity.pid) != Role.RANK:
        return identity
    folder = places.run_folder(state_dir(settings, environ), identity.run)
    key = identity.pid, folder
    if key in _taken:
        return identity._replace(attempt=_taken[key])
    if not begins:
        return identity._replace(attempt=max(identity.attempt, next_of(folder)))
    try:
        _taken[key] = take_next(folder, identity.attempt, undo)
    except (OSError, RecordingRefused):
        return identity  # who records says what is wrong with the folder
    if undo is not None:
        undo.callback(_taken.pop, key, None)
    return identity._replace(attempt=_taken[key])


def is_open(identity: Identity, settings: Settings, environ: Mapping[str, str]) -> bool:
    """Whether nobody gives the attempt its number: a process trains alone, in a run that has a name.

    A count of the scheduler's is only the least that it can be.
    """
    counted = settings.attempt is not None or "TORCHELASTIC_RESTART_COUNT" in environ
    return not counted and identity.world_size < 2 and not is_new(identity)


def next_of(folder: Path) -> int:
    """The number of the next attempt of the run in `folder`, which need not exist."""
    try:
        known = [int(name) for name in os.listdir(folder / "attempts") if _is_number(name)]
    except OSError:
        return 0
    return max(known, default=-1) + 1


def take(folder: Path, attempt: int, undo: contextlib.ExitStack | None = None) -> bool:
    """Note that `attempt` has begun; False if it was noted already. `undo` takes back what was made for it.

    Raises:
        OSError: the folder cannot be used.
        RecordingRefused: likewise.
    """
    place = places.make_private(places.make_private(folder, undo=undo) / "attempts", undo=undo)
    note = place / str(attempt)
    with contextlib.suppress(FileExistsError):
        os.close(os.open(note, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, 0o600))
        if undo is not None:
            undo.callback(note.unlink, missing_ok=True)
        return True
    return False


def take_next(folder: Path, least: int, undo: contextlib.ExitStack | None = None) -> int:
    """Begin the next attempt, whose number is `least` or more, and which nobody else begins; `undo`: as of `take`.

    Raises:
        OSError: the folder cannot be used.
        RecordingRefused: likewise.
    """
    attempt = max(least, next_of(folder))
    while not take(folder, attempt, undo):
        attempt += 1
    return attempt


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdecimal() and len(name) <= MOST_DIGITS
