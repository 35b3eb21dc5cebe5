"""Takes the lines of a journal to an endpoint, one after the other.

A batch that is not taken is kept and tried again: the endpoint may be down, restarting, or missing a token that
somebody is about to give it. But batches that the endpoint will never take must not hold up all behind them. Its
answers cannot tell the two apart (a wrong path and a bad batch are both 400 somewhere), so a batch further behind is
tried: if that one is taken, those before it are tried once more, and what is refused then is dropped and counted. Of
those to which it is only busy then, the first is dropped, which has had its chances; the others keep their place, and
the one behind them is sent again in its turn.
"""

import random
from typing import Final, Literal, Protocol, TypeAlias

from trainspan.relay.otlp.delivery import Outcome
from trainspan.relay.otlp.destinations import Destination
from trainspan.relay.otlp.journal import Complain, Journal, Line

Step: TypeAlias = Literal["moved", "empty", "stuck"]

PATIENCE_REFUSED: Final = 3
"""Refusals of the first batch before one behind it is tried."""

PATIENCE_UNANSWERED: Final = 20
"""The same, where the endpoint was gone or busy: gRPC calls a batch that is too large a shortage, too."""

PROBE_DOUBLINGS: Final = 6
"""The batch tried is the next one, then 2 behind the first, 4, 8, and so on up to 64."""

BACKOFF_FIRST_S: Final = 0.5
BACKOFF_MAX_S: Final = 30.0
ASKED_WAIT_MAX_S: Final = 300.0
"""What is granted of the `Retry-After` of an endpoint."""

# Not the module's own functions: in thread mode that is the user's random stream (law 1).
_JITTER = random.Random()


class Endpoint(Protocol):
    """Where a courier goes: a `Delivery`, or a test's fake."""

    @property
    def destination(self) -> Destination:
        """What it is called."""

    def send(self, text: bytes | None) -> Outcome:
        """What came of one attempt to hand it a line."""


class Courier:
    """One journal, one way out, and the counts of what went there.

    `delivered`: batches taken; `rejected`: spans, points or log records in them that were not. `failures`: attempts
    that came to nothing. `refusals`: of the batch that is first now.
    """

    def __init__(self, journal: Journal, endpoint: Endpoint, complain: Complain):
        self.delivered = 0
        self.rejected = 0
        self.failures = 0
        self.refusals = 0
        self.last = Outcome("accepted")
        self._journal = journal
        self._endpoint = endpoint
        self._complain = complain

    def step(self) -> Step:
        """Try the first line: it is done with ("moved"), there is none ("empty"), or it is not taken ("stuck")."""
        try:
            line = self._journal.first()
            return "empty" if line is None else self._take(line)
        except OSError as error:
            self._complain_of(f"{self._journal.path} cannot be read ({error.strerror}); it is tried again", "read")
            return "stuck"

    @property
    def is_hopeless(self) -> bool:
        """Whether the endpoint answers, and has refused every batch that it was asked to take."""
        return self.last.verdict == "refused" and self.refusals >= PATIENCE_REFUSED + PROBE_DOUBLINGS

    def backoff_s(self) -> float:
        """How long to wait before the next try: as long as the endpoint asks for, or by the refusals there were."""
        planned_s = BACKOFF_FIRST_S * 2.0 ** min(max(self.refusals - 1, 0), 10)
        return max(min(planned_s, BACKOFF_MAX_S) * _JITTER.uniform(0.8, 1.2), self.asked_wait_s)

    @property
    def asked_wait_s(self) -> float:
        """How long the endpoint asks to be left alone, as far as that is granted; 0: it does not."""
        return min(self.last.retry_after_s or 0.0, ASKED_WAIT_MAX_S)

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
                f"{self._endpoint.destination.place} does not take {self._endpoint.destination.signal} "
                f"({outcome.reason}); they are kept in {self._journal.path} and tried again",
                "refused",
            )
            patience = PATIENCE_REFUSED if outcome.verdict == "refused" else PATIENCE_UNANSWERED
            overdue = self.refusals - patience
            # Further each time: the whole of an attempt's batches can share what is wrong with one. Who asks to be left
            # alone finds nothing wrong with any of them.
            if overdue < 0 or self.asked_wait_s or not self._passed(line, 1 << min(overdue, PROBE_DOUBLINGS)):
                return "stuck"
        return "moved"

    def _passed(self, line: Line, distance: int) -> bool:
        """Whether the line `distance` behind `line` was taken. Those up to it that were judged are done with then."""
        probe = line
        for _ in range(distance):
            behind = self._journal.after(probe)
            if behind is None:
                break
            probe = behind
        if probe == line or self._send(probe).verdict != "accepted":
            return False
        taken, refused, last = 0, 0, line
        again: Line | None = line
        # The endpoint may have come back just now, so each has one more chance.
        while again is not None and again.start < probe.start:
            verdict = self._send(again).verdict
            if verdict == "unanswered" and again != line:
                break  # busy again: that says nothing of this batch, nor of those behind it
            taken, refused, last = taken + (verdict == "accepted"), refused + (verdict != "accepted"), again
            again = self._journal.after(again)
        else:
            taken, last = taken + 1, probe
        if refused:
            self._complain_of(
                f"{self._endpoint.destination.place} takes others, but not all: {refused} dropped", "batch"
            )
        self._done_with(last, delivered=taken, dropped=refused)
        return True

    def _send(self, line: Line) -> Outcome:
        self.last = self._endpoint.send(line.text)
        if self.last.verdict in ("refused", "unanswered"):
            self.failures += 1
        elif self.last.rejected:
            self.rejected += self.last.rejected
            where, why = self._endpoint.destination, self.last.reason or "it does not say why"
            self._complain_of(
                f"{where.place} took {where.signal}, but left out {self.last.rejected} of a batch ({why}); "
                "they are not sent again",
                "rejected",
            )
        return self.last

    def _done_with(self, line: Line, delivered: int = 0, dropped: int = 0) -> None:
        self.refusals = 0
        self.delivered += delivered
        self._journal.advance(line, delivered=delivered, dropped=dropped)

    def _complain_of(self, message: str, kind: str) -> None:
        self._complain(f"{self._journal.path.name} {kind}", message)
