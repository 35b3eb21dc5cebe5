"""What the launcher of a node tells of itself, read with distrust: a log can hold anything."""

from collections.abc import Container, Mapping
from typing import Any, Final, NamedTuple

from trainspan.relay.timeline.told import NAME_CHARACTERS, Value, attributes_of

OPERATIONS: Final = ("rendezvous", "start_workers", "stop_workers", "exit_barrier")
AFTER_ALL: Final = "exit_barrier"
"""What comes after the last process of the attempt, whose trace has ended with that: its time is counted alone."""

REASONS: Final = ("failure", "membership")
MOST_METRICS: Final = 128
MOST_ATTEMPT: Final = 1 << 31

_S: Final = 1_000_000_000


class Launch(NamedTuple):
    """One thing that a launcher did, for an attempt. Times are monotonic ns of its host.

    `ok`: False: an exception left it. `node`: of how many `nodes`, as far as it is known.
    """

    operation: str
    attempt: int
    start_ns: int
    end_ns: int
    ok: bool
    node: int | None
    nodes: int


class LaunchEvent(NamedTuple):
    """Something that torchelastic has recorded as an event of its own."""

    name: str
    at_ns: int
    attributes: Mapping[str, Value]


class Launches:
    """What one launcher has told.

    Attributes:
        done: what it did, until somebody takes it; `events`: likewise.
        time_ns: what that took, by operation.
        began_ns: when it began with an attempt, by attempt.
        reasons: why it began an attempt anew, by attempt.
        metrics: the last value of what was put into torchelastic's metrics, by name.
    """

    def __init__(self) -> None:
        self.done: list[Launch] = []
        self.events: list[LaunchEvent] = []
        self.time_ns: dict[str, int] = {}
        self.began_ns: dict[int, int] = {}
        self.reasons: dict[int, str] = {}
        self.metrics: dict[str, float] = {}
        self._takers = {
            "launch": self._take_launch,
            "launch_restart": self._take_restart,
            "launch_metrics": self._take_metrics,
            "launch_event": self._take_event,
        }

    def take(self, event: Mapping[str, Any]) -> None:
        """Take an event over, if it is one of these."""
        take = self._takers.get(event["event"])
        if take is not None:
            take(event)

    def take_done(self, attempts: Container[int]) -> list[Launch]:
        """What it did for these attempts, once."""
        done, self.done = self.done, []
        self.done = [launch for launch in done if launch.attempt not in attempts]
        return [launch for launch in done if launch.attempt in attempts]

    def take_events(self) -> list[LaunchEvent]:
        """What has been recorded, once."""
        events, self.events = self.events, []
        return events

    def time_s(self) -> dict[str, float]:
        """What it has taken so far, by operation."""
        return {operation: time_ns / _S for operation, time_ns in self.time_ns.items()}

    def _take_launch(self, event: Mapping[str, Any]) -> None:
        operation, attempt = event.get("operation"), _attempt_of(event)
        start_ns, end_ns = _count(event.get("start_ns")), _count(event.get("end_ns"))
        if operation not in OPERATIONS or attempt is None or start_ns is None or end_ns is None or end_ns < start_ns:
            return
        where = _count(event.get("node")), _count(event.get("nodes")) or 1
        if operation != AFTER_ALL:
            self.done.append(Launch(operation, attempt, start_ns, end_ns, event.get("ok") is not False, *where))
            self.began_ns[attempt] = min(start_ns, self.began_ns.get(attempt, start_ns))
        self.time_ns[operation] = self.time_ns.get(operation, 0) + end_ns - start_ns

    def _take_restart(self, event: Mapping[str, Any]) -> None:
        attempt, reason = _attempt_of(event), event.get("reason")
        if attempt is not None and reason in REASONS:
            self.reasons[attempt] = reason

    def _take_metrics(self, event: Mapping[str, Any]) -> None:
        values = attributes_of({"attributes": event.get("values")})
        for name, value in values.items():
            is_known = name in self.metrics or len(self.metrics) < MOST_METRICS
            if is_known and isinstance(value, int | float) and not isinstance(value, bool):
                self.metrics[name] = value

    def _take_event(self, event: Mapping[str, Any]) -> None:
        name, at_ns = event.get("name"), _count(event.get("ts"))
        if not (isinstance(name, str) and 0 < len(name) <= NAME_CHARACTERS and name.isprintable()):
            return
        if at_ns is not None:
            self.events.append(LaunchEvent(name, at_ns, attributes_of(event)))


def _attempt_of(event: Mapping[str, Any]) -> int | None:
    attempt = _count(event.get("attempt"))
    return None if attempt is None or attempt > MOST_ATTEMPT else attempt


def _count(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value < 1 << 62 else None
