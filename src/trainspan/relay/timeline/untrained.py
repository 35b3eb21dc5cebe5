"""Calls of a model that no optimizer trains: part of a step of training, or a validation.

A teacher, a reference, a reward model gets the batch that the model under training gets as well: its calls are FORWARD.
An average of the weights gets batches of its own: its calls are VALIDATION. Which of the two it is shows when the next
FORWARD begins: with a batch fetched in between, or without.
"""

from typing import Final

from trainspan.names import AnyPhase, Phase
from trainspan.relay.timeline.records import Interval

_OTHER: Final = Phase.OTHER
_DATA_WAIT: Final = Phase.DATA_WAIT
_VALIDATION: Final = Phase.VALIDATION


class Untrained:
    """The calls that have got the newest batch, until it shows what they were.

    Attributes:
        calls_ns: when each of them began.
    """

    def __init__(self) -> None:
        self.calls_ns: list[int] = []
        self._fetch_ns = 0
        self._batches: list[int] = []

    def called(self, intervals: list[Interval], at_ns: int, fetched: list[int]) -> AnyPhase:
        """What a call is for now.

        Args:
            intervals: of the step so far; those that fetched a batch for the call become VALIDATION.
            at_ns: when it begins.
            fetched: what the batches hold that are waiting for what becomes of them.
        """
        fetch_ns = name_fetch(intervals)
        if fetch_ns is not None:
            self.calls_ns = [at_ns]
            self._fetch_ns = fetch_ns
            self._batches = list(fetched)
        elif self.calls_ns and not _fetches(intervals, self.calls_ns[-1]):
            self.calls_ns.append(at_ns)
        else:
            self.calls_ns = []
            return Phase.FORWARD
        return _VALIDATION

    def trained(self, intervals: list[Interval], held: list[int]) -> int:
        """Calls that were no validation: the model under training gets its batch now. They become FORWARD.

        Args:
            intervals: of the step so far.
            held: what the batches of this step hold; those that the calls had got join them.
        """
        calls_ns, self.calls_ns = self.calls_ns, []
        if _fetches(intervals, self._fetch_ns):
            return 0
        for place in range(_place_of(intervals, self._fetch_ns), len(intervals)):
            phase, start_ns, end_ns, failed = intervals[place]
            if phase is _VALIDATION:
                was = _DATA_WAIT if start_ns == self._fetch_ns else Phase.FORWARD if start_ns in calls_ns else Phase.H2D
                intervals[place] = Interval(was, start_ns, end_ns, failed)
        held += self._batches
        return len(calls_ns)

    def end(self) -> None:
        """What was called until now was what it seemed."""
        self.calls_ns = []


def name_fetch(intervals: list[Interval]) -> int | None:
    """When a batch was fetched just before a validation that begins now, and that is part of it; None: none was."""
    gap = 1 if intervals and intervals[-1][0] is _OTHER else 0
    if len(intervals) <= gap or intervals[-1 - gap][0] is not _DATA_WAIT:
        return None
    for place in range(-1 - gap, 0):
        intervals[place] = intervals[place]._replace(phase=_VALIDATION)
    return intervals[-1 - gap].start_ns


def _fetches(intervals: list[Interval], since_ns: int) -> bool:
    """Whether a batch has been fetched, or not been there, since then."""
    return any(interval[0] is _DATA_WAIT for interval in intervals[_place_of(intervals, since_ns) :])


def _place_of(intervals: list[Interval], since_ns: int) -> int:
    place = len(intervals)
    while place and intervals[place - 1][1] >= since_ns:
        place -= 1
    return place
