"""What the SDK logs while it works for us: kept from the user's log, and read for the reason of a failure.

An exporter's result is success or failure; only its log says what the endpoint answered. And a training script that
uses OpenTelemetry itself, with the relay in its process, must go on seeing its own exporters' messages and not ours.
"""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from trainspan.relay.otlp.causes import word_of_system

_SDK = "opentelemetry"
_TRANSPORT = "urllib3"  # tells every connection, at level DEBUG; of interest to nobody

_here = threading.local()


class Heard(NamedTuple):
    """What was logged, in order."""

    records: list[logging.LogRecord]

    def status(self) -> int | str | None:
        """The endpoint's answer in the last message that has one: an HTTP status, or the name of a gRPC status."""
        for argument in self._arguments():
            if isinstance(argument, int) and 100 <= argument < 600:
                return argument
            if type(argument).__name__ == "StatusCode":
                return str(getattr(argument, "name", argument))
        return None

    def failure(self) -> str | None:
        """What else says why: the system's word, the type of an exception, or the answer's own words."""
        for argument in self._arguments():
            if isinstance(argument, Exception):
                return word_of_system(argument) or type(argument).__name__
        # Of the messages about one more try, the first argument is what the answer said.
        tries = (record.args for record in self.records if isinstance(record.args, tuple) and len(record.args) > 1)
        words = next(tries, None)
        return f"{words[0]!s:.60}" if words else None

    def _arguments(self) -> Iterator[object]:
        for record in reversed(self.records):
            yield from record.args if isinstance(record.args, tuple) else ()


class _Ear(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        heard: Heard | None = getattr(_here, "heard", None)
        if heard is None:
            return True
        if record.name.startswith(_SDK):
            heard.records.append(record)
        return False


_EAR = _Ear()


@contextmanager
def listening() -> Iterator[Heard]:
    """Hear, in place of the user, what the SDK logs on this thread."""
    _attend()
    before: Heard | None = getattr(_here, "heard", None)
    _here.heard = Heard([])
    try:
        yield _here.heard
    finally:
        _here.heard = before


def _attend() -> None:
    """Put the ear on every logger of the SDK that has none: a filter is not asked about a child's records."""
    loggers = logging.Logger.manager.loggerDict
    if getattr(_here, "loggers", None) == len(loggers):
        return  # no logger has been made since this thread looked
    for name, logger in list(loggers.items()):
        if name.startswith((_SDK, _TRANSPORT)) and isinstance(logger, logging.Logger) and _EAR not in logger.filters:
            # First, because the exporters have filters that swallow what they have seen before.
            logger.filters.insert(0, _EAR)
    _here.loggers = len(loggers)
