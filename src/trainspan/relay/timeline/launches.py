"""What the launcher of a node tells of itself, read with distrust: a log can hold anything."""

from collections import Counter
from collections.abc import Container, Mapping
from typing import Any, Final, NamedTuple

from trainspan.relay.timeline.told import NAME_CHARACTERS, Value, attributes_of

OPERATIONS: Final = ("rendezvous", "start_workers", "stop_workers", "exit_barrier")
AFTER_ALL: Final = "exit_barrier"
"""What comes after the last process of the attempt, whose trace has ended with that: its time is counted alone."""

REASONS: Final = ("failure", "membership")
MOST_METRICS: Final = 128
MOST_ATTEMPT: Final = 1 << 31
MOST_WAITING: Final = 1000
"""Of what one launcher did: workers that never come to train can be started anew for days."""

_S: Final = 1_000_000_000


class Launch(NamedTuple):
    """One thing that a launcher did, for an attempt. Times are monotonic ns of its host.

    `ok`: False: an exception of class `error` left it, or the launcher ended in it. `node`: of how many `nodes`, as far
    as it is known.
    """

    operation: str
    attempt: int
    start_ns: int
    end_ns: int
    ok: bool
    node: int | None
    nodes: int
    error: str | None = None

    @property
    def sentence(self) -> str | None:
        """What was wrong with it: `RendezvousTimeoutError left the rendezvous of the launcher`; None if nothing."""
        if self.ok:
            return None
        if self.error is None:
            return f"the launcher ended in its {self.operation}"
        return f"{self.error} left the {self.operation} of the launcher"


class LaunchEvent(NamedTuple):
    """Something that torchelastic has recorded as an event of its own."""

    name: str
    at_ns: int
    attributes: Mapping[str, Value]


class Launches:
    """What one launcher has told.

    Args:
        first_attempt: number of the attempt that it starts before any restart, as far as it knew when it began.

    Attributes:
        done: what it did, until somebody takes it; `events`: likewise.
        cut: how much of what it did nobody has taken in time.
        open: what it is doing, as of its beginning; `last`: what it has done last.
        attempt: the newest that it has told of; `node`: which of the nodes it is, once it has met the others.
        error: class of the exception that has left it.
        worker_ends: how the workers of the newest attempt ended, as far as that was told.
        time_ns: what that took, by operation.
        began_ns: when it began with an attempt, by attempt.
        reasons: why it began an attempt anew, by attempt.
        metrics: the last value of what was put into torchelastic's metrics, by name.
    """

    def __init__(self, first_attempt: int):
        self.done: list[Launch] = []
        self.cut = 0
        self.open: Launch | None = None
        self.last: Launch | None = None
        self.attempt = first_attempt
        self.node: int | None = None
        self.error: str | None = None
        self.worker_ends: Counter[str] = Counter()
        self.events: list[LaunchEvent] = []
        self.time_ns: dict[str, int] = {}
        self.began_ns: dict[int, int] = {}
        self.reasons: dict[int, str] = {}
        self.metrics: dict[str, float] = {}
        self._takers = {
            "launch_begins": self._take_beginning,
            "launch": self._take_launch,
            "launch_failed": self._take_failure,
            "worker_ended": self._take_worker_end,
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
        done, self.done = self.done, [launch for launch in self.done if launch.attempt not in attempts]
        return [launch for launch in done if launch.attempt in attempts]

    def end(self, at_ns: int) -> None:
        """The launcher is gone: what it was doing is over, too."""
        if self.open is not None:
            self._add(self.open._replace(end_ns=max(at_ns, self.open.start_ns)))

    def take_events(self) -> list[LaunchEvent]:
        """What has been recorded, once."""
        events, self.events = self.events, []
        return events

    def time_s(self) -> dict[str, float]:
        """What it has taken so far, by operation."""
        return {operation: time_ns / _S for operation, time_ns in self.time_ns.items()}

    def _take_beginning(self, event: Mapping[str, Any]) -> None:
        launch = self._launch_of({**event, "end_ns": event.get("start_ns"), "ok": False})
        if launch is not None:
            self.open = launch
            self._come_to(launch.attempt)

    def _take_launch(self, event: Mapping[str, Any]) -> None:
        launch = self._launch_of(event)
        if launch is not None:
            self._add(launch)

    def _launch_of(self, event: Mapping[str, Any]) -> Launch | None:
        operation, attempt = event.get("operation"), _attempt_of(event)
        start_ns, end_ns = _count(event.get("start_ns")), _count(event.get("end_ns"))
        if operation not in OPERATIONS or attempt is None or start_ns is None or end_ns is None or end_ns < start_ns:
            return None
        where = _count(event.get("node")), _count(event.get("nodes")) or 1
        return Launch(operation, attempt, start_ns, end_ns, event.get("ok") is not False, *where, _error_of(event))

    def _take_failure(self, event: Mapping[str, Any]) -> None:
        self.error = _error_of(event)

    def _add(self, launch: Launch) -> None:
        if self.open is not None and self.open.start_ns <= launch.start_ns:
            self.open = None
        self._come_to(launch.attempt)
        self.node = self.node if launch.node is None else launch.node
        if launch.operation != AFTER_ALL:
            self.last = launch
            self.done.append(launch)
            self.began_ns[launch.attempt] = min(launch.start_ns, self.began_ns.get(launch.attempt, launch.start_ns))
        if len(self.done) > MOST_WAITING:
            del self.done[0]
            self.cut += 1
        self.time_ns[launch.operation] = self.time_ns.get(launch.operation, 0) + launch.end_ns - launch.start_ns

    def _come_to(self, attempt: int) -> None:
        if attempt > self.attempt:
            self.attempt = attempt
            self.worker_ends.clear()

    def _take_worker_end(self, event: Mapping[str, Any]) -> None:
        cause = cause_of(event)
        if cause is not None and event.get("attempt") == self.attempt:
            self.worker_ends[cause] += 1

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


def cause_of(event: Mapping[str, Any]) -> str | None:
    """What ended a worker, as a launcher tells it: `SIGKILL`, `exit code 1`."""
    signal, exit_code = event.get("signal"), event.get("exit_code")
    if isinstance(signal, str):
        return signal[:NAME_CHARACTERS]
    return f"exit code {exit_code}" if type(exit_code) is int and exit_code else None


def _error_of(event: Mapping[str, Any]) -> str | None:
    error = event.get("error")
    return error[:NAME_CHARACTERS] if isinstance(error, str) and error.isprintable() else None


def _count(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value < 1 << 62 else None
