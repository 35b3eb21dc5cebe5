"""Reads a recording while it is written or long after; what is wrong with its bytes is reported, never raised.

It reads with `pread` and does not map the file: a file that somebody truncates cannot kill the reader.
"""

import contextlib
import errno
import fcntl
import json
import os
import struct
from pathlib import Path
from typing import Any, NamedTuple

from trainspan.recording import layout
from trainspan.recording.header import Header, is_count, read_header, why_not_ours

_CHUNK_MARKS = 4096
_FRESH_MARKS = 256  # what a look mostly finds is in these; to read a whole chunk for it would take 80 µs more
_TRIES = 4  # a writer at full speed fills the smallest ring in 250 µs; to find its newest mark takes 60 µs
_IMPOSSIBLE_MARKS = 1 << 44  # a mark each 100 ns for 20 days between two looks
_FOR_NOW = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
_READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK  # a FIFO planted under our name must not hold us up


class Refusal(NamedTuple):
    """A file that is no recording we can read, and why. `for_now`: because we have no descriptor left, say."""

    path: Path
    reason: str
    for_now: bool = False


class Look(NamedTuple):
    """What one look at the ring gave.

    `marks`: [time_ns, word, time_ns, word, …], in order.
    `lost`: marks that were overwritten before this look; they lie before `marks`.
    `pending`: newer marks that the next look will give.
    `more`: whether some of them were due in this one, which was asked for fewer.
    """

    marks: list[int]
    lost: int
    pending: int
    more: bool = False


