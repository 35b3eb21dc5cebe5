"""The facts of a run on disk, so that a history outlives every process: one folder, one writer per file.

    <node>-<begin>-<pid>-<number>.jsonl    being written: one fact a line, appended whole
    <node>-<begin>-<pid>-<number>.packed   finished: the same facts; steps of a rank as columns

A line is a JSON array: the kind, then the fact's fields as far as they differ from their defaults. A file is cut
anywhere by a crash: what is lost is the line it was cut in. A file is never opened for writing again, so a torn line
cannot swallow the next one. `pack` writes beside, syncs, renames, and only then removes; whoever reads in between
meets facts twice, which changes nothing. Reading needs no order, so the folder may be shared by all nodes.

A line of columns is `["steps", attempt, rank, base64(zlib(json))]`. The columns hold differences where the values grow:
10 to 15 bytes for a step with one piece. Nothing is rounded.
"""

import base64
import json
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain, islice
from pathlib import Path
from typing import Any

from trainspan.relay.goodput.facts import Activity, Alive, Begun, Ended, Fact, Loaded, Piece, Saved, Step, is_sound

ROTATE_BYTES = 1 << 20
STEPS_PER_LINE = 1024
COLUMNS_MAX_BYTES = 4 << 20
"""Bound of what one line of columns may unpack to: a hostile line cannot fill the memory."""

FILE_MODE = 0o600
_RAW, _PACKED, _UNFINISHED = ".jsonl", ".packed", ".tmp"
_KINDS: dict[str, Callable[..., Fact]] = {
    "begun": Begun,
    "step": Step,
    "activity": Activity,
    "saved": Saved,
    "loaded": Loaded,
    "alive": Alive,
    "ended": Ended,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}
_STEPS = "steps"


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
        safe = "".join(c if c.isalnum() or c in "._-" else "-" for c in node)[:64].lstrip(".") or "node"
        self._stem = f"{safe}-{begin_ns:x}-{os.getpid()}"
        self._folder = folder
        self._rotate_bytes = rotate_bytes
        self._number = 0
        self._open()

    def _open(self) -> None:
        self._path = self._folder / f"{self._stem}-{self._number:06d}{_RAW}"
        self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, FILE_MODE)
        self._size_bytes = 0

    def append(self, facts: Iterable[Fact]) -> None:
        """Write `facts` with one call; a SIGKILL after it loses none of them, a power cut what was not synced.

        Raises:
            OSError: the disk is full or gone.
        """
        lines = b"".join(line_of(fact) for fact in facts)
        if lines:
            os.write(self._file, lines)
            self._size_bytes += len(lines)
        if self._size_bytes >= self._rotate_bytes:
            self._rotate()

    def sync(self) -> None:
        """Return when what was appended is on the disk itself."""
        os.fsync(self._file)

    def close(self) -> None:
        """Finish: the last file is packed."""
        os.close(self._file)
        pack(self._path)

    def _rotate(self) -> None:
        finished = self._path
        os.close(self._file)
        self._number += 1
        self._open()
        pack(finished)


@dataclass(slots=True)
class Reading:
    """What reading met. `damaged`: lines that were torn, foreign or hostile, and left out."""

    files: int = 0
    facts: int = 0
    damaged: int = 0
    where: list[str] = field(default_factory=list)
    """Names of the files with damage."""


def read(folder: Path, reading: Reading | None = None) -> Iterator[Fact]:
    """Every fact in the ledger, each at least once, in no order that matters.

    Raises:
        OSError: the folder cannot be read.
    """
    reading = Reading() if reading is None else reading
    for path in sorted(folder.iterdir()):
        if path.suffix in (_RAW, _PACKED):
            yield from read_file(path, reading)


