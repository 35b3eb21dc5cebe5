"""What went wrong, said once per cause and counted after that."""

import threading
from collections import Counter
from collections.abc import Callable


class Complaints:
    """Hands the first message of each cause to `log`. Safe to call from any thread."""

    def __init__(self, log: Callable[[str], None]):
        self._log = log
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    def __call__(self, cause: str, message: str) -> None:
        with self._lock:
            self._counts[cause] += 1
            first = self._counts[cause] == 1
        if first:
            self._log(message)

    def counts(self) -> dict[str, int]:
        """How often each cause came."""
        with self._lock:
            return dict(self._counts)
