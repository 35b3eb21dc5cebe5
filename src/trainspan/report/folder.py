"""Which run is meant, and what its folder holds."""

import contextlib
import os
import time
from pathlib import Path
from typing import NamedTuple

from trainspan.errors import RecordingError, RunNotFound
from trainspan.recording import layout
from trainspan.relay.timeline.summary import Summary

SUMMARIES = "summary*.json"
_TRIES = 5


class Loaded(NamedTuple):
    """What was read of a run. `silent_s`: how long ago the newest summary was written, in s."""

    summary: Summary
    silent_s: float


def find_run(state: Path, wanted: str | None) -> Path:
    """The folder of the run that is meant.

    Args:
        state: the state directory, which holds `runs/`.
        wanted: a run id, the beginning of just one, or the path of a run folder; None: the newest run
            that anything was recorded of.

    Raises:
        RunNotFound: there is none, or more than one.
    """
    if wanted is not None and (os.sep in wanted or wanted in {".", ".."}):
        return _existing(Path(wanted))
    runs = state / "runs"
    folders = [folder for folder in _subfolders(runs) if not folder.name.startswith(".")]
    if wanted is None:
        if not folders:
            raise RunNotFound(f"no run in {runs}; record one: trainspan run -- python train.py")
        return max(folders, key=lambda folder: (_is_recorded(folder), _changed_ns(folder)))
    return _matching(folders, wanted, runs)


def load_run(folder: Path) -> Loaded:
    """Everything that the nodes of the run have written.

    Raises:
        RunNotFound: nothing is there to read yet.
        RecordingError: a summary is torn or of another version.
    """
    for _ in range(_TRIES):
        # A relay may take what another one has left into its own file between the list and the reading.
        with contextlib.suppress(FileNotFoundError):
            return _load(folder, sorted(folder.glob(SUMMARIES)))
    raise RunNotFound(f"{folder}: its summaries come and go; try again")


def _load(folder: Path, paths: list[Path]) -> Loaded:
    if not paths:
        raise RunNotFound(
            f"{folder} holds no summary: no step has been read yet; if nothing reads it (TRAINSPAN_RELAY=off), "
            f"fold the recordings first: trainspan replay {folder}"
        )
    summaries = [_read(path) for path in paths]
    summary = summaries[0]
    for other in summaries[1:]:
        summary.merge(other)
    newest_s = max(path.stat().st_mtime for path in paths)
    return Loaded(summary, max(time.time() - newest_s, 0.0))


def _read(path: Path) -> Summary:
    try:
        return Summary.from_text(path.read_bytes())
    except FileNotFoundError:
        raise
    except OSError as error:
        raise RunNotFound(f"{path} cannot be read: {error.strerror}") from error
    except RecordingError as error:
        raise RecordingError(f"{path}: {error}") from error


def _existing(folder: Path) -> Path:
    if not folder.is_dir():
        raise RunNotFound(f"there is no folder {folder}")
    return folder.resolve()


def _matching(folders: list[Path], wanted: str, runs: Path) -> Path:
    exact = [folder for folder in folders if folder.name == wanted]
    matching = exact or [folder for folder in folders if folder.name.startswith(wanted)]
    if len(matching) == 1:
        return matching[0]
    newest = sorted(matching or folders, key=_changed_ns, reverse=True)
    some = ", ".join(folder.name for folder in newest[:5]) + (", ..." if len(newest) > 5 else "")
    if matching:
        raise RunNotFound(f"{wanted!r} begins the id of {len(matching)} runs, name one: {some}")
    raise RunNotFound(f"no run {wanted!r} in {runs}" + (f"; there are: {some}" if folders else ""))


def _subfolders(path: Path) -> list[Path]:
    try:
        return [entry for entry in path.iterdir() if entry.is_dir()]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RunNotFound(f"{path} cannot be read: {error.strerror}") from error


def _is_recorded(folder: Path) -> bool:
    """Whether a relay has read anything of the run, or could."""
    patterns = (SUMMARIES, f"recordings/*/*{layout.RING_SUFFIX}")
    with contextlib.suppress(OSError):  # replaced since it was listed, or closed to this user
        return any(next(folder.glob(pattern), None) is not None for pattern in patterns)
    return False


def _changed_ns(folder: Path) -> int:
    """When the run last gave news of itself."""
    changed = [folder.stat().st_mtime_ns]
    with contextlib.suppress(FileNotFoundError):  # replaced since it was listed, which changed the folder too
        changed += [path.stat().st_mtime_ns for path in folder.glob(SUMMARIES)]
    return max(changed)
