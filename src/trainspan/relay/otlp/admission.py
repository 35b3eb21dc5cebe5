"""Whether an endpoint lets us in: one question before the first batch, where certificates could be in the way.

An exporter would try for its whole timeout, once for each signal, and know of no reason.
"""

from typing import Final

from trainspan.relay.otlp.complaints import Complaints
from trainspan.relay.otlp.destinations import Destination
from trainspan.relay.otlp.reach import CERTIFICATES, ask

ANSWER_WITHIN_S: Final = 3.0


class Admission:
    """What is known of one endpoint with TLS. Not known at first, and after `doubt()`.

    `refusal`: what is in the way, as it was found last.
    """

    def __init__(self, where: Destination, complain: Complaints):
        self._where = where
        self._complain = complain
        self._known = False
        self.refusal: str | None = None

    def doubt(self) -> None:
        """Ask again: a certificate may have expired meanwhile."""
        self._known = False

    def is_refused(self) -> bool:
        """Whether one side refuses the other's certificate, which is then said, once for all signals."""
        if self._known:
            return False
        answer = ask(self._where, min(self._where.timeout_s, ANSWER_WITHIN_S))
        if answer.verdict not in CERTIFICATES:
            self._known = True
            self.refusal = None
            return False
        self.refusal, advice = CERTIFICATES[answer.verdict]
        self._complain(
            f"{self._where.place} certificates",
            f"{self._where.place}: {self.refusal} ({answer.seen}); {advice}. "
            "What is recorded waits on disk, and is sent once this is right",
        )
        return True
