"""The file that a relay writes for the report, which no other relay writes.

    summary.json, summary.3.json      of a node, by its rank
    summary.<host>-<pid>.json         of a relay beside the one that has the node's: each rank has a relay thread of
                                      its own, or two hosts both take themselves for the first node

A summary is put in the place of the one before it, and a lock on it would go with that one. So the lock is on an empty
file beside it: `.summary.json.lock`. What a relay that is gone has left under a name of its own, the next one of this
host takes into its own file. The report reads them all.
"""

import contextlib
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

from trainspan.errors import RecordingError, RecordingRefused
from trainspan.relay.otlp.claims import Claim, claim_file, host_in_names
from trainspan.relay.timeline.summary import Summary

SUMMARY_INTERVAL_NS: Final = 5_000_000_000
SUMMARY_BYTES_PER_S: Final = 100_000
SUMMARY_SLOWEST_NS: Final = 45_000_000_000
"""A summary holds every process of the node, of all attempts: one that has grown large is written less often, but
before the report takes the run for silent."""

_OWN_NAME: Final = "summary.{host}-{pid}.json"


class SummaryFile:
    """The one that a relay writes, from now on until it is released.

    Args:
        folder: the run folder.
        node_rank: rank of the node in the job.

    Attributes:
        path: of the file; it need not exist.
        beside: whether another relay has the node's file.
    """

    def __init__(self, folder: Path, node_rank: int):
        self.path = folder / (f"summary.{node_rank}.json" if node_rank else "summary.json")
        # Where a file system has no locks, the node's relay is alone for all we know.
        self._claim = _claim(self.path, unlocked=True)
        self.beside = self._claim is None
        if self.beside:
            self.path = folder / _OWN_NAME.format(host=host_in_names(), pid=os.getpid())
            self._claim = _claim(self.path, unlocked=True)
        self._left_behind: dict[Path, Claim] = {}

    def take_left_behind(self, run: str) -> Summary:
        """What relays of this host have left of the run that are gone; this relay's file is to hold it from now on."""
        found = Summary(run)
        pattern = re.compile(_OWN_NAME.format(host=re.escape(host_in_names()), pid="[0-9]+"))
        for path in sorted(self.path.parent.glob("summary.*.json")):
            if path == self.path or not pattern.fullmatch(path.name):
                continue
            claimed = _claim(path, unlocked=False)
            if claimed is None:
                continue
            try:
                found.merge(Summary.from_text(path.read_bytes()))
                self._left_behind[path] = claimed
            except FileNotFoundError:
                _remove(path, claimed)  # another relay was faster; only the lock's file is there again
            except (OSError, RecordingError):
                claimed.release()  # it stays for the report, which says what is wrong with it
        return found

    def remove_left_behind(self) -> None:
        """Take away what `take_left_behind` has found: it is in this relay's file by now."""
        for path, claimed in self._left_behind.items():
            _remove(path, claimed)
        self._left_behind.clear()

    def release(self) -> None:
        """Let another relay have it."""
        for claimed in self._left_behind.values():
            claimed.release()
        self._left_behind.clear()
        if self._claim is not None:
            if self.beside:
                _lock_of(self.path).unlink(missing_ok=True)
            self._claim.release()
            self._claim = None


def read_summary(path: Path, run: str, log: Callable[[str], None]) -> Summary:
    """The summary at `path`, to be continued; an empty one if there is none, or one that is set aside as damaged.

    Raises:
        RecordingRefused: there may be one, and it cannot be read now: it is not to be replaced by less.
    """
    try:
        return Summary.from_text(path.read_bytes())
    except FileNotFoundError:
        return Summary(run)
    except OSError as error:
        raise RecordingRefused(f"{path} cannot be read ({error.strerror})") from error
    except RecordingError as error:
        aside = path.with_suffix(".damaged")
        log(f"{path} cannot be continued ({error}); it is kept as {aside.name}")
        path.replace(aside)
        return Summary(run)


def write_summary(path: Path, summary: Summary, complain: Callable[[str, str], None]) -> int | None:
    """Put a summary in the place of the one before it: how many bytes it has; None: the disk has not taken it."""
    spare = path.with_name(f".{path.name}.new")
    text = json.dumps(summary.to_json(), separators=(",", ":"))
    try:
        spare.write_text(text)
        spare.chmod(0o600)
        spare.replace(path)
    except OSError as error:
        complain("summary", f"{path} cannot be written ({error.strerror}); the report will not see the newest steps")
        return None
    return len(text)


def _claim(path: Path, *, unlocked: bool) -> Claim | None:
    with contextlib.suppress(RecordingRefused):  # that the folder cannot be written is said when the summary is
        return claim_file(_lock_of(path), os.O_CREAT, unlocked=unlocked)
    return None


def _lock_of(path: Path) -> Path:
    return path.with_name(f".{path.name}.lock")


def _remove(path: Path, claimed: Claim) -> None:
    for one in (path, _lock_of(path)):
        with contextlib.suppress(OSError):
            one.unlink()
    claimed.release()


def summary_interval_ns(size_bytes: int) -> int:
    """After how long a summary of that size is written again."""
    return min(max(writing_ns(size_bytes), SUMMARY_INTERVAL_NS), SUMMARY_SLOWEST_NS)


def writing_ns(size_bytes: int) -> int:
    """How long the writing of a summary of that size is to be spread over."""
    return size_bytes * 1_000_000_000 // SUMMARY_BYTES_PER_S
