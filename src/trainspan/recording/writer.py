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
_EVENT_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_NOFOLLOW


class RecordingWriter:
    """A recording that is open for writing.

    `words` is the whole ring file as int64: hot code stores marks into it by itself (`record/marker.py`). Stores
    cannot fail: the file's blocks are allocated before it is mapped.
    """

    __slots__ = ("_events_bytes", "_events_fd", "_events_path", "_map", "_ring_fd", "capacity", "path", "words")

    def __init__(self, path: Path, ring_fd: int, mapping: mmap.mmap, events_path: Path, events_fd: int, capacity: int):
        self.path = path
        self.words = memoryview(mapping).cast("q")
        self.capacity = capacity
        self._map = mapping
        self._ring_fd = ring_fd
        self._events_path = events_path
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
        stem = _stem_of(identity)
        draft = directory / f".{stem}.draft"
        path = directory / f"{stem}{layout.RING_SUFFIX}"
        events_path = directory / f"{stem}{layout.EVENTS_SUFFIX}"
        try:
            ring_fd, mapping = _map_new(draft, layout.HEADER_BYTES + capacity * layout.MARK_BYTES)
            mapping[: layout.HEADER_BYTES] = _header(identity, capacity, process_start_ns)
            fcntl.lockf(ring_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            events_fd = os.open(events_path, _EVENT_FLAGS, _PRIVATE_FILE)
            draft.rename(path)
        except OSError as error:
            for leftover in (draft, events_path):
                leftover.unlink(missing_ok=True)
            raise RecordingRefused(
                f"{directory} takes no recording ({error.strerror}); free space there, or set TRAINSPAN_RECORDING_DIR"
            ) from error
        return cls(path, ring_fd, mapping, events_path, events_fd, capacity)

    def append_event(self, event: dict[str, Any]) -> bool:
        """Append one line to the event log. False: dropped (the log is at its bound, or the disk is full), counted."""
        line = json.dumps(event, separators=(",", ":"), default=str).encode() + b"\n"
        fits = self._events_bytes + len(line) <= layout.EVENTS_MAX_BYTES
        if fits:
            with contextlib.suppress(OSError):
                self._events_bytes += os.write(self._events_fd, line)
                return True
        self.words[layout.WORD_EVENTS_DROPPED] += 1
        return False

    def close(self, at_ns: int) -> None:
        """Note an orderly end at monotonic time `at_ns`. The files stay: they are the reader's to remove."""
        self.words[layout.WORD_CLOSED] = at_ns
        os.close(self._events_fd)
        fcntl.lockf(self._ring_fd, fcntl.LOCK_UN)
        os.close(self._ring_fd)

    def abandon(self) -> None:
        """In a forked child: let go of what belongs to the parent, without a word in it."""
        os.close(self._events_fd)
        os.close(self._ring_fd)


def _stem_of(identity: Identity) -> str:
    """A name no other process makes, whatever PID namespace it is in."""
    letter = "a" if identity.role == "agent" else "r"
    # os.urandom, because the user's random stream is the user's.
    return f"{letter}{identity.rank:05d}-a{identity.attempt}-p{identity.pid}-{os.urandom(4).hex()}"


def _map_new(path: Path, size_bytes: int) -> tuple[int, mmap.mmap]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, _PRIVATE_FILE)
    try:
        # Allocated, not sparse: a store into a hole of a full disk would kill the rank with SIGBUS.
        os.posix_fallocate(descriptor, 0, size_bytes)
        return descriptor, mmap.mmap(descriptor, size_bytes)
    except BaseException:
        os.close(descriptor)
        raise


def _header(identity: Identity, capacity: int, process_start_ns: int) -> bytes:
    text = json.dumps(identity._asdict(), separators=(",", ":")).encode()
    if len(text) > layout.IDENTITY_MAX_BYTES:
        raise RecordingRefused(f"the identity takes {len(text)} bytes of {layout.IDENTITY_MAX_BYTES}; shorten the run id")
    anchor = clock.anchor()
    fixed = layout.FIXED_HEADER.pack(
        layout.MAGIC,
        layout.VERSION,
        capacity,
        len(text),
        crc32(text),
        anchor.monotonic_ns,
        anchor.unix_ns,
        process_start_ns,
    )
    header = fixed.ljust(layout.IDENTITY_OFFSET, b"\0") + text
    return header.ljust(layout.HEADER_BYTES, b"\0")
