"""An append-only file of OTLP JSON lines, with a cursor: the run folder, the spool of an outage, and what is replayed.

    traces.jsonl  metrics.jsonl  logs.jsonl     of node 0, over all attempts of the run
    traces.3.jsonl                              of node 3
    traces.<host>-<pid>.jsonl                   of a relay that found the node's file held by another live process,
                                                or of a rank: the spans of its own script
    traces.jsonl.cursor                         how far it is delivered

A line is appended with one write before anybody tries to deliver it, and the cursor moves after it was accepted. A
killed process therefore loses nothing that was put, and may deliver its last batch twice. Nothing is synced to the
disk: a host that loses power can lose its last seconds.

Bound: a journal never grows past its bytes. When the next line would, the delivered front goes; where that frees less
than a quarter, the oldest undelivered lines go too, and are counted. A quarter, because the rest is copied into a new
file: each byte is copied three times at most, and only while the journal is full. A journal nobody delivers (no
endpoint) is bounded the same way: it keeps the newest. A delivered journal begins anew when it has passed 4 MiB.
"""

import contextlib
import os
import threading
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeAlias

from trainspan.relay.otlp import cursor, lines
from trainspan.relay.otlp.claims import Claim, claim_copy
from trainspan.relay.otlp.cursor import Cursor

TRIM_BYTES = 4 << 20
"""A journal that is delivered to its end is emptied from this size on."""

Complain: TypeAlias = Callable[[str, str], None]
"""Told (cause, message); says each cause once."""


class Line(NamedTuple):
    """One line. `start` and `end`: positions in bytes that stay valid when the journal is cut; no text: too long."""

    start: int
    end: int
    text: bytes | None


