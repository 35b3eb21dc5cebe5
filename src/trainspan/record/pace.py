"""How often something that is told again and again is told: once a second, and less often as the event log fills."""

from typing import Final

INTERVAL_NS: Final = 1_000_000_000


class Pace:
    """Twice as rarely after every `portion_bytes` written.

    So a job of an hour is told of every second, one of weeks every few minutes, and both stay within a few portions of
    the event log: n of them last for 2**n - 1 times as long as the first.
    """

    __slots__ = ("_interval_ns", "_next_ns", "_portion_bytes", "_written_bytes")

    def __init__(self, portion_bytes: int):
        self._portion_bytes = portion_bytes
        self._written_bytes = 0
        self._interval_ns = INTERVAL_NS
        self._next_ns = 0

    def is_due(self, now_ns: int) -> bool:
        """Whether it is time to tell again."""
        return now_ns >= self._next_ns

    def told(self, now_ns: int, size_bytes: int) -> None:
        """Note that so much was told."""
        self._written_bytes += size_bytes
        if self._written_bytes >= self._portion_bytes:
            self._written_bytes = 0
            self._interval_ns *= 2
        self._next_ns = now_ns + self._interval_ns
