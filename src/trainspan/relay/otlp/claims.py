"""Which process writes which journal: names, and the record locks that make a file one process's own.

The kernel frees a record lock when its process is gone, whatever killed it.
"""

import errno
import fcntl
import os
import re
import stat
from pathlib import Path
from typing import Literal, cast

from trainspan.errors import RecordingRefused
from trainspan.relay.otlp.destinations import Signal

_JOURNAL = re.compile(r"(traces|metrics|logs)(\.[A-Za-z0-9-]+)?\.jsonl")
_FLAGS = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
_HELD = (errno.EACCES, errno.EAGAIN)

# A record lock belongs to the process: a second open of the same file here would be granted it, and would free it
# when closed. So nothing in this process may open a claimed file but its claim.
_claimed_here: set[tuple[int, int]] = set()


class Claim:
    """An open file that is this process's own until it is released."""

    def __init__(self, descriptor: int):
        self.descriptor = descriptor
        self._identity = _identity_of(os.fstat(descriptor))
        _claimed_here.add(self._identity)

    def release(self) -> None:
        """Close the file. Once."""
        _claimed_here.discard(self._identity)
        os.close(self.descriptor)


def name_of(signal: Signal, node_rank: int) -> str:
    """The file of a node: `traces.jsonl`, `traces.3.jsonl`."""
    return f"{signal}.{node_rank}.jsonl" if node_rank else f"{signal}.jsonl"


def spare_name_of(signal: Signal) -> str:
    """The file of a process whose node's file is held by another: `traces.<host>-<pid>.jsonl`."""
    return f"{signal}.{host_in_names()}-{os.getpid()}.jsonl"


def host_in_names() -> str:
    """This host as the name of a file has it."""
    return re.sub(r"[^A-Za-z0-9-]", "-", os.uname().nodename)[:64]


def signal_of(journal: Path) -> Signal:
    """What a journal holds, from its name."""
    return cast(Signal, journal.name.partition(".")[0])


def journals_in(folder: Path) -> list[Path]:
    """Every journal of a run folder, in order of name."""
    return sorted(path for path in folder.iterdir() if _JOURNAL.fullmatch(path.name) and not path.is_symlink())


def claim(folder: Path, signal: Signal, node_rank: int | None) -> tuple[Path, Claim]:
    """The node's file of a signal, or where another live process holds that, a file of this process's own.

    Args:
        folder: the run folder.
        signal: what the file holds.
        node_rank: rank of the node in the job; None leaves the node's file to its relay.

    Raises:
        RecordingRefused: neither can be opened.
    """
    path = folder / (spare_name_of(signal) if node_rank is None else name_of(signal, node_rank))
    claimed = None
    if node_rank is not None:
        # A file system without locks cannot tell whether somebody else writes there, so nobody shares a file.
        claimed = claim_file(path, os.O_CREAT, unlocked=False)
    if claimed is None:
        path = folder / spare_name_of(signal)
        claimed = claim_file(path, os.O_CREAT, unlocked=True)
    if claimed is None:
        raise RecordingRefused(f"{path} is already written by this process; stop its first relay")
    return path, claimed


def claim_file(path: Path, more_flags: int = 0, *, unlocked: bool) -> Claim | None:
    """The file, if nobody else holds it.

    Args:
        path: of the file.
        more_flags: for `os.open`, beside those every journal is opened with.
        unlocked: take it too where the file system has no locks.

    Raises:
        RecordingRefused: it cannot be opened, or is not a file.
    """
    try:
        while True:
            if path.exists() and _identity_of(path.stat()) in _claimed_here:
                return None
            descriptor = os.open(path, _FLAGS | more_flags, 0o600)
            lock = _lock(descriptor)
            if lock == "held" or (lock == "unsupported" and not unlocked):
                os.close(descriptor)
                return None
            # Who held it may have put a shorter copy in its place between our open and our lock.
            if _identity_of(os.fstat(descriptor)) == _identity_of(path.stat()):
                return _claim_of_file(path, descriptor)
            os.close(descriptor)
    except OSError as error:
        raise RecordingRefused(f"{path} cannot be written ({error.strerror}); set TRAINSPAN_DIR") from error


def claim_copy(path: Path) -> Claim:
    """A new, empty, locked file at `path`; what is there is a copy that a killed process left.

    Raises:
        OSError: it cannot be made.
    """
    path.unlink(missing_ok=True)
    descriptor = os.open(path, _FLAGS | os.O_CREAT | os.O_EXCL, 0o600)
    _lock(descriptor)
    return Claim(descriptor)


def _claim_of_file(path: Path, descriptor: int) -> Claim:
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise RecordingRefused(f"{path} is not a file; remove it, or set TRAINSPAN_DIR")
    return Claim(descriptor)


def _lock(descriptor: int) -> Literal["locked", "held", "unsupported"]:
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return "held" if error.errno in _HELD else "unsupported"
    return "locked"


def _identity_of(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino
