"""A sleep that ends when a recorded process does, so that the time of a death is known to a millisecond.

Linux' `pidfd_open` (5.3) gives a descriptor that becomes readable when the process is gone. Where there is none, or
the process lives in another PID namespace, the sleep is a sleep, and a death is noticed at the next look. A number
that means another process here only wakes us once too often.
"""

import os
import select
import time
from collections.abc import Set

MOST_WATCHED = 256
"""Descriptors held; a node has a handful of ranks."""


class Deathwatch:
    """Watches the processes that it is told of at each sleep."""

    def __init__(self) -> None:
        self._descriptors: dict[int, int] = {}
        self._gone: set[int] = set()
        self._poll = select.poll()

    def sleep(self, seconds: float, pids: Set[int]) -> None:
        """Return after `seconds`, or when one of `pids` ends, which is told once."""
        self._watch(pids)
        if not self._descriptors:
            time.sleep(seconds)
            return
        by_descriptor = {descriptor: pid for pid, descriptor in self._descriptors.items()}
        for descriptor, _ in self._poll.poll(seconds * 1000):
            pid = by_descriptor[descriptor]
            self._forget(pid)
            self._gone.add(pid)

    def close(self) -> None:
        """Let go of every process."""
        for pid in list(self._descriptors):
            self._forget(pid)

    def _watch(self, pids: Set[int]) -> None:
        for pid in self._descriptors.keys() - pids:
            self._forget(pid)
        self._gone &= pids
        for pid in pids - self._descriptors.keys() - self._gone:
            if len(self._descriptors) < MOST_WATCHED:
                try:
                    self._descriptors[pid] = os.pidfd_open(pid)
                except (OSError, AttributeError, ValueError):
                    self._gone.add(pid)  # gone already, another namespace, another system
                else:
                    self._poll.register(self._descriptors[pid], select.POLLIN)

    def _forget(self, pid: int) -> None:
        descriptor = self._descriptors.pop(pid)
        self._poll.unregister(descriptor)
        os.close(descriptor)
