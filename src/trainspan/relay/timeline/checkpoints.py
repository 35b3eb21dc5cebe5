"""What a rank tells of a checkpoint, read with distrust: a log can hold anything."""

from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple

Kind = Literal["save", "load"]
_KINDS: Final[Mapping[object, Kind]] = {"save": "save", "load": "load"}
_PATH_CHARACTERS: Final = 1024


class Checkpoint(NamedTuple):
    """One call that saved or loaded, and has ended. Times are monotonic ns of the rank's host.

    `part`: `blocking`; or of an asynchronous save `staging`, which blocks, and `background`.
    `path`: what may be told of where it lies: a hash, the path, or None.
    `size_bytes`: of the file, or of what was written into a directory; None: not known, or nothing was saved.
    """

    kind: Kind
    part: str
    ok: bool
    start_ns: int
    end_ns: int
    path: str | None
    size_bytes: int | None


def checkpoint_of(event: Mapping[str, Any]) -> Checkpoint | None:
    """The checkpoint that an event `checkpoint` tells of; None if it makes no sense."""
    kind, start_ns, end_ns = _kind_of(event.get("kind")), event.get("start_ns"), event.get("end_ns")
    if kind is None or not (isinstance(start_ns, int) and isinstance(end_ns, int)):
        return None
    if not 0 <= start_ns <= end_ns < 1 << 62:
        return None
    path = event.get("path")
    sizes = (event.get("bytes"), event.get("directory_bytes"))
    return Checkpoint(
        kind,
        _part_of(event),
        event.get("ok") is True,
        start_ns,
        end_ns,
        path[:_PATH_CHARACTERS] if isinstance(path, str) else None,
        next((size for size in sizes if isinstance(size, int) and 0 <= size < 1 << 62), None),
    )


def _kind_of(told: object) -> Kind | None:
    return _KINDS.get(told) if isinstance(told, str) else None


def _part_of(event: Mapping[str, Any]) -> str:
    if event.get("staging") is True:
        return "staging"
    return "blocking" if event.get("blocking") is True else "background"
