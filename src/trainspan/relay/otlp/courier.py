"""Takes the lines of a journal to an endpoint, one after the other.

A batch that is not taken is kept and tried again: the endpoint may be down, restarting, or missing a token that
somebody is about to give it. But one batch that the endpoint will never take must not hold up all behind it. Its
answers cannot tell the two apart (a wrong path and a bad batch are both 400 somewhere), so the batch behind is tried:
if that one is taken and the first is refused once more, it is the batch, and it is dropped and counted.
"""

import random
from typing import Final, Literal, TypeAlias

from trainspan.relay.otlp.delivery import Delivery, Outcome
from trainspan.relay.otlp.journal import Complain, Journal, Line

Step: TypeAlias = Literal["moved", "empty", "stuck"]

PATIENCE_REFUSED: Final = 3
"""Refusals of one batch before the one behind it is tried."""

PATIENCE_UNANSWERED: Final = 20
"""The same, where the endpoint was gone or busy: gRPC calls a batch that is too large a shortage, too."""

BACKOFF_FIRST_S: Final = 0.5
BACKOFF_MAX_S: Final = 30.0

# Not the module's own functions: in thread mode that is the user's random stream (law 1).
_JITTER = random.Random()


class Courier:
    """One journal, one way out, and the counts of what went there.

    `delivered`: batches taken. `failures`: attempts that were not. `refusals`: of the batch that is first now.
    """

    def __init__(self, journal: Journal, delivery: Delivery, complain: Complain):
        self.delivered = 0
        self.failures = 0
        self.refusals = 0
        self.last = Outcome("accepted")
        self._journal = journal
        self._delivery = delivery
        self._complain = complain

    def step(self) -> Step:
        """Try the first line: it is done with ("moved"), there is none ("empty"), or it is not taken ("stuck")."""
        try:
            line = self._journal.first()
        except OSError as error:
            self._complain(f"{self._journal.path.name} read", f"{self._journal.path} cannot be read ({error.strerror})")
            return "stuck"
        return "empty" if line is None else self._take(line)

    @property
    def is_refused(self) -> bool:
        """Whether the endpoint answers, and has refused the first batch as often as it is asked to reconsider."""
        return self.last.verdict == "refused" and self.refusals >= PATIENCE_REFUSED

    def backoff_s(self) -> float:
        """How long to wait before the next try, after as many refusals as there were."""
        planned_s = BACKOFF_FIRST_S * 2.0 ** min(max(self.refusals - 1, 0), 10)
        return min(planned_s, BACKOFF_MAX_S) * _JITTER.uniform(0.8, 1.2)

    def _take(self, line: Line) -> Step:
        outcome = self._send(line)
        if outcome.verdict == "accepted":
            self._done_with(line, delivered=1)
        elif outcome.verdict == "unreadable":
            self._complain_of(f"a line of {self._journal.path} is unreadable ({outcome.reason}); it is skipped", "line")
            self._done_with(line, dropped=1)
        else:
            self.refusals += 1
            self._complain_of(
                f"{self._delivery.destination.place} does not take {self._delivery.destination.signal} "
                f"({outcome.reason}); they are kept in {self._journal.path} and tried again",
                "refused",
            )
            patience = PATIENCE_REFUSED if outcome.verdict == "refused" else PATIENCE_UNANSWERED
            if self.refusals < patience or not self._passed(line):
                return "stuck"
        return "moved"

    def _passed(self, line: Line) -> bool:
        """Whether the line behind `line` was taken; then both are done with, and `line` is dropped if need be."""
        behind = self._journal.after(line)
        dropped = 0
        while behind is not None and (outcome := self._send(behind)).verdict != "accepted":
            if outcome.verdict != "unreadable":
                return False
            dropped += 1
            behind = self._journal.after(behind)
        if behind is None:
            return False
        # The endpoint may have come back just now.
        late = self._send(line).verdict == "accepted"
        if not late:
            self._complain_of(
                f"{self._delivery.destination.place} takes other batches but not this one; dropped", "batch"
            )
        self._done_with(behind, delivered=1 + late, dropped=dropped + (not late))
        return True

    def _send(self, line: Line) -> Outcome:
        self.last = self._delivery.send(line.text)
        if self.last.verdict in ("refused", "unanswered"):
            self.failures += 1
        return self.last

    def _done_with(self, line: Line, delivered: int = 0, dropped: int = 0) -> None:
        self.refusals = 0
        self.delivered += delivered
        self._journal.advance(line, delivered=delivered, dropped=dropped)

    def _complain_of(self, message: str, kind: str) -> None:
        self._complain(f"{self._journal.path.name} {kind}", message)
