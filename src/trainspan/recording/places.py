"""Where a run's files lie, and how the processes of a host agree on it without a message.

    <state>/runs/<run>/                     the run folder: what the relay writes and `trainspan report` reads
    <state>/runs/<run>/recordings/<host>    where this host's ranks record: a link to a random, private directory in
                                            the host's memory, or that directory itself
    <recording dir>/<run>/                  the same, when TRAINSPAN_RECORDING_DIR names a place

The state directory belongs to the user and is private, so a fixed name in it cannot be planted by somebody else.
`/dev/shm` belongs to everybody, so the directory there has a random name; the link, made atomically, is how the
others find it.
"""

import contextlib
import fcntl
import os
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import takewhile
from pathlib import Path

from trainspan.errors import RecordingRefused
from trainspan.recording import layout

MEMORY = Path("/dev/shm")
PRIVATE_DIR = 0o700
_PREFIX = "trainspan-"
_TRIES = 8
_STATE = "TRAINSPAN_DIR"
_CHOSEN = "TRAINSPAN_RECORDING_DIR"
_DRAFT_UNLOCKED_S = 0.5  # its writer locks a draft microseconds after it has made it


def run_folder(state: str, run: str) -> Path:
    """The folder of `run`; it need not exist."""
    return Path(state) / "runs" / run


def make_private(path: Path, variable: str = _STATE, undo: ExitStack | None = None) -> Path:
    """`path`, a directory of this user that nobody else can enter; made if missing.

    Args:
        path: of the directory.
        variable: what decides where it is, and is to be set where it cannot be there.
        undo: takes away again what was made and is empty.

    Raises:
        RecordingRefused: it cannot be made, is a link, belongs to somebody else, or is open to others.
    """
    try:
        refusal = _made(path, variable, undo)
    except OSError as error:
        raise RecordingRefused(f"{path} cannot be used ({error.strerror}); set {variable}") from error
    if refusal:
        raise RecordingRefused(refusal)
    return path


def _made(path: Path, variable: str, undo: ExitStack | None) -> str | None:
    """What keeps `path` from being private now that it is made, or None."""
    for _ in range(_TRIES - 1):
        with contextlib.suppress(FileNotFoundError):  # who was refused has just taken away what was above it
            _make(path, undo)
            return why_not_private(path, variable)
    _make(path, undo)
    return why_not_private(path, variable)


def _make(path: Path, undo: ExitStack | None) -> None:
    """Make `path` and what is missing above it; others may do so at the same time."""
    missing = [path]
    missing += takewhile(lambda above: not above.exists(), path.parents)
    for place in reversed(missing):
        with contextlib.suppress(FileExistsError):
            # What is further above is nobody's secret, and may be meant for others.
            place.mkdir(mode=PRIVATE_DIR if place in (path, path.parent) else 0o777)
            if undo is not None:
                undo.callback(_remove_empty, place)


def _remove_empty(directory: Path) -> None:
    with contextlib.suppress(OSError):
        directory.rmdir()


def why_not_private(path: Path, variable: str = _STATE) -> str | None:
    """What keeps `path` from being a private directory of this user, or None."""
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode):
        return f"{path} is not a directory; remove it, or set {variable}"
    if found.st_uid != os.geteuid():
        return f"{path} belongs to user {found.st_uid}, not to {os.geteuid()}; set {variable}"
    if found.st_mode & 0o077:
        return f"{path} is open to others (mode {stat.S_IMODE(found.st_mode):o}); run: chmod 700 {path}"
    return None


def recording_dir(
    state: str, run: str, explicit: str | None, *, in_memory: bool, undo: ExitStack | None = None
) -> Path:
    """The private directory in which the processes of `run` on this host record; made if missing.

    Args:
        state: the state directory.
        run: the run's id.
        explicit: TRAINSPAN_RECORDING_DIR, or None.
        in_memory: prefer the host's memory; False when the recordings must outlive a reboot.
        undo: takes away again what this process has made for it, as far as nobody has put anything there.

    Raises:
        RecordingRefused: no such directory can be had.
    """
    if explicit:
        return make_private(Path(explicit) / run, _CHOSEN, undo)
    place = run_folder(state, run) / "recordings" / os.uname().nodename
    _make_folders(place, undo)
    if not in_memory or not os.access(MEMORY, os.W_OK | os.X_OK):
        return make_private(place, undo=undo)
    return _agreed_link(place, undo)


