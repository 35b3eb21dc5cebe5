"""Where a rank stands, and whether it has come to a stall: no mark for far longer than its steps take.

A stall is no verdict: a script that works for minutes without torch makes no mark either. Of several ranks the one that
has come least far is likely the one that the others wait for.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from trainspan.names import AnyPhase

USUAL_STEPS: Final = 10
"""So many usual steps without a mark are no stall, however long they are."""


class Standing(NamedTuple):
    """In `phase` of step `number` since `since_ns`, the time of the newest mark.

    `entered`: how many phases that all ranks train in it has entered in that step, which tells who is behind.
    """

    number: int
    phase: AnyPhase
    since_ns: int
    entered: int = 0


class Stalls:
    """The stalls of one rank, one after the other.

    Args:
        floor_ns: shorter ones are none; 0: nothing is one.

    Attributes:
        now: the stall that lasts; None: there is none.
    """

    def __init__(self, floor_ns: int):
        self.now: Standing | None = None
        self._floor_ns = floor_ns

    def begin(self, standing: Standing, now_ns: int, usual_step_s: Callable[[], float | None]) -> bool:
        """Whether it has come to a stall, which then lasts until `end`.

        Args:
            standing: where it stands.
            now_ns: when it was last seen alive.
            usual_step_s: its median step, asked for when the rest speaks for a stall; None: it has made none.
        """
        still_ns = now_ns - standing.since_ns
        if self.now is not None or not 0 < self._floor_ns < still_ns:
            return False
        if still_ns * 1e-9 > USUAL_STEPS * (usual_step_s() or 0.0):
            self.now = standing
        return self.now is not None

    def end(self) -> Standing | None:
        """The stall that has ended, because the rank went on or is gone; None: there was none."""
        ended, self.now = self.now, None
        return ended
