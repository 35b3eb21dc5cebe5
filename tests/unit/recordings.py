"""Recordings for tests: made by the real writer and marker, read by the real reader."""

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


def stores_of_steps(words: memoryview, capacity: int) -> Iterator[int]:
    """Store what `Marker.step(0)` would, one store each time the iterator is moved; yields the marks complete so far.

    The times are made up: they never fall, and now and then two marks share one. The last time of a lap and the lap
    count are one store here; what a reader may see between them is a known gap of the format.
    """
    laps = number = 0
    time_ns = 1000
    while True:
        for position in range(FIRST_WORD, FIRST_WORD + 2 * capacity, 2):
            words[position + 1] = step_word(number)
            yield number
            words[position] = time_ns
            number += 1
            time_ns += number % 3
            if position < FIRST_WORD + 2 * capacity - 2:
                yield number
        laps += 1
        words[layout.WORD_LAPS] = laps
        yield number
