"""The facts of a run on disk, so that a history outlives every process: one folder, one writer per file.

    <node>-<begin>-<pid>-<number>.jsonl    being written: one fact a line, appended whole
    <node>-<begin>-<pid>-<number>.packed   finished: the same facts; steps of a rank as columns

A file is cut anywhere by a crash: what is lost is the line it was cut in. A file is never opened for writing again, so
a torn line cannot swallow the next one. `pack` writes beside, syncs, renames, and only then removes; whoever reads in
between meets facts twice, which changes nothing. Reading needs no order, so the folder may be shared by all nodes.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from trainspan.relay.goodput.facts import Fact, StepRun, start_of
from trainspan.relay.goodput.lines import DAMAGE, LINE_MAX_BYTES, fact_of, line_of, packed_lines

ROTATE_BYTES = 1 << 20
FILE_MODE = 0o600
_RAW, _PACKED, _UNFINISHED = ".jsonl", ".packed", ".tmp"
_HEXADECIMAL = re.compile("[0-9a-f]{1,16}")


class LedgerWriter:
    """Appends the facts of one node. Not for two threads."""

    def __init__(self, folder: Path, node: str, begin_ns: int, rotate_bytes: int = ROTATE_BYTES) -> None:
        """Open a new file in `folder`, which must exist and be private.

        Args:
            folder: the run's ledger folder, shared by all nodes or one per node.
            node: this host; it becomes part of the file's name.
            begin_ns: Unix ns; with the process id it makes the name this writer's own.
            rotate_bytes: size at which a file is packed and the next begun.

        Raises:
            OSError: the file cannot be made.
        """
        self._stem = f"{name_of(node)}-{begin_ns:x}-{os.getpid()}"
        self._folder = folder
        self._rotate_bytes = rotate_bytes
        self._number = 0
        self._open()

    def _open(self) -> None:
        self._path = self._folder / f"{self._stem}-{self._number:06d}{_RAW}"
        self.descriptor = os.open(
            self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, FILE_MODE
        )
        self._size_bytes = 0
        self._torn = False  # a write failed in the middle of a line and stays: nothing may follow it in this file

    def append(self, facts: Iterable[Fact]) -> None:
        """Write `facts` with one call; a SIGKILL after it loses none of them, a power cut what was not synced.

        Raises:
            OSError: the disk is full or gone.
        """
        lines = b"".join(line_of(fact) for fact in facts)
        if not lines:
            return
        if self._torn or self._size_bytes >= self._rotate_bytes:
            self._rotate()
        before_bytes = self._size_bytes
        try:
            while lines:
                written = os.write(self.descriptor, lines)
                self._size_bytes += written
                lines = lines[written:]
        except OSError:
            self._cut(before_bytes)
            raise

    def _cut(self, size_bytes: int) -> None:
        """Take back what did not fit: a file for each try would fill a full disk with files."""
        try:
            os.ftruncate(self.descriptor, size_bytes)
        except OSError:
            self._torn = True
        else:
            self._size_bytes = size_bytes

    def sync(self) -> None:
        """Return when what was appended is on the disk itself."""
        os.fsync(self.descriptor)

    def close(self) -> None:
        """Finish: the last file is packed."""
        os.close(self.descriptor)
        pack(self._path)

    def _rotate(self) -> None:
        finished = self._path
        os.close(self.descriptor)
        self._number += 1
        self._open()
        pack(finished)


class File(NamedTuple):
    """A file of a ledger. `node`: its `name_of`; `began_ns`: when its writer began; 0: its name does not tell."""

    path: Path
    node: str
    began_ns: int
    size_bytes: int


def name_of(node: str) -> str:
    """A host as the names of its files have it."""
    return "".join(c if c.isalnum() or c in "._-" else "-" for c in node)[:64].lstrip(".") or "node"


def files_in(folder: Path) -> list[File]:
    """Every file of the ledger, those of each writer in the order in which they were written.

    Raises:
        OSError: the folder cannot be read.
    """
    paths = [path for path in sorted(folder.iterdir()) if path.suffix in (_RAW, _PACKED)]
    return [_file(path) for path in paths]


def _file(path: Path) -> File:
    node, began, *_ = [*path.stem.rsplit("-", 3), "", ""]
    try:
        size_bytes = path.stat().st_size
    except FileNotFoundError:  # another process has just packed it
        size_bytes = 0
    return File(path, node, int(began, 16) if _HEXADECIMAL.fullmatch(began) else 0, size_bytes)


@dataclass(slots=True)
class Reading:
    """What reading met. `damaged`: lines that were torn, foreign or hostile, and left out."""

    files: int = 0
    facts: int = 0
    damaged: int = 0
    where: list[str] = field(default_factory=list)
    """Names of the files with damage."""


def read(
    folder: Path,
    reading: Reading | None = None,
    on_progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Iterator[Fact]:
    """Every fact in the ledger, each at least once, in no order that matters.

    Args:
        folder: of the ledger.
        reading: what is met is counted here.
        on_progress: told after each file how many bytes have been read, and of how many.

    Raises:
        OSError: the folder cannot be read.
    """
    reading = Reading() if reading is None else reading
    files = files_in(folder)
    done_bytes, total_bytes = 0, sum(file.size_bytes for file in files)
    for file in files:
        yield from read_file(file.path, reading)
        done_bytes += file.size_bytes
        on_progress(done_bytes, total_bytes)


def read_file(path: Path, reading: Reading) -> list[Fact]:
    """Every fact in one file, in order of time: what a history takes in fastest.

    One that its writer has packed and removed since it was listed is read in its packed form.
    """
    facts: list[Fact] = []
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return read_file(path.with_suffix(_PACKED), reading) if path.suffix == _RAW else facts
    with file:
        damaged = 0
        for line in iter(lambda: file.readline(LINE_MAX_BYTES), b""):
            try:
                facts.append(fact_of(line))
            except DAMAGE:
                damaged += 1
    reading.files += 1
    reading.facts += sum(len(fact.numbers) if isinstance(fact, StepRun) else 1 for fact in facts)
    reading.damaged += damaged
    if damaged:
        reading.where.append(path.name)
    return sorted(facts, key=start_of)


def pack(path: Path) -> Path | None:
    """Put the packed form in the place of a finished file; the facts stay the same. None if it is packed already.

    Raises:
        OSError: the disk is full or gone; the file is untouched then.
    """
    packed = path.with_suffix(_PACKED)
    unfinished = path.with_suffix(_UNFINISHED)
    facts = read_file(path, Reading())
    if not path.exists():
        return None
    file = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE_MODE)
    try:
        with os.fdopen(file, "wb") as out:
            out.writelines(packed_lines(facts))
            out.flush()
            os.fsync(file)
    except OSError:
        unfinished.unlink()
        raise
    unfinished.replace(packed)
    _sync_folder(path.parent)
    path.unlink()
    return packed


def compact(folder: Path) -> int:
    """Pack every file of a run that nobody writes any more; how many were packed."""
    return sum(pack(path) is not None for path in sorted(folder.glob(f"*{_RAW}")))


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
