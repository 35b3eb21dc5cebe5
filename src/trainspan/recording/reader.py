"""Reads a recording while it is written or long after; what is wrong with its bytes is reported, never raised.

It reads with `pread` and does not map the file: a file that somebody truncates cannot kill the reader.
"""

import contextlib
import fcntl
import json
import os
import stat
import struct
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

from trainspan.clock import Anchor
from trainspan.identity import Identity
from trainspan.recording import layout

_CHUNK_MARKS = 4096
_IMPOSSIBLE_MARKS = 1 << 44  # a mark each 100 ns for 20 days between two looks
_EVENT_LINE_MAX_BYTES = 1 << 20
_TEXT_FIELDS = ("role", "run", "host", "launcher")


class Refusal(NamedTuple):
    """A file that is no recording we can read, and why."""

    path: Path
    reason: str


class Look(NamedTuple):
    """What one look at the ring gave.

    `marks`: [time_ns, word, time_ns, word, …], in order.
    `lost`: marks that were overwritten before this look; they lie before `marks`.
    `pending`: newer marks that the next look will give.
    """

    marks: list[int]
    lost: int
    pending: int


class RecordingReader:
    """One recording, read forward. `errors` counts torn, truncated and hostile bytes met so far."""

    def __init__(self, path: Path, descriptor: int, header: "_Header"):
        self.path = path
        self.identity = header.identity
        self.anchor = header.anchor
        self.process_start_ns = header.process_start_ns
        self.capacity = header.capacity
        self.errors = 0
        self._descriptor = descriptor
        self._consumed = 0  # marks given out or counted as lost, since the beginning
        self._published = 0  # marks found by the last look, since the beginning
        self._newest_ns = 0  # time of mark number `_published - 1`
        self._last_ns = 0  # time of mark number `_consumed - 1`
        self._events_offset = 0
        self._words_at_close: tuple[int, int, int] | None = None

    def look(self, *, final: bool = False) -> Look:
        """The marks that the look before this one had found; with `final`, all of them.

        Use `final` only once the writer is gone: then nothing can be half-stored.
        """
        settled = self._published
        self._find_newest()
        if final:
            settled = self._published
        lost = self._skip_overwritten()
        first = self._consumed
        marks = self._read_marks(settled)
        if self._published - first > self.capacity // 2:
            # The writer was close behind: what it overwrote while we read is no longer what it was.
            self._find_newest()
            overwritten = min(self._overwritten_since(first), len(marks) // 2)
            lost += overwritten
            del marks[: 2 * overwritten]
        return Look(self._in_order(marks), lost, self._published - self._consumed)

    def closed_ns(self) -> int | None:
        """Monotonic time of the orderly close; None while open, and for ever if the process was killed."""
        return self._live_words()[1] or None

    def events_dropped(self) -> int:
        """Events the writer counted as dropped."""
        return self._live_words()[2]

    def writer_lives(self) -> bool:
        """Whether the process that records still exists: it holds a record lock until the kernel takes it away."""
        probe = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        try:
            answer = fcntl.fcntl(self._descriptor, fcntl.F_GETLK, probe)
        except OSError:
            self.errors += 1
            return False
        return bool(struct.unpack("hhqqi", answer)[0] != fcntl.F_UNLCK)

    def events(self) -> list[dict[str, Any]]:
        """The events appended since the last call; a line still being written waits for the next one."""
        path = self.path.with_suffix(layout.EVENTS_SUFFIX)
        try:
            with open(path, "rb", opener=_open_no_follow) as log:  # noqa: PTH123 - Path.open takes no opener
                log.seek(self._events_offset)
                text = log.read(layout.EVENTS_MAX_BYTES)
        except OSError:
            return []  # no event was written yet, or the log has been removed
        whole = text[: text.rfind(b"\n") + 1]
        self._events_offset += len(whole)
        return [event for line in whole.splitlines() if (event := self._parse_event(line)) is not None]

    def close(self) -> None:
        """Let go of the file. What its header said last can still be asked."""
        self._words_at_close = self._live_words()
        os.close(self._descriptor)

    def remove(self) -> None:
        """Delete both files, once what they hold has been taken over."""
        for path in (self.path, self.path.with_suffix(layout.EVENTS_SUFFIX)):
            with contextlib.suppress(OSError):
                path.unlink()

    def _parse_event(self, line: bytes) -> dict[str, Any] | None:
        if len(line) <= _EVENT_LINE_MAX_BYTES:
            with contextlib.suppress(ValueError, RecursionError):
                event = json.loads(line)
                if isinstance(event, dict) and isinstance(event.get("event"), str) and _is_time(event.get("ts")):
                    return event
        self.errors += 1
        return None

    def _live_words(self) -> tuple[int, int, int]:
        if self._words_at_close is not None:
            return self._words_at_close
        text = self._pread(layout.WORD_LAPS * layout.WORD_BYTES, layout.LIVE_WORDS.size)
        if len(text) < layout.LIVE_WORDS.size:
            self.errors += 1
            return self._published // self.capacity, 0, 0
        laps, closed_ns, dropped = layout.LIVE_WORDS.unpack(text)
        return laps, closed_ns, dropped

    def _find_newest(self) -> None:
        """Move `_published` forward to the newest mark, by the order of times."""
        floor = self._live_words()[0] * self.capacity
        if not self._published - self.capacity <= floor <= self._published + _IMPOSSIBLE_MARKS:
            self.errors += 1  # a lap count that went backwards, or beyond reason: not the writer's doing
            return
        if floor > self._published:
            # A lap has ended since the last look: the newest mark is in the first slots of the next one.
            self._newest_ns = self._time_of_slot(self.capacity - 1)
            self._published = floor
        while self._published < floor + self.capacity:
            times = self._times_from(self._published % self.capacity)
            fresh = _count_increasing(times, self._newest_ns)
            if fresh:
                self._newest_ns = times[fresh - 1]
                self._published += fresh
            if fresh < len(times) or not times:
                return

    def _times_from(self, slot: int) -> list[int]:
        count = min(_CHUNK_MARKS, self.capacity - slot)
        return self._slots(slot, count)[::2]

    def _time_of_slot(self, slot: int) -> int:
        words = self._slots(slot, 1)
        return words[0] if words else 0

    def _skip_overwritten(self) -> int:
        lost = self._overwritten_since(self._consumed)
        self._consumed += lost
        return lost

    def _overwritten_since(self, number: int) -> int:
        """How many marks from number `number` on are gone. The oldest may be half overwritten: it counts as gone."""
        return max(0, self._published - self.capacity + 1 - number)

    def _read_marks(self, until: int) -> list[int]:
        marks: list[int] = []
        while self._consumed < until:
            slot = self._consumed % self.capacity
            count = min(until - self._consumed, self.capacity - slot, _CHUNK_MARKS)
            words = self._slots(slot, count)
            if len(words) < 2 * count:
                self.errors += 1  # truncated under us
                self._consumed = until
                break
            marks += words
            self._consumed += count
        return marks

    def _in_order(self, marks: list[int]) -> list[int]:
        """`marks` up to the first that is older than the one before it: from there on the bytes are not the writer's."""
        good = _count_increasing(marks[::2], self._last_ns)
        if good < len(marks) // 2:
            self.errors += 1
            marks = marks[: 2 * good]
        if good:
            self._last_ns = marks[-2]
        return marks

    def _slots(self, slot: int, count: int) -> list[int]:
        text = self._pread(layout.HEADER_BYTES + slot * layout.MARK_BYTES, count * layout.MARK_BYTES)
        whole = len(text) - len(text) % layout.MARK_BYTES
        return memoryview(text[:whole]).cast("q").tolist()

    def _pread(self, offset: int, size: int) -> bytes:
        try:
            return os.pread(self._descriptor, size, offset)
        except OSError:
            return b""


class _Header(NamedTuple):
    identity: Identity
    anchor: Anchor
    process_start_ns: int
    capacity: int


def open_recording(path: Path) -> RecordingReader | Refusal:
    """A reader of the ring file at `path`, or why it cannot be read."""
    try:
        # Writable, because asking who holds a write lock needs it (F_GETLK).
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        return Refusal(path, f"cannot be opened: {error.strerror}")
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        reason = "is not a regular file"
    elif found.st_uid != os.geteuid():
        reason = f"belongs to user {found.st_uid}, not to {os.geteuid()}: trainspan reads its own user's recordings only"
    else:
        header = _parse_header(os.pread(descriptor, layout.HEADER_BYTES, 0), found.st_size)
        if isinstance(header, _Header):
            return RecordingReader(path, descriptor, header)
        reason = header
    os.close(descriptor)
    return Refusal(path, reason)


def _parse_header(text: bytes, file_bytes: int) -> _Header | str:
    if len(text) < layout.HEADER_BYTES:
        return f"is cut off in its header ({len(text)} of {layout.HEADER_BYTES} bytes)"
    magic, version, capacity, size, crc, monotonic_ns, unix_ns, start_ns = layout.FIXED_HEADER.unpack_from(text)
    if magic != layout.MAGIC:
        return "is not a recording, or was made on a machine of the other byte order"
    if version != layout.VERSION:
        return f"has layout version {version}; this trainspan reads version {layout.VERSION}: use the one that wrote it"
    if capacity & (capacity - 1) or not layout.CAPACITY_MIN <= capacity <= layout.CAPACITY_MAX:
        return f"claims an impossible ring of {capacity} marks"
    if file_bytes < layout.HEADER_BYTES + capacity * layout.MARK_BYTES:
        return f"is cut off ({file_bytes} bytes for a ring of {capacity} marks)"
    identity_text = text[layout.IDENTITY_OFFSET :][: max(size, 0)]
    if size != len(identity_text) or crc32(identity_text) != crc:
        return "has a damaged identity (checksum differs)"
    identity = _parse_identity(identity_text)
    if identity is None:
        return "has an identity that is not understood"
    return _Header(identity, Anchor(monotonic_ns, unix_ns), start_ns, capacity)


def _parse_identity(text: bytes) -> Identity | None:
    try:
        fields = json.loads(text)
        identity = Identity(**fields)
    except (ValueError, TypeError, RecursionError):
        return None
    for name, value in identity._asdict().items():
        if not (isinstance(value, str) if name in _TEXT_FIELDS else _is_time(value)):
            return None
    return identity


def _is_time(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63


def _count_increasing(times: list[int], floor_ns: int) -> int:
    """How many of `times`, from the first, never fall below the one before (the first: below `floor_ns`) and are set."""
    for position, time_ns in enumerate(times):
        if time_ns < floor_ns or not time_ns:
            return position
        floor_ns = time_ns
    return len(times)


def _open_no_follow(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW)