class Journal:
    """One claimed file, safe to use from the thread that puts and the one that delivers.

    Args:
        path: of the file.
        claim: on the file; from now on this object's.
        bound_bytes: what the file may grow to.
        complain: told of what goes wrong.
    """

    def __init__(self, path: Path, claim: Claim, bound_bytes: int, complain: Complain):
        self.path = path
        self.dropped = 0
        self._claim = claim
        self._bound_bytes = bound_bytes
        self._complain = complain
        self._lock = threading.Lock()
        self._closed = False
        # A position is an offset in the file plus what was cut off before it since this object was made.
        self._cut_bytes = 0
        self._size_bytes = self._without_torn_tail()
        self._first_line_crc = lines.crc_of_line(claim.descriptor, 0)
        self._cursor = self._valid(cursor.load(cursor.path_of(path)))

    def append(self, text: bytes) -> bool:
        """Whether `text` is on disk now, as the last line. It is counted as dropped if not."""
        record = text + b"\n"
        with self._lock:
            try:
                if not self._closed and self._has_room(len(record)):
                    lines.append(self._claim.descriptor, record)
                    if self._size_bytes == 0:
                        self._first_line_crc = zlib.crc32(record)
                    self._size_bytes += len(record)
                    return True
            except OSError as error:
                self._complain(
                    f"{self.path.name} write", f"{self.path} cannot be written ({error.strerror}); telemetry is lost"
                )
                with contextlib.suppress(OSError):  # else the next start cuts it off
                    os.ftruncate(self._claim.descriptor, self._size_bytes)
            self.dropped += 1
            return False

    def first(self) -> Line | None:
        """The first line that is not delivered, or None."""
        with self._lock:
            return self._line_at(self._cursor.offset_bytes)

    def after(self, line: Line) -> Line | None:
        """The line behind `line`, or None."""
        with self._lock:
            return self._line_at(max(line.end - self._cut_bytes, self._cursor.offset_bytes))

    def advance(self, line: Line, *, delivered: int = 0, dropped: int = 0) -> None:
        """Be done with everything up to the end of `line`: so many lines of it delivered, so many dropped."""
        with self._lock:
            offset_bytes = line.end - self._cut_bytes
            if self._closed or offset_bytes <= self._cursor.offset_bytes:
                return  # closed, or cut off meanwhile and counted then
            self.dropped += dropped
            self._move_cursor(offset_bytes, self._cursor.lines + delivered)

    def trim(self) -> None:
        """Begin anew, if everything is delivered and the file is large."""
        with self._lock:
            done = self._cursor.offset_bytes == self._size_bytes >= TRIM_BYTES
            if done and not self._closed:
                with contextlib.suppress(OSError):  # then it is tried again behind the next line
                    self._cut_front(self._size_bytes)

    @property
    def pending_bytes(self) -> int:
        """Bytes not delivered."""
        return self._size_bytes - self._cursor.offset_bytes

    @property
    def lines_delivered(self) -> int:
        """Lines delivered of those that the file still holds."""
        return self._cursor.lines

    def close(self) -> None:
        """Give up the claim; what is asked for afterwards is refused."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._claim.release()

    def _without_torn_tail(self) -> int:
        """The size of the file, after a line that a crash left half written was cut off."""
        size_bytes = os.fstat(self._claim.descriptor).st_size
        end = lines.end_of_last_line(self._claim.descriptor, size_bytes)
        if end < size_bytes:
            self.dropped += 1
            self._complain(
                f"{self.path.name} torn", f"{self.path} ended in half a batch; {size_bytes - end} bytes cut off"
            )
            os.ftruncate(self._claim.descriptor, end)
        return end

    def _valid(self, found: Cursor) -> Cursor:
        """`found`, if it was written for this file as it begins now."""
        fits = (
            0 < found.offset_bytes <= self._size_bytes
            and found.first_line_crc == self._first_line_crc
            and os.pread(self._claim.descriptor, 1, found.offset_bytes - 1) == b"\n"
        )
        return found if fits else Cursor(0, 0, self._first_line_crc)

    def _has_room(self, needed_bytes: int) -> bool:
        """Whether the file may grow by `needed_bytes`, after its front was cut off where it had to be."""
        if self._size_bytes + needed_bytes <= self._bound_bytes:
            return True
        if needed_bytes > self._bound_bytes:
            self._complain(f"{self.path.name} size", f"{self.path} may not hold a batch of {needed_bytes} bytes")
            return False
        keep_bytes = self._bound_bytes - max(needed_bytes, self._bound_bytes // 4)
        cut = max(self._cursor.offset_bytes, self._size_bytes - keep_bytes)
        self._cut_front(lines.start_of_line_from(self._claim.descriptor, cut))
        return True

    def _cut_front(self, cut: int) -> None:
        """Make the file begin with what is at `cut`, the start of a line. Undelivered lines before it are counted."""
        # All that can fail comes before the cut: behind it, the file and what is known of it must agree.
        lost = lines.count_lines(self._claim.descriptor, self._cursor.offset_bytes, cut)
        crc = lines.crc_of_line(self._claim.descriptor, cut)
        if cut == self._size_bytes:
            os.ftruncate(self._claim.descriptor, 0)
        else:
            self._replace_by_copy(cut)
        self._cut_bytes += cut
        self._size_bytes -= cut
        self._first_line_crc = crc
        self._move_cursor(max(self._cursor.offset_bytes - cut, 0), 0)
        if lost:
            self.dropped += lost
            self._complain(f"{self.path.name} full", f"{self.path} is full; its oldest {lost} batches are dropped")

    def _replace_by_copy(self, start: int) -> None:
        spare = self.path.with_name(f".{self.path.name}.new")
        copied = claim_copy(spare)
        try:
            lines.copy(self._claim.descriptor, start, copied.descriptor)
            spare.replace(self.path)
        except OSError:
            copied.release()
            spare.unlink(missing_ok=True)
            raise
        self._claim.release()
        self._claim = copied

    def _line_at(self, start: int) -> Line | None:
        if self._closed or start >= self._size_bytes:
            return None
        found = lines.line_from(self._claim.descriptor, start)
        return Line(start + self._cut_bytes, found.end + self._cut_bytes, found.text)

    def _move_cursor(self, offset_bytes: int, delivered_lines: int) -> None:
        self._cursor = Cursor(offset_bytes, delivered_lines, self._first_line_crc)
        try:
            cursor.save(cursor.path_of(self.path), self._cursor)
        except OSError as error:
            # It goes on in memory: what is delivered from now on is delivered again if this process is killed.
            self._complain(
                f"{self.path.name} cursor", f"the cursor of {self.path} cannot be written ({error.strerror})"
            )
