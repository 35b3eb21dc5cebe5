"""Since when something is counted, by a wall clock that may be set back while it is.

A cumulative point tells both times. One that ends before it begins is dropped by some backends and is a reset in
others, again and again; so what began after what the clock shows now begins now, once and for good.
"""


class Beginnings:
    """Of everything that one relay counts."""

    def __init__(self) -> None:
        self._set_back: dict[int, int] = {}

    def of(self, start_unix_ns: int, time_unix_ns: int) -> int:
        """When something began, as it is told at `time_unix_ns`: not after that, and the same every time.

        Args:
            start_unix_ns: when it began, by the clock of then.
            time_unix_ns: now.
        """
        if self._set_back.get(start_unix_ns, start_unix_ns) > time_unix_ns:
            self._set_back[start_unix_ns] = time_unix_ns
        return self._set_back.get(start_unix_ns, start_unix_ns)
