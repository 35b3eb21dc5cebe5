"""How a process came to its end: what its recording says of it, and what those say who started it."""

from dataclasses import dataclass

from trainspan.relay.follower import RankFollower
from trainspan.relay.launchers import Launchers
from trainspan.relay.timeline.records import ProcessEnd


@dataclass(slots=True)
class Dying:
    """A process that is gone; `seen_ns` is when that was noticed, `closed` what its recording says of the end."""

    follower: RankFollower
    seen_ns: int
    closed: ProcessEnd | None = None

    def end(self, launchers: Launchers) -> ProcessEnd:
        """How it ended, as far as that is known now."""
        if self.follower.ended_before is not None:
            return self.follower.ended_before
        ended, stopped = (say(self.follower.reader) for say in (launchers.ended, launchers.stopped))
        cause = None if ended is None else ended.cause
        if self.closed is not None:
            left = self.closed.reason == "closed" and cause is not None
            return self.closed._replace(reason="exited", cause=cause) if left else self.closed
        if cause is None and stopped is not None:
            return ProcessEnd(self.seen_ns, "stopped", stopped.cause, self.follower.alive_ns)
        return ProcessEnd(self.seen_ns, "died", cause, self.follower.alive_ns)


def orderly_end(follower: RankFollower) -> ProcessEnd:
    """The end of a process that has closed its recording."""
    closed_ns = follower.reader.closed_ns() or follower.timeline.last_mark_ns or follower.reader.process_start_ns
    if follower.exception is None:
        return ProcessEnd(closed_ns, "closed")
    kind = follower.exception.get("type")
    return ProcessEnd(closed_ns, "exception", kind if isinstance(kind, str) else None, follower.exception["ts"])
