"""A clock that stands still until a test moves it."""


class FakeClock:
    """A `trainspan.clock.Clock`. Sleeping takes no time: it moves the clock.

    Attributes:
        sleeps_s: what was slept so far, one entry a call.
    """

    def __init__(self, monotonic_ns: int = 1_000_000_000, unix_ns: int = 1_700_000_000_000_000_000):
        self._monotonic_ns = monotonic_ns
        self._unix_ns = unix_ns
        self.sleeps_s: list[float] = []

    def monotonic_ns(self) -> int:
        return self._monotonic_ns

    def unix_ns(self) -> int:
        return self._unix_ns

    def sleep(self, seconds: float) -> None:
        self.sleeps_s.append(seconds)
        self.advance(round(seconds * 1e9))

    def advance(self, ns: int) -> None:
        """Let `ns` pass on both clocks.

        Raises:
            ValueError: time cannot go back; `set_unix` moves the wall clock alone.
        """
        if ns < 0:
            raise ValueError(f"cannot advance by {ns} ns")
        self._monotonic_ns += ns
        self._unix_ns += ns

    def set_unix(self, unix_ns: int) -> None:
        """Step the wall clock, as an administrator or NTP does; the monotonic clock does not see it."""
        self._unix_ns = unix_ns
