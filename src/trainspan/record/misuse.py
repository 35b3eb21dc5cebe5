"""Calls of the API that make no sense: counted, said once for each kind, and never the script's problem.

The event `misuse` {kind, count} holds the count so far. It is told at 1, 2, 4, 8 and so on, and at the end of the
process, so that a mistake that is made at each step does not fill the event log.
"""

from collections.abc import Callable
from itertools import count
from typing import Final

from trainspan.guard import warn_once

KINDS: Final = {
    "end_without_start": "{what} has ended and had not begun; the end is ignored",
    "nested": "{what} is inside another; the inner one is ignored",
    "reentered": "{what} is entered while the rank is in it; the inner one is ignored",
    "unended": "{what} begins again and had not ended; it is ended now",
    "crossed": "{what} has ended before what began in it; that goes on by itself",
    "thread": "{what} is entered or left on a thread that does not train; it is ignored",
    "fork": "{what} is left in a process that was forked in it; it is ignored",
    "value": "{what} is no text, number or truth value, or too much; it is left out",
    "argument": "{what} was given what it does not take; that is left out",
    "names": "{what} is one phase name too many; it is part of custom.other",
}
"""What can be wrong, and the sentence for it."""


class Misuse:
    """Counts, by kind.

    Args:
        tell: `tell("misuse", kind=…, count=…)` appends an event.
    """

    def __init__(self, tell: Callable[..., None]):
        self._tell = tell
        # Other threads count too: `next` is one step of the interpreter, an addition is not.
        self._counters = {kind: count(1) for kind in KINDS}
        self._counts = dict.fromkeys(KINDS, 0)
        self._told = dict.fromkeys(KINDS, 0)

    def count(self, kind: str, what: str) -> None:
        """Count one more of a kind. `what`: the call, as `step()`; or the name of a phase."""
        number = next(self._counters[kind])
        self._counts[kind] = number
        call = what if "(" in what or what.startswith("on_") else f"phase({what!r})"
        warn_once(f"misuse.{kind}", KINDS[kind].format(what=f"trainspan.{call}"))
        if number & (number - 1) == 0:
            self._tell_one(kind)

    def tell_all(self) -> None:
        """Tell what has been counted since it was told last."""
        for kind, number in self._counts.items():
            if number > self._told[kind]:
                self._tell_one(kind)

    def _tell_one(self, kind: str) -> None:
        self._told[kind] = self._counts[kind]
        self._tell("misuse", kind=kind, count=self._counts[kind])
