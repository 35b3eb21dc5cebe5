"""Recordings for tests: made by the real writer and marker, read by the real reader."""

import itertools
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from trainspan.record.marker import Marker, make_marker
from trainspan.recording import layout
from trainspan.recording.reader import Look, RecordingReader, Refusal, open_recording
from trainspan.recording.writer import RecordingWriter
from trainspan.testing.builders import identity_of

FIRST_WORD = layout.HEADER_BYTES // layout.WORD_BYTES
CAPACITY = layout.CAPACITY_MIN
PROCESS_START_NS = 1_000_000


class Recording(NamedTuple):
    """A recording that this process writes."""

    writer: RecordingWriter
    marker: Marker


def record_into(directory: Path, capacity: int = CAPACITY) -> Recording:
    """A new recording in `directory`, open, and the marker that writes into it."""
    writer = RecordingWriter.create(directory, identity_of(), capacity, PROCESS_START_NS)
    marker = make_marker(threading.get_ident)
    marker.attach(writer.words, capacity)
    return Recording(writer, marker)


def opened(path: Path) -> RecordingReader:
    """A reader of the recording at `path`."""
    reader = open_recording(path)
    assert not isinstance(reader, Refusal), reader
    return reader


def pairs_of(look: Look) -> list[tuple[int, int]]:
    """The marks of a look as (time_ns, word)."""
    return list(zip(look.marks[::2], look.marks[1::2], strict=True))


def step_word(number: int) -> int:
    """The word of the mark that completes step `number` outside of every phase."""
    return number << layout.OPERAND_SHIFT | layout.STEP


class Store(NamedTuple):
    """One store of a rank: `words[at] = value`. `complete`: the marks that are whole when it is done."""

    at: int
    value: int
    complete: int


def stores_of_steps(capacity: int) -> Iterator[Store]:
    """What `Marker.step(0)` stores, again and again, one store at a time.

    The times are made up: they never fall, and now and then two marks share one.
    """
    number, time_ns = 0, 1000
    for laps in itertools.count(1):
        for index in range(FIRST_WORD, FIRST_WORD + 2 * capacity, 2):
            time_ns += number % 3
            yield Store(index + 1, step_word(number), number)
            number += 1
            yield Store(index, time_ns, number)
        yield Store(layout.WORD_LAP_ENDS + laps % layout.LAP_ENDS, time_ns, number)
        yield Store(layout.WORD_LAPS, laps, number)


class Processor:
    """Does the stores of a rank, or some of them a little later, so that others are visible before them.

    Attributes:
        complete: marks that are whole, once all stores are visible.
    """

    def __init__(self, words: memoryview):
        self.complete = 0
        self._words = words
        self._stores = stores_of_steps(len(words) // 2 - FIRST_WORD // 2)
        self._held: list[Store] = []

    def store(self, count: int, hold: int = 0) -> None:
        """Do `count` stores more.

        Args:
            count: how many.
            hold: how many of them, from the last but one backwards, are not visible before the next call.
        """
        self.settle()
        stores = list(itertools.islice(self._stores, count))
        if stores:
            self.complete = stores[-1].complete
        self._held = stores[-1 - hold : -1] if hold else []
        for at, value, _complete in stores[: len(stores) - 1 - len(self._held)] + stores[-1:]:
            self._words[at] = value

    def settle(self) -> None:
        """Make everything visible."""
        for at, value, _complete in self._held:
            self._words[at] = value
        self._held = []
