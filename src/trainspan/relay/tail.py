"""Follows every recording of a directory: what is new in each, and which have ended."""

import os
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from trainspan.recording import layout
from trainspan.recording.reader import RecordingReader, Refusal, open_recording

MOST_MARKS: Final = 4096
"""In one sighting: some 400 steps. A ring of 2^22 marks at once would take 250 MB, and its steps three times that."""


class Sighting(NamedTuple):
    """What one look at one recording gave.

    `marks`: [time_ns, word, …] in order; `lost` marks before them were overwritten unread.
    `ended`: None while the process lives, "closed" after its orderly close, "died" if it is gone without one. An
    ended recording has been read to its end and is not seen again.
    `more`: what there was to see was too much for one sighting; the next one follows, and tells whether it has ended.
    """

    reader: RecordingReader
    marks: list[int]
    lost: int
    events: list[dict[str, Any]]
    ended: str | None
    more: bool = False


class Tail:
    """The recordings below one directory, read forward.

    Args:
        directory: searched itself and two levels down (run, host), so that a volume of many runs can be served.
        own: the one ring file to follow, made by this very process; None follows all.
        refused: told of each file that cannot be read, once.
    """

    def __init__(self, directory: Path, refused: Callable[[Refusal], None], own: Path | None = None):
        self._directory = directory
        self._refused = refused
        self._own = own
        self._open: dict[Path, RecordingReader] = {}
        self._done: set[Path] = set()
        self._left: set[Path] = set()

    def look(self) -> Iterator[Sighting]:
        """One look at every recording, those that have appeared since the last look included.

        Where there is much to see, the recordings take turns, so that the parts of one step come close together.
        """
        found = set(self._ring_files())
        for path in sorted(found - self._open.keys() - self._done - self._left):
            self._admit(path)
        # What cannot be listed for a moment may still be there, and would be read twice.
        self._done = {path for path in self._done if path in found or os.path.lexists(path)}
        turns = deque(self._open.items())
        while turns:
            path, reader = turns.popleft()
            if path not in self._open:
                continue  # left since
            sighting = self._look_at(reader)
            if sighting.more:
                turns.append((path, reader))
            yield sighting
            if sighting.ended and path in self._open:
                del self._open[path]
                self._done.add(path)

    def leave(self, run: str) -> None:
        """Follow the recordings of a run no further, until `look_again`."""
        for path, reader in list(self._open.items()):
            if reader.identity.run == run:
                del self._open[path]
                self._left.add(path)
                reader.close()

    def look_again(self) -> None:
        """Follow, from their beginning, the recordings that were left."""
        self._left.clear()

    @property
    def left(self) -> frozenset[Path]:
        """The recordings that were left."""
        return frozenset(self._left)

    def open_runs(self) -> set[str]:
        """The runs with a recording whose process has not ended."""
        return {reader.identity.run for reader in self._open.values()}

    def open_recordings(self) -> int:
        """Recordings whose process has not ended."""
        return len(self._open)

    def pids(self) -> set[int]:
        """Of the processes whose recordings are open; those of this process's own host, as its namespace has them."""
        return {reader.identity.pid for reader in self._open.values()}

    def _admit(self, path: Path) -> None:
        opened = open_recording(path)
        if isinstance(opened, Refusal):
            (self._left if opened.for_now else self._done).add(path)
            self._refused(opened)
        else:
            self._open[path] = opened

    def _look_at(self, reader: RecordingReader) -> Sighting:
        # Asked before the bytes are read: what a process wrote before it ended is then there to be read.
        ended = self._end_of(reader)
        look = reader.look(final=ended is not None, most=MOST_MARKS)
        if look.more:
            return Sighting(reader, look.marks, look.lost, reader.events(), None, more=True)
        return Sighting(reader, look.marks, look.lost, reader.events(), ended)

    def _end_of(self, reader: RecordingReader) -> str | None:
        if reader.closed_ns() is not None:
            return "closed"
        # A process holds no lock against itself, and its own thread cannot outlive it.
        if self._own or reader.writer_lives():
            return None
        # It may have closed between the two questions.
        return "died" if reader.closed_ns() is None else "closed"

    def _ring_files(self) -> Iterator[Path]:
        if self._own:
            yield self._own
            return
        yield from _files_below(self._directory, levels=2)


def _files_below(directory: Path, levels: int) -> Iterator[Path]:
    try:
        entries = list(os.scandir(directory))
    except OSError:
        return  # gone since it was listed, or not ours to read
    for entry in entries:
        if entry.name.endswith(layout.RING_SUFFIX):
            yield Path(entry.path)
        elif levels and entry.is_dir(follow_symlinks=False):
            yield from _files_below(Path(entry.path), levels - 1)
