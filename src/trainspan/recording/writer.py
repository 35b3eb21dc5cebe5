"""Makes a recording: one ring file and one event log of this process, and the words that go into them."""

import contextlib
import fcntl
import json
import mmap
import os
from pathlib import Path
from typing import Any
from zlib import crc32

from trainspan import clock
from trainspan.errors import RecordingRefused
from trainspan.identity import Identity
from trainspan.recording import layout

_PRIVATE_FILE = 0o600
_GONE = -1  # the system never gives this number to a descriptor: a late write fails, and hits nobody's file


class RecordingWriter:
    """A recording that is open for writing.

    `words` is the whole ring file as int64: hot code stores marks into it by itself (`record/marker.py`). Stores
    cannot fail: the file's blocks are allocated before it is mapped.

    The process counts as recording for as long as this object exists: a record lock goes with the first descriptor of
    the file that is closed, and the mapping has one.
    """

    __slots__ = ("_events_bytes", "_events_fd", "_map", "_ring_fd", "capacity", "path", "words")

    def __init__(self, path: Path, ring_fd: int, mapping: mmap.mmap, events_fd: int, capacity: int):
        self.path = path
        # The same 64 bits as "q", which takes 180 instructions more to take a time apart, at every mark.
        self.words: memoryview = memoryview(mapping).cast("n")  # type: ignore[call-overload]  # unknown to typeshed
        self.capacity = capacity
        self._map = mapping
        self._ring_fd = ring_fd
        self._events_fd = events_fd
        self._events_bytes = 0

    @classmethod
    def create(cls, directory: Path, identity: Identity, capacity: int, process_start_ns: int) -> "RecordingWriter":
        """A new recording in `directory`, complete before its name appears there.

        Args:
            directory: a private directory, from `places.recording_dir`.
            identity: who records.
            capacity: marks in the ring, a power of two.
            process_start_ns: monotonic ns at which the process began.

        Raises:
            RecordingRefused: it cannot be made (full, unwritable); nothing is left behind.
        """
        header = _header(identity, capacity, process_start_ns)
        stem = _stem_of(identity)
        draft = directory / f".{stem}{layout.DRAFT_SUFFIX}"
        path = directory / f"{stem}{layout.RING_SUFFIX}"
        events_path = directory / f"{stem}{layout.EVENTS_SUFFIX}"
        with contextlib.ExitStack() as undo:
            try:
                ring_fd = _new_file(draft, os.O_RDWR, undo)
                fcntl.lockf(ring_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # first: an unlocked draft is nobody's any more
                mapping = _map(ring_fd, layout.HEADER_BYTES + capacity * layout.MARK_BYTES)
                mapping[: layout.HEADER_BYTES] = header
                events_fd = _new_file(events_path, os.O_WRONLY | os.O_APPEND, undo)
                draft.rename(path)
            except OSError as error:
                what, do = f"{directory} takes no recording", "free space there, or set TRAINSPAN_RECORDING_DIR"
                raise RecordingRefused(f"{what} ({error.strerror}); {do}") from error
            undo.pop_all()
        return cls(path, ring_fd, mapping, events_fd, capacity)

    def append_event(self, event: dict[str, Any]) -> bool:
        """Append one line to the event log. False: dropped, and counted.

        Dropped is what JSON cannot hold, and what is beyond a bound or finds the disk full.
        """
        line = _line_of(event)
        if len(line) <= layout.EVENT_MAX_BYTES and self._events_bytes + len(line) <= layout.EVENTS_MAX_BYTES:
            with contextlib.suppress(OSError):
                if line and self._append(line):
                    return True
        self.drop_event()
        return False

    def drop_event(self) -> None:
        """Count an event that was not appended."""
        self.words[layout.WORD_EVENTS_DROPPED] += 1

    def _append(self, line: bytes) -> bool:
        written = os.write(self._events_fd, line)
        if written < len(line):
            # The disk took a part of it: the next line must not be glued to that.
            os.ftruncate(self._events_fd, os.fstat(self._events_fd).st_size - written)
            return False
        self._events_bytes += written
        return True

    def close(self, at_ns: int) -> None:
        """Note an orderly end at monotonic time `at_ns`. The files stay: they are the reader's to remove."""
        self.words[layout.WORD_CLOSED] = at_ns
        self.abandon()

    def abandon(self) -> None:
        """In a forked child: let go of what belongs to the parent, without a word in it."""
        os.close(self._events_fd)
        os.close(self._ring_fd)  # and with it the lock, if it is this process's
        self._events_fd = self._ring_fd = _GONE


def _stem_of(identity: Identity) -> str:
    """A name no other process makes, whatever PID namespace it is in."""
    letter = "a" if identity.role == "agent" else "r"
    # os.urandom, because the user's random stream is the user's.
    return f"{letter}{identity.rank:05d}-a{identity.attempt}-p{identity.pid}-{os.urandom(4).hex()}"


def _new_file(path: Path, access: int, undo: contextlib.ExitStack) -> int:
    descriptor = os.open(path, access | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, _PRIVATE_FILE)
    undo.callback(path.unlink, missing_ok=True)
    undo.callback(os.close, descriptor)
    return descriptor


def _map(descriptor: int, size_bytes: int) -> mmap.mmap:
    # Allocated, not sparse: a store into a hole of a full disk would kill the rank with SIGBUS.
    os.posix_fallocate(descriptor, 0, size_bytes)
    return mmap.mmap(descriptor, size_bytes)


def _line_of(event: dict[str, Any]) -> bytes:
    """`event` as a line; empty if JSON cannot hold it."""
    try:
        text = json.dumps(event, separators=(",", ":"), default=str, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        return b""
    # A file name that is no UTF-8 comes as half characters, which no wire takes.
    return text.encode(errors="replace") + b"\n"


def _header(identity: Identity, capacity: int, process_start_ns: int) -> bytes:
    text = json.dumps(identity._asdict(), separators=(",", ":")).encode()
    if len(text) > layout.IDENTITY_MAX_BYTES:
        raise RecordingRefused(
            f"the identity takes {len(text)} bytes of {layout.IDENTITY_MAX_BYTES}; shorten the run id"
        )
    anchor = clock.anchor()
    start = (layout.MAGIC, layout.VERSION, capacity, len(text))
    end = (anchor.monotonic_ns, anchor.unix_ns, process_start_ns)
    crc = crc32(layout.FIXED_HEADER.pack(*start, 0, *end) + text)
    header = layout.FIXED_HEADER.pack(*start, crc, *end).ljust(layout.IDENTITY_OFFSET, b"\0") + text
    return header.ljust(layout.HEADER_BYTES, b"\0")