class RecordingReader:
    """One recording, read forward. `errors` counts torn, truncated and hostile bytes met so far."""

    def __init__(self, path: Path, descriptor: int, header: Header):
        self.path = path
        self.identity = header.identity
        self.anchor = header.anchor
        self.process_start_ns = header.process_start_ns
        self.capacity = header.capacity
        self.errors = 0
        self._descriptor = descriptor
        self._consumed = 0  # marks given out or counted as lost, since the beginning
        self._published = 0  # marks found by the last look, since the beginning
        self._due = 0  # of these, how many were due in the last look
        self._ending = False  # whether the last look was a final one that did not give all
        self._newest_ns = 0  # time of mark number `_published - 1`
        self._last_ns = 0  # time of mark number `_consumed - 1`
        self._events_offset = 0
        self._words_at_close: tuple[int, ...] | None = None

    def look(self, *, final: bool = False, most: int | None = None) -> Look:
        """The marks that the look before this one had found; with `final`, all of them.

        Args:
            final: use it only once the writer is gone: then nothing can be half-stored.
            most: marks to give at most; the next look gives the rest first. None: all.

        Cost: 72 bytes of memory and 0.1 µs a mark; 0.3 ms more for each look with `most`.
        """
        due = self._due if self._due > self._consumed else self._published
        if not self._find_newest(final=final):
            return Look([], 0, self._published - self._consumed)
        if final:
            due = self._published
            if not self._ending:
                self._check_rest()
        self._due = due
        lost = self._skip_overwritten()
        first = self._consumed
        marks = self._read_marks(due if most is None else min(due, first + most))
        overwritten = min(self._overwritten_meanwhile(first), len(marks) // 2)
        del marks[: 2 * overwritten]
        marks = self._in_order(marks)
        more = self._consumed < self._due
        self._ending = final and more
        return Look(marks, lost + overwritten, self._published - self._consumed, more)

    def closed_ns(self) -> int | None:
        """Monotonic time of the orderly close; None while open, and for ever if the process was killed."""
        closed_ns = self._live_words()[1]
        return closed_ns if closed_ns > 0 else None

    def events_dropped(self) -> int:
        """Events the writer counted as dropped."""
        return max(0, self._live_words()[2])

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
        text = self._read_events()
        whole = text[: text.rfind(b"\n") + 1]
        if len(text) - len(whole) > layout.EVENT_MAX_BYTES:
            whole = text  # no line of ours is that long: its end is not worth waiting for
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

    def set_aside(self) -> None:
        """Name both files so that nobody takes them for a recording any more; they can still be read."""
        for path in (self.path, self.path.with_suffix(layout.EVENTS_SUFFIX)):
            with contextlib.suppress(OSError):
                path.rename(path.with_name(path.name + layout.DAMAGED_SUFFIX))

    def _read_events(self) -> bytes:
        try:
            descriptor = os.open(self.path.with_suffix(layout.EVENTS_SUFFIX), _READ_FLAGS)
        except FileNotFoundError:
            return b""  # the log has been removed
        except OSError:
            self.errors += 1
            return b""
        try:
            found = os.fstat(descriptor)
            if why_not_ours(found):
                self.errors += 1
                return b""
            if found.st_size < self._events_offset:
                self.errors += 1  # truncated: what comes from now on is new
                self._events_offset = found.st_size
            fresh = min(found.st_size - self._events_offset, layout.EVENTS_MAX_BYTES)
            return os.pread(descriptor, fresh, self._events_offset)
        except OSError:
            self.errors += 1
            return b""
        finally:
            os.close(descriptor)

    def _parse_event(self, line: bytes) -> dict[str, Any] | None:
        if len(line) <= layout.EVENT_MAX_BYTES:
            with contextlib.suppress(ValueError, RecursionError):
                event = json.loads(line)
                # Half a character (a lone surrogate) is legal in JSON and in a str, and in nothing that is sent.
                json.dumps(event, ensure_ascii=False).encode()
                if isinstance(event, dict) and isinstance(event.get("event"), str) and is_count(event.get("ts")):
                    return event
        self.errors += 1
        return None

    def _live_words(self) -> tuple[int, ...]:
        """LAPS, CLOSED, EVENTS_DROPPED and the four LAP_ENDS."""
        if self._words_at_close is not None:
            return self._words_at_close
        text = self._pread(layout.WORD_LAPS * layout.WORD_BYTES, layout.LIVE_WORDS.size)
        if len(text) < layout.LIVE_WORDS.size:
            self.errors += 1
            return -1, *[0] * (2 + layout.LAP_ENDS)
        return layout.LIVE_WORDS.unpack(text)

    def _find_newest(self, *, final: bool = False) -> bool:
        """Move `_published` forward to the newest mark; False if it cannot be told which one that is."""
        for _ in range(_TRIES):
            laps, _closed_ns, _dropped, *lap_ends_ns = self._live_words()
            floor = laps * self.capacity
            if not max(0, self._published - self.capacity) <= floor <= self._published + _IMPOSSIBLE_MARKS:
                self.errors += 1  # a lap count that went backwards, or beyond reason: not the writer's doing
                return False
            floor_ns = lap_ends_ns[laps % layout.LAP_ENDS]
            if laps and floor_ns <= lap_ends_ns[(laps - 1) % layout.LAP_ENDS]:
                self.errors += final  # while the writer lives, its end of the lap may just not be visible yet
                return False
            published, newest_ns = self._newest_of_lap(floor, floor_ns)
            # In another lap by now, the slots may have held marks of either.
            if self._live_words()[0] == laps:
                self._published, self._newest_ns = published, newest_ns
                return True
        return False

    def _newest_of_lap(self, floor: int, floor_ns: int) -> tuple[int, int]:
        """Marks published since the beginning and time of the newest, by the order of times.

        Args:
            floor: number of the first mark of the lap that the writer is in.
            floor_ns: time of the mark before it.
        """
        published, newest_ns, most = self._published, self._newest_ns, _FRESH_MARKS
        if floor > published:
            # A lap has ended since the last look: the newest mark is in the first slots of the next one.
            published, newest_ns = floor, floor_ns
        while published < floor + self.capacity:
            times = self._times_from(published % self.capacity, most)
            most = _CHUNK_MARKS
            fresh = _count_increasing(times, newest_ns)
            if fresh:
                newest_ns = times[fresh - 1]
                published += fresh
            if fresh < len(times) or not times:
                break
        return published, newest_ns

    def _check_rest(self) -> None:
        """Behind the newest mark of a writer that is gone lie marks of the lap before, or nothing in the first lap."""
        floor = self._live_words()[0] * self.capacity
        if self._published < floor + self.capacity:
            times = self._times_from(self._published - floor, _CHUNK_MARKS)
            oldest_ns, newest_ns = (1, self._newest_ns) if floor else (0, 0)
            if times and not oldest_ns <= min(times) <= max(times) <= newest_ns:
                self.errors += 1  # what was taken for the newest mark stands before a damaged one

    def _times_from(self, slot: int, most: int) -> list[int]:
        count = min(most, self.capacity - slot)
        return self._slots(slot, count)[::2]

    def _skip_overwritten(self) -> int:
        lost = self._overwritten_since(self._consumed)
        self._consumed += lost
        return lost

    def _overwritten_since(self, number: int) -> int:
        """How many marks from number `number` on are gone. The oldest may be half overwritten: they count as gone."""
        return max(0, self._published - self.capacity + layout.HALF_STORED - number)

    def _overwritten_meanwhile(self, first: int) -> int:
        """How many marks from number `first` on may have been overwritten while they were read."""
        if first > self._live_words()[0] * self.capacity:
            return 0  # the writer is still in the lap they belong to
        return self._overwritten_since(first) if self._find_newest() else self.capacity

    def _read_marks(self, until: int) -> list[int]:
        marks: list[int] = []
        while self._consumed < until:
            slot = self._consumed % self.capacity
            count = min(until - self._consumed, self.capacity - slot, _CHUNK_MARKS)
            words = self._slots(slot, count)
            marks += words
            self._consumed += count
            if len(words) < 2 * count or 0 in words[::2]:
                self._give_up()  # cut off, or a hole that no writer leaves: there is no more to come
        return marks

    def _give_up(self) -> None:
        """Leave out the rest of what is due."""
        self._consumed = max(self._consumed, self._due)

    def _in_order(self, marks: list[int]) -> list[int]:
        """`marks` up to the first that is older than the one before it; from there on they are not the writer's."""
        good = _count_increasing(marks[::2], self._last_ns)
        if good < len(marks) // 2:
            self.errors += 1
            marks = marks[: 2 * good]
            self._give_up()
        if good:
            self._last_ns = marks[-2]
        return marks

    def _slots(self, slot: int, count: int) -> list[int]:
        text = self._pread(layout.HEADER_BYTES + slot * layout.MARK_BYTES, count * layout.MARK_BYTES)
        whole = len(text) - len(text) % layout.MARK_BYTES
        if whole < count * layout.MARK_BYTES:
            self.errors += 1  # truncated under us
        return memoryview(text[:whole]).cast("q").tolist()

    def _pread(self, offset: int, size: int) -> bytes:
        try:
            return os.pread(self._descriptor, size, offset)
        except OSError:
            return b""


def open_recording(path: Path) -> RecordingReader | Refusal:
    """A reader of the ring file at `path`, or why it cannot be read."""
    try:
        descriptor = os.open(path, _READ_FLAGS)
    except OSError as error:
        return Refusal(path, f"cannot be opened: {error.strerror}", for_now=error.errno in _FOR_NOW)
    header = read_header(descriptor)
    if isinstance(header, Header):
        return RecordingReader(path, descriptor, header)
    os.close(descriptor)
    return Refusal(path, header)


def _count_increasing(times: list[int], floor_ns: int) -> int:
    """How many of `times`, from the first, are set and not below the one before (the first: below `floor_ns`)."""
    for position, time_ns in enumerate(times):
        if time_ns < floor_ns or not time_ns:
            return position
        floor_ns = time_ns
    return len(times)
