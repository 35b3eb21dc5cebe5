"""One attempt to hand one line to an endpoint, and what came of it."""

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from trainspan.relay.otlp import exporters
from trainspan.relay.otlp.complaints import Complaints
from trainspan.relay.otlp.destinations import Destination
from trainspan.relay.otlp.otlp_json import Unreadable, decode
from trainspan.relay.otlp.sdk_logs import Heard, listening

if TYPE_CHECKING:
    from trainspan.relay.otlp.admission import Admission

# What the specification tells a client to try again. The SDK has tried already, until its timeout.
# Source: https://opentelemetry.io/docs/specs/otlp/#failures and #failures-1
_BUSY = frozenset(
    {
        429,
        502,
        503,
        504,
        "CANCELLED",
        "DEADLINE_EXCEEDED",
        "RESOURCE_EXHAUSTED",
        "ABORTED",
        "OUT_OF_RANGE",
        "UNAVAILABLE",
        "DATA_LOSS",
    }
)


class Outcome(NamedTuple):
    """What came of an attempt.

    `accepted`; `refused`: the endpoint has answered, and would answer the same again; `unanswered`: it is gone, silent
    or busy; `unreadable`: the line is none of ours, and nothing was sent.
    """

    verdict: Literal["accepted", "refused", "unanswered", "unreadable"]
    reason: str = ""


class Delivery:
    """The way to one destination.

    Raises:
        SettingError: the SDK makes no exporter of it.
    """

    def __init__(self, destination: Destination):
        self._destination = destination
        self._exporter: Any = exporters.build(destination)
        self._heard: Heard | None = None

    @property
    def destination(self) -> Destination:
        """Where it goes."""
        return self._destination

    def send(self, text: bytes | None) -> Outcome:
        """Send one line, with the SDK's own retries: returns after its timeout at the latest, or never raises.

        Args:
            text: the line; None is one that is too long to be ours.
        """
        batch = Unreadable("too long") if text is None else decode(self._destination.signal, text)
        if isinstance(batch, Unreadable):
            return Outcome("unreadable", batch.reason)
        with listening() as heard:
            self._heard = heard
            try:
                accepted = self._exporter.export(batch).name == "SUCCESS"
            except Exception as error:  # noqa: BLE001 - of third parties, on a thread that has to go on
                return Outcome("refused", type(error).__name__)
            finally:
                self._heard = None
        return Outcome("accepted") if accepted else _failure(heard)

    def failing(self) -> str | None:
        """Why the attempt under way has not succeeded yet; None: nothing is under way, or nothing has answered."""
        heard = self._heard
        return _failure(heard).reason if heard is not None and heard.records else None

    def close(self) -> None:
        """End what is under way, where the protocol can: a request over http waits for its timeout."""
        with listening():
            self._exporter.shutdown()


def admission_to(where: Destination, complain: Complaints) -> "Admission | None":
    """What tells whether certificates are in the way; None where there is no TLS."""
    if not where.has_tls:
        return None
    # Imported here: it loads both protocols.
    from trainspan.relay.otlp.admission import Admission

    return Admission(where, complain)


def _failure(heard: Heard) -> Outcome:
    status = heard.status()
    if status is None:
        return Outcome("unanswered", heard.failure() or "no answer in time")
    return Outcome(
        "unanswered" if status in _BUSY else "refused", f"HTTP {status}" if isinstance(status, int) else status
    )
