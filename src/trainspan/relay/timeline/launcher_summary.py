"""What is kept of one launcher for `trainspan report`: how far it has come, and what it did last."""

from typing import Any, Final, Literal, NamedTuple, get_args

from trainspan.relay.timeline.fields import field, optional

LauncherEnd = Literal["running", "closed", "exception", "died"]
Outcome = Literal["open", "done", "failed"]
_HOW: Final = get_args(LauncherEnd)
_OUTCOMES: Final = get_args(Outcome)
_TEXTS: Final = ("recording", "host")
_COUNTS: Final = ("pid", "attempt", "began_unix_ns", "seen_unix_ns", "operation_ns", "workers_ended")


class LauncherSummary(NamedTuple):
    """One launcher.

    `recording`: name of its recording, without suffix. `attempt`: the newest that it worked for. `seen_unix_ns`: when
    it was last heard of, or ended. `operation`: what it is doing, or did last, for `operation_ns`; `outcome`: how that
    went, where `open` is what goes on, or what the launcher ended in. `error`: class of the exception that left that,
    or the launcher.
    `workers_ended`: how many workers of that attempt have failed, most of them by `worker_cause`.
    """

    recording: str
    host: str
    pid: int
    attempt: int
    began_unix_ns: int
    seen_unix_ns: int
    how: LauncherEnd
    operation: str | None = None
    operation_ns: int = 0
    outcome: Outcome = "done"
    error: str | None = None
    workers_ended: int = 0
    worker_cause: str | None = None

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        return self._asdict()

    @classmethod
    def from_json(cls, written: Any) -> "LauncherSummary":
        """The launcher that was written; ValueError says what is wrong with it."""
        how, outcome = field(written, "how", str), field(written, "outcome", str)
        if how not in _HOW or outcome not in _OUTCOMES:
            raise ValueError(f"how and outcome are {how[:80]!r} and {outcome[:80]!r}")
        texts = {name: field(written, name, str) for name in _TEXTS}
        counts = {name: field(written, name, int) for name in _COUNTS}
        maybe = {name: optional(written, name, str) for name in ("operation", "error", "worker_cause")}
        return cls(**texts, **counts, **maybe, how=how, outcome=outcome)
