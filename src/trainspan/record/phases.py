"""The numbers of the phases that the user has named, in this process.

A mark holds a number from 32 to 63; the event `phase_name` {number, name} tells the relay what it stands for, in every
recording that this process opens. Beyond 31 names the last number stands for all the others, as `custom.other`.
"""

from collections.abc import Callable
from typing import Final

from trainspan.guard import warn_once
from trainspan.names import CUSTOM_FIRST, CUSTOM_LAST, NamedPhase, Phase, named_phase

_PHASES: Final = {phase.wire: int(phase) for phase in Phase if phase is not Phase.OTHER}
_REST: Final = named_phase(NamedPhase.REST).wire
_SPELLINGS_MOST: Final = 1024


class PhaseNumbers:
    """Which number stands for which phase.

    Args:
        tell: `tell("phase_name", number=…, name=…)` appends an event; it may be lost while nothing is recorded.
        overflow: called each time a name has found no number left.
    """

    def __init__(self, tell: Callable[..., None], overflow: Callable[[], None]):
        self._tell = tell
        self._overflow = overflow
        self._numbers: dict[str, int] = dict(_PHASES)  # by the name as it was given
        self._named: dict[str, int] = {}  # by the name as it goes on the wire

    def number_of(self, name: str) -> int:
        """The number of a phase: one of the known, or the user's own. Cost: 0.1 µs once it is known."""
        number = self._numbers.get(name)
        return self._add(name) if number is None else number

    def wire_of(self, number: int) -> str:
        """What the phase of that number is called."""
        if number < CUSTOM_FIRST:
            return Phase(number).wire
        names = (name for name, its in self._named.items() if its == number)
        return named_phase(next(names, NamedPhase.REST)).wire

    def tell_all(self) -> None:
        """Tell every name: a recording has been opened."""
        for name, number in self._named.items():
            self._tell("phase_name", number=number, name=name)

    def _add(self, name: str) -> int:
        wire = named_phase(name).name
        number = self._named.get(wire)
        if number is None:
            number = CUSTOM_FIRST + len(self._named)
            if number >= CUSTOM_LAST:
                warn_once("phases", f"{len(self._named)} phases have names; {wire!r} and all after it are {_REST}")
                self._overflow()
                return CUSTOM_LAST
            self._named[wire] = number
            self._tell("phase_name", number=number, name=wire)
        if len(self._numbers) < _SPELLINGS_MOST:
            self._numbers[name] = number
        return number
