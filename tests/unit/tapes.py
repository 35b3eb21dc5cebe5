"""A marker over a ring in plain memory, and what has been written into it."""

from threading import get_ident
from typing import NamedTuple

from trainspan.names import CUSTOM_FIRST, AnyPhase, Phase, named_phase
from trainspan.record.marker import Marker, make_marker
from trainspan.recording.layout import (
    ABORT,
    CODE_MASK,
    ENTER,
    HEADER_BYTES,
    KIND_MASK,
    MARK_BYTES,
    OPERAND_SHIFT,
    PHASE_MASK,
    RESUME,
    STEP,
    WORD_BYTES,
    WORD_LAPS,
)

_KINDS = {ENTER: "enter", RESUME: "resume", ABORT: "abort", STEP: "step"}
_START = HEADER_BYTES // WORD_BYTES


class Mark(NamedTuple):
    """One mark, taken apart."""

    time_ns: int
    kind: str
    phase: AnyPhase
    operand: int


class Tape:
    """A ring of `capacity` marks."""

    def __init__(self, capacity: int = 1024):
        self.capacity = capacity
        self.words = memoryview(bytearray(HEADER_BYTES + capacity * MARK_BYTES)).cast("q")

    @property
    def laps(self) -> int:
        """How often it has been filled."""
        return self.words[WORD_LAPS]

    def slots(self) -> list[Mark | None]:
        """What each slot holds; None: nothing yet."""
        return [self._mark_at(_START + 2 * slot) for slot in range(self.capacity)]

    def written(self) -> list[str]:
        """The marks of the first lap in words, as `enter forward`; a step with its number."""
        marks = [mark for mark in self.slots() if mark is not None]
        return [_words_of(mark) for mark in marks]

    def _mark_at(self, index: int) -> Mark | None:
        time_ns, word = self.words[index], self.words[index + 1]
        if not time_ns:
            return None
        code = word & CODE_MASK
        number = code & PHASE_MASK
        phase = Phase(number) if number < CUSTOM_FIRST else named_phase(str(number))
        return Mark(time_ns, _KINDS[code & KIND_MASK], phase, word >> OPERAND_SHIFT)


def _words_of(mark: Mark) -> str:
    number = f" {mark.operand}" if mark.kind == "step" else ""
    return f"{mark.kind} {mark.phase.wire}{number}"


def recording_marker() -> tuple[Marker, Tape]:
    """A marker that records for this thread, and its tape."""
    marker, tape = make_marker(get_ident), Tape()
    marker.attach(tape.words, tape.capacity)
    return marker, tape
