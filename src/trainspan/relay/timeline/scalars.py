"""What a rank logs: the last value of each name, and its own counters, as far as their bound admits.

The event `scalars`: values {name: number}, counters {name: total}, dropped (how many the rank did not take). A value
may be NaN or infinite: a loss that is one is what somebody looks for.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

SERIES_OF_A_JOB: Final = 8192
MOST_NAMES: Final = 128
LEAST_NAMES: Final = 8
NAME_CHARACTERS: Final = 128
_MOST: Final = 1 << 62


class Logged(NamedTuple):
    """All so far. `dropped`: values and counts that are not among them; None: none was logged at all."""

    values: Mapping[str, float] = {}
    counters: Mapping[str, float] = {}
    dropped: int | None = None


class Scalars:
    """What one rank logs. `world_size`: the more ranks, the fewer names each of them may have."""

    def __init__(self, world_size: int):
        self._room = max(LEAST_NAMES, min(MOST_NAMES, SERIES_OF_A_JOB // max(world_size, 1)))
        self._values: dict[str, float] = {}
        self._counters: dict[str, float] = {}
        self._dropped_here = 0
        self._dropped_there: int | None = None

    def take(self, event: Mapping[str, Any]) -> None:
        """Take over an event `scalars`, read with distrust; of others nothing."""
        if event["event"] != "scalars":
            return
        self._dropped_there = self._dropped_there or 0
        for kind, taken in (("values", self._values), ("counters", self._counters)):
            told = event.get(kind)
            for name, value in told.items() if isinstance(told, dict) else ():
                self._put(taken, name, value)
        dropped = event.get("dropped")
        if type(dropped) is int and 0 <= dropped < _MOST:
            self._dropped_there = max(self._dropped_there, dropped)

    def logged(self) -> Logged:
        """All so far."""
        dropped = None if self._dropped_there is None else self._dropped_there + self._dropped_here
        return Logged(dict(self._values), dict(self._counters), dropped)

    def _put(self, taken: dict[str, float], name: str, value: object) -> None:
        known = name in taken
        fits = known or (len(self._values) + len(self._counters) < self._room and 0 < len(name) <= NAME_CHARACTERS)
        number = _number(value)
        if fits and number is not None:
            taken[name] = number
        else:
            self._dropped_here += 1


def _number(value: object) -> float | None:
    if isinstance(value, float):
        return value
    return float(value) if type(value) is int and -_MOST < value < _MOST else None
