"""How a process came to its end: what its recording says of it, and what those say who started it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from trainspan.relay.follower import RankFollower
from trainspan.relay.launchers import Launchers
from trainspan.relay.timeline.records import ProcessEnd

LEAVING_NS: Final = 60_000_000_000
"""How long a process that has closed its recording may take to leave, as far as its exit code is waited for."""


@dataclass(slots=True)
class Dying:
    """A process that is gone, or has closed its recording.

    `seen_ns` is when that was noticed, or when it was last seen to be there all the same; `closed` what its recording
    says of the end.
    """

    follower: RankFollower
    seen_ns: int
    closed: ProcessEnd | None = None

    def awaits_word(self, launchers: Launchers, now_ns: int, wait_ns: int) -> bool:
        """Whether who started it may yet say how it ended.

        Args:
            launchers: of this host.
            now_ns: monotonic time.
            wait_ns: the time it has to say so, once the process has left. Only then is there an exit code, and to free
                devices and hand in logs takes a while.
        """
        if not launchers.may_tell(self.follower.reader):
            return False
        leaves = self.closed is not None and now_ns - self.closed.at_ns < LEAVING_NS
        if leaves and _is_there(self.follower.reader.identity.pid):
            self.seen_ns = now_ns
        return now_ns - self.seen_ns < wait_ns

    def end(self, launchers: Launchers) -> ProcessEnd:
        """How it ended, as far as that is known now."""
        if self.follower.ended_before is not None:
            return self.follower.ended_before
        ended, stopped = (say(self.follower.reader) for say in (launchers.ended, launchers.stopped))
        cause = None if ended is None else ended.cause
        if self.closed is not None:
            left = self.closed.reason == "closed" and cause is not None
            return self.closed._replace(reason="exited", cause=cause) if left else self.closed
        stopped_by = self.follower.stopped_by if stopped is None else stopped.cause
        if cause is None and stopped_by is not None:
            return ProcessEnd(self.seen_ns, "stopped", stopped_by, self.follower.alive_ns)
        return ProcessEnd(self.seen_ns, "died", cause, self.follower.alive_ns)


def orderly_end(follower: RankFollower) -> ProcessEnd:
    """The end of a process that has closed its recording."""
    closed_ns = follower.reader.closed_ns() or follower.timeline.last_mark_ns or follower.reader.process_start_ns
    if follower.exception is None:
        return ProcessEnd(closed_ns, "closed")
    kind = follower.exception.get("type")
    return ProcessEnd(closed_ns, "exception", kind if isinstance(kind, str) else None, follower.exception["ts"])


def _is_there(pid: int) -> bool:
    # In another PID namespace the number may be anybody's: that costs a wait, and no more.
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b") ")[2][:1] not in b"ZX"
    except OSError:
        return False