def _make_folders(place: Path, undo: ExitStack | None) -> None:
    """Make the run folder of `place`, and the folder of the places of its hosts."""
    for folder in (place.parent.parent, place.parent):
        make_private(folder, undo=undo)


def retire(directory: Path, folder: Path | None, lock_name: str) -> None:
    """Take away a recording directory in the host's memory that holds no recording any more, and the link to it.

    Args:
        directory: what `recording_dir` gave.
        folder: the run folder.
        lock_name: the file in it that its relay holds locked.

    Directories elsewhere stay. What processes left that were killed while they made a recording is removed anywhere.

    The link goes first: who comes now makes a new directory. Who had followed it already finds nothing
    (`recording_dir` is to be asked again) or has made a recording, which then keeps the directory.
    """
    _remove_drafts(directory)
    made_here = directory.parent == MEMORY and directory.name.startswith(_PREFIX)
    if not made_here or any(name != lock_name for name in os.listdir(directory)):
        return
    link = folder / "recordings" / os.uname().nodename if folder else None
    with contextlib.suppress(OSError):
        if link is not None:
            _unlink(link, directory)
        (directory / lock_name).unlink(missing_ok=True)
        directory.rmdir()


def _unlink(link: Path, directory: Path) -> None:
    """Remove `link` if it leads to `directory`."""
    if link.is_symlink() and Path(os.readlink(link)) == directory:
        link.unlink()


def _take_back(link: Path, directory: Path) -> None:
    """Remove an empty directory in the host's memory, and the link to it."""
    with contextlib.suppress(OSError):
        if not os.listdir(directory):
            _unlink(link, directory)
            directory.rmdir()


def _remove_drafts(directory: Path) -> None:
    """Remove what processes left that were killed while they made their recording."""
    for draft in directory.glob(f".*{layout.DRAFT_SUFFIX}"):
        with contextlib.suppress(OSError):  # locked: its process lives
            descriptor = os.open(draft, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                if time.time() - os.fstat(descriptor).st_mtime < _DRAFT_UNLOCKED_S:
                    continue
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                draft.with_name(draft.stem[1:] + layout.EVENTS_SUFFIX).unlink(missing_ok=True)
                draft.unlink()
            finally:
                os.close(descriptor)


def _agreed_link(link: Path, undo: ExitStack | None) -> Path:
    """The directory `link` points to; the first process to come makes both."""
    for _ in range(_TRIES):
        target = _target_of(link)
        if target is not None:
            return target
        fresh = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=MEMORY))
        try:
            _point(link, fresh)
        except FileNotFoundError:
            fresh.rmdir()
            _make_folders(link, undo)  # a process that was refused has just taken its own away
            continue
        except OSError as error:
            fresh.rmdir()
            raise RecordingRefused(f"{link} cannot be made ({error.strerror}); set {_STATE}") from error
        if _target_of(link) != fresh:
            fresh.rmdir()  # another process was faster: its directory counts
        elif undo is not None:
            undo.callback(_take_back, link, fresh)
    raise RecordingRefused(f"{link} keeps changing; set {_CHOSEN}")


def _target_of(link: Path) -> Path | None:
    """Where `link` leads, if that is a private directory of this user (an earlier boot's is gone)."""
    try:
        if not link.is_symlink():
            return link if why_not_private(link) is None else None
        target = Path(os.readlink(link))
        return target if why_not_private(target) is None else None
    except OSError:
        return None


def _point(link: Path, target: Path) -> None:
    """Make `link` lead to `target` unless another process has just made it; replace one that leads nowhere."""
    try:
        os.symlink(target, link)
    except FileExistsError:
        # Locked: between another's look and its replacement it would replace a link that others already follow.
        with _locked(link.with_name(f".{link.name}.lock")):
            if _target_of(link) is None:
                spare = link.with_name(f".{link.name}.new")
                spare.unlink(missing_ok=True)  # a process killed right here may have left one
                os.symlink(target, spare)
                os.replace(spare, link)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
