"""One attempt to hand one line to an endpoint, and what came of it."""

import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from google.protobuf.message import DecodeError

from trainspan.relay.otlp import exporters
from trainspan.relay.otlp.complaints import Complaints
from trainspan.relay.otlp.destinations import Destination, Signal
from trainspan.relay.otlp.exporters import Answer
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

_RESPONSES: Final[Mapping[Signal, tuple[str, str, str]]] = {
    "traces": ("trace.v1.trace", "ExportTraceServiceResponse", "rejected_spans"),
    "metrics": ("metrics.v1.metrics", "ExportMetricsServiceResponse", "rejected_data_points"),
    "logs": ("logs.v1.logs", "ExportLogsServiceResponse", "rejected_log_records"),
}
"""Module and class of the answer to each signal, and where it tells what was not taken."""

_WORDS: Final = 200


class Outcome(NamedTuple):
    """What came of an attempt.

    `accepted`; `refused`: the endpoint has answered, and would answer the same again; `unanswered`: it is gone, silent
    or busy; `unreadable`: the line is none of ours, and nothing was sent.
    `rejected`: spans, points or log records of an accepted line that it did not take; `reason` has its words.
    `retry_after_s`: how long it asks to be left alone.
    """

    verdict: Literal["accepted", "refused", "unanswered", "unreadable"]
    reason: str = ""
    rejected: int = 0
    retry_after_s: float | None = None


class Delivery:
    """The way to one destination.

    Raises:
        SettingError: the SDK makes no exporter of it.
    """

    def __init__(self, destination: Destination):
        self._destination = destination
        self._answer: Answer | None = None
        self._exporter: Any = exporters.build(destination, self._hear)
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
        self._answer = None
        with listening() as heard:
            self._heard = heard
            try:
                accepted = self._exporter.export(batch).name == "SUCCESS"
            except Exception as error:  # noqa: BLE001 - of third parties, on a thread that has to go on
                return Outcome("refused", type(error).__name__)
            finally:
                self._heard = None
        return _success(self._destination.signal, self._answer) if accepted else _failure(heard, self._answer)

    def _hear(self, answer: Answer) -> None:
        self._answer = answer

    def failing(self) -> str | None:
        """Why the attempt under way has not succeeded yet; None: nothing is under way, or nothing has answered."""
        heard = self._heard
        return _failure(heard, self._answer).reason if heard is not None and heard.records else None

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


def _success(signal: Signal, answer: Answer | None) -> Outcome:
    module, message, field = _RESPONSES[signal]
    if answer is None or not answer.body:
        return Outcome("accepted")
    response = getattr(import_module(f"opentelemetry.proto.collector.{module}_service_pb2"), message)()
    try:
        response.ParseFromString(answer.body)
    except DecodeError:  # JSON, or a page: it was a success all the same
        return Outcome("accepted")
    partial = response.partial_success
    return Outcome("accepted", partial.error_message[:_WORDS], max(getattr(partial, field), 0))


def _failure(heard: Heard, answer: Answer | None) -> Outcome:
    status = heard.status() or (answer.status if answer else None)
    if status is None:
        return Outcome("unanswered", heard.failure() or "no answer in time")
    reason = f"HTTP {status}" if isinstance(status, int) else status
    retry_after_s = None if answer is None else _seconds_of(answer.retry_after)
    if retry_after_s is not None:
        reason += f", try again after {retry_after_s:.0f} s"
    return Outcome("unanswered" if status in _BUSY else "refused", reason, retry_after_s=retry_after_s)


def _seconds_of(retry_after: str | None) -> float | None:
    """How long the header asks to wait: a number of seconds, or a date (RFC 9110, 10.2.3)."""
    text = (retry_after or "").strip()
    if text.isascii() and text.isdecimal():
        return float(text[:9])
    try:
        return max(parsedate_to_datetime(text).timestamp() - time.time(), 0.0)
    except (ValueError, TypeError, OverflowError):
        return None
