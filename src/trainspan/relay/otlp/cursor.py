"""How far a journal has been delivered, in a small file beside it that is replaced whole."""

import contextlib
import json
import os
from pathlib import Path
from typing import NamedTuple

from trainspan.relay.otlp import lines

SUFFIX = ".cursor"


class Cursor(NamedTuple):
    """A place in a journal. Everything before it is delivered, or was dropped.

    `offset_bytes`: where the first line not delivered begins.
    `lines`: delivered from this file.
    `first_line_crc`: of the file's first line. A journal is cut off at its front from time to time; a cursor that was
    written before means nothing after. The inode would tell too, but not on the machine a run folder was copied to.
    """

    offset_bytes: int
    lines: int
    first_line_crc: int


START = Cursor(0, 0, 0)


def path_of(journal: Path) -> Path:
    """Where the cursor of `journal` is kept."""
    return journal.with_name(journal.name + SUFFIX)


def load(path: Path) -> Cursor:
    """The cursor in `path`; the start, if there is none that can be read."""
    try:
        fields = json.loads(path.read_bytes())
        return Cursor(*(int(fields[name]) for name in Cursor._fields))
    except (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return START


def save(path: Path, cursor: Cursor) -> None:
    """Replace what is in `path`.

    Raises:
        OSError: it could not be written; what was there before still is.
    """
    # One writer at a time, by the journal's lock: a file of this name is what a killed writer left behind.
    spare = path.with_name(f".{path.name}.new")
    with contextlib.suppress(FileNotFoundError):
        spare.unlink()
    descriptor = os.open(spare, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        lines.append(descriptor, json.dumps(cursor._asdict()).encode())
    finally:
        os.close(descriptor)
    spare.replace(path)
