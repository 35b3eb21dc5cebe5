"""The states a rank's clock can be charged to, and which one wins where several claim the same instant.

A *claim* says "from here to there the rank was doing this". Where claims overlap, the one later in `CLAIMS` wins:
the narrower and rarer cause. `custom.<name>` claims among themselves: the deeper one wins, then the greater name.

    uncovered         nothing was recorded
    unfinished        inside a step that never finished; becomes `lost_work`, `shutdown`, `hang` or `unaccounted`
    productive        inside a finished step
    restart           told so (waiting for nodes)
    init              before the loop
    model_init        the part of it in which the model was made
    data_wait         blocking input, on every step
    straggler_wait    told so: waiting for a slower rank
    compile           told so (the excess of first steps and recompiles is found by `life`)
    validation
    custom.<name>     what the user named; nested and straddling allowed
    shutdown
    checkpoint_save   the blocking part only
    checkpoint_load
    hang              told so (silence is found by `life`)

Then what the claims mean in the run is decided, which never moves a boundary of time that is not explained here:

    lost_work    everything in `LOSABLE`, inside steps that a later attempt did again, and the step a dead rank was in
    restart      uncovered time between the last sign of life of one attempt and the first step of the next
    compile      the excess of a first step, or of one marked as recompiled, over the reference step
    hang         uncovered or unfinished time without progress for longer than `HANG_FLOOR_NS` and ten reference steps
    unaccounted  what remains uncovered

Because every instant is claimed once and re-read by disjoint rules, the states sum to the elapsed time in whole ns.
"""

from typing import Final

from trainspan.names import STATES, NamedPhase

CLAIMS: Final = (
    "uncovered",
    "unfinished",
    "productive",
    "restart",
    "init",
    "model_init",
    "data_wait",
    "straggler_wait",
    "compile",
    "validation",
    "custom",
    "shutdown",
    "checkpoint_save",
    "checkpoint_load",
    "hang",
)
"""From the weakest to the strongest claim."""

UNCOVERED: Final = 0
UNFINISHED: Final = 1
PRODUCTIVE: Final = 2
RESTART: Final = 3
DATA_WAIT: Final = 6
STRAGGLER_WAIT: Final = 7
COMPILE: Final = 8
VALIDATION: Final = 9
CUSTOM: Final = 10
SHUTDOWN: Final = 11
CHECKPOINT_SAVE: Final = 12
CHECKPOINT_LOAD: Final = 13
HANG: Final = 14
LOST_WORK: Final = 15
"""Codes. Those below `LOST_WORK` are places in `CLAIMS`; `LOST_WORK` is only ever derived."""

OVERFLOW_CODE: Final = 16
OVERFLOW: Final = "custom.other"
LAST_CODE: Final = 255
"""A segment holds its code in one byte; custom names and depths beyond that share `custom.other`."""

LOSABLE: Final = frozenset({PRODUCTIVE, DATA_WAIT, STRAGGLER_WAIT, COMPILE, VALIDATION})
"""Codes, with every custom one, that become `lost_work` in a step done again.

Not the checkpoint calls: the save that the next attempt resumed from lies inside the first lost step.
"""

IN_STEP: Final = frozenset({PRODUCTIVE, DATA_WAIT, STRAGGLER_WAIT, COMPILE})
"""What an undisturbed step may hold. A step with anything else does not count for the reference step."""

CUSTOM_PREFIX: Final = NamedPhase.PREFIX
DEPTH_MAX: Final = 31

_DERIVED = frozenset({"productive", "lost_work", "unaccounted"})
ACTIVITIES: Final = frozenset(STATES) - _DERIVED
"""States that an activity may claim; `custom.<name>` too."""


def is_activity(state: str) -> bool:
    """Whether a fact may claim `state`."""
    return state in ACTIVITIES or (state.startswith(CUSTOM_PREFIX) and len(CUSTOM_PREFIX) < len(state) <= 128)


class Palette:
    """The codes of one run: the fixed ones, and one for each custom name and depth met."""

    __slots__ = ("_codes", "keys", "states")

    def __init__(self) -> None:
        self.states = ["unaccounted", "unaccounted", *CLAIMS[2:], "lost_work", OVERFLOW]
        self.keys: list[tuple[int, int, str]] = [(place, 0, "") for place in range(OVERFLOW_CODE)]
        self.keys.append((CUSTOM, 0, OVERFLOW))
        self._codes = {(state, 0): code for code, state in enumerate(CLAIMS) if state in ACTIVITIES}
        self._codes[(OVERFLOW, 0)] = OVERFLOW_CODE

    def code_of(self, state: str, depth: int = 0) -> int:
        """The code that claims `state`.

        Raises:
            ValueError: no activity can claim that state.
        """
        key = (state, depth)
        code = self._codes.get(key)
        return self._add(state, depth) if code is None else code

    def _add(self, state: str, depth: int) -> int:
        if state in ACTIVITIES:
            return self._codes[(state, 0)]
        if not is_activity(state):
            raise ValueError(f"{state!r} is no activity; use one of {sorted(ACTIVITIES)} or custom.<name>")
        depth = min(max(depth, 0), DEPTH_MAX)
        known = self._codes.get((state, depth))
        if known is not None:
            return known
        if len(self.states) > LAST_CODE:
            return OVERFLOW_CODE
        self.states.append(state)
        self.keys.append((CUSTOM, depth, state))
        self._codes[(state, depth)] = len(self.states) - 1
        return len(self.states) - 1

    def is_losable(self, code: int) -> bool:
        """Whether time under `code` becomes `lost_work` in a step that was done again."""
        return code in LOSABLE or code >= OVERFLOW_CODE