def read_file(path: Path, reading: Reading) -> Iterator[Fact]:
    """Every fact in one file. A file that another process has just packed and removed holds nothing."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        reading.files += 1
        damaged = reading.damaged
        for line in file:
            try:
                facts = facts_of(line)
            except (ValueError, TypeError, KeyError, IndexError, OverflowError, RecursionError, zlib.error):
                reading.damaged += 1
                continue
            reading.facts += len(facts)
            yield from facts
        if reading.damaged > damaged:
            reading.where.append(path.name)


def pack(path: Path) -> Path | None:
    """Put the packed form in the place of a finished file; the facts stay the same. None if it is packed already.

    Raises:
        OSError: the disk is full or gone; the file is untouched then.
    """
    packed = path.with_suffix(_PACKED)
    unfinished = path.with_suffix(_UNFINISHED)
    facts = list(read_file(path, Reading()))
    if not path.exists():
        return None
    file = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE_MODE)
    with os.fdopen(file, "wb") as out:
        out.writelines(_packed_lines(facts))
        out.flush()
        os.fsync(file)
    os.replace(unfinished, packed)
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


def line_of(fact: Fact) -> bytes:
    """The line that holds one fact."""
    fields = list(fact)
    defaults = fact._field_defaults
    for name in reversed(fact._fields):
        if name not in defaults or defaults[name] != fields[-1]:
            break
        fields.pop()
    return json.dumps([_NAMES[type(fact)], *fields], separators=(",", ":")).encode() + b"\n"


def facts_of(line: bytes) -> Sequence[Fact]:
    """The facts in one line.

    Raises:
        ValueError, TypeError, KeyError, IndexError, OverflowError, zlib.error: it is torn or none of ours.
    """
    kind, *fields = json.loads(line)
    if kind == _STEPS:
        return _unpacked(*fields)
    if kind == "step" and len(fields) > 5:
        fields[5] = tuple(Piece(*piece) for piece in fields[5])
    fact = _KINDS[kind](*fields)
    if not is_sound(fact):
        raise ValueError("a field is out of its range")
    return (fact,)


def _packed_lines(facts: Iterable[Fact]) -> Iterator[bytes]:
    """The lines of a packed file: the steps of each rank as columns, the rest as they are."""
    steps: dict[tuple[int, int], list[Step]] = {}
    for fact in dict.fromkeys(facts):
        if isinstance(fact, Step):
            steps.setdefault(fact[:2], []).append(fact)
        else:
            yield line_of(fact)
    for (attempt, rank), made in steps.items():
        made.sort(key=lambda step: step[2:5])
        for first in range(0, len(made), STEPS_PER_LINE):
            columns = json.dumps(_columns_of(made[first : first + STEPS_PER_LINE]), separators=(",", ":"))
            packed = base64.b64encode(zlib.compress(columns.encode(), 6)).decode()
            yield json.dumps([_STEPS, attempt, rank, packed], separators=(",", ":")).encode() + b"\n"


def _columns_of(steps: Sequence[Step]) -> list[Any]:
    """The columns of some steps: numbers and starts as differences, pieces relative to their step."""
    numbers = [step.number for step in steps]
    ends = [0, *(step.end_ns for step in steps)]
    pieces = [(piece, step) for step in steps for piece in step.pieces]
    states = sorted({piece.state for piece, _ in pieces})
    return [
        [after - before for before, after in zip([0, *numbers], numbers, strict=False)],
        [step.start_ns - before_ns for before_ns, step in zip(ends, steps, strict=False)],
        [step.end_ns - step.start_ns for step in steps],
        [len(step.pieces) for step in steps],
        [step.steps << 2 | step.recompiled << 1 | step.complete for step in steps],
        states,
        [states.index(piece.state) for piece, _ in pieces],
        [piece.start_ns - step.start_ns for piece, step in pieces],
        [piece.end_ns - piece.start_ns for piece, _ in pieces],
    ]


def _unpacked(attempt: int, rank: int, packed: str) -> list[Step]:
    """The steps in a line of columns."""
    inflate = zlib.decompressobj()
    columns = json.loads(inflate.decompress(base64.b64decode(packed, validate=True), COLUMNS_MAX_BYTES))
    numbers, gaps_ns, lengths_ns, counts, flags, states, codes, offsets_ns, spans_ns = columns
    if not states:
        states = [""]
    ends_ns = list(accumulate(chain.from_iterable(zip(gaps_ns, lengths_ns, strict=True))))
    starts_ns, ends_ns = ends_ns[::2], ends_ns[1::2]
    begins_ns = chain.from_iterable([start_ns] * count for start_ns, count in zip(starts_ns, counts, strict=True))
    pieces = (
        Piece(states[code], begin_ns + offset_ns, begin_ns + offset_ns + span_ns)
        for code, begin_ns, offset_ns, span_ns in zip(codes, begins_ns, offsets_ns, spans_ns, strict=True)
    )
    steps = [
        Step(
            attempt, rank, number, start_ns, end_ns, tuple(islice(pieces, count)), flag & 2 > 0, flag >> 2, flag & 1 > 0
        )
        for number, start_ns, end_ns, count, flag in zip(
            accumulate(numbers), starts_ns, ends_ns, counts, flags, strict=True
        )
    ]
    if not all(map(is_sound, steps)):
        raise ValueError("a field is out of its range")
    return steps
