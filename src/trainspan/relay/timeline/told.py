"""What a rank tells as a span of its own, once or rarely: its init, a validation, what the user times.

Read with distrust: a log can hold anything.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from trainspan.names import STATES

NAME_CHARACTERS: Final = 128
ATTRIBUTES: Final = 64
VALUE_CHARACTERS: Final = 1024

Value = str | bool | int | float


class Told(NamedTuple):
    """One stretch of time that has ended. Times are monotonic ns of the rank's host.

    `ok`: False: an exception left it.
    `state`: what the time before the first step is charged to; None: it says nothing of that.
    """

    name: str
    start_ns: int
    end_ns: int
    ok: bool
    attributes: Mapping[str, Value]
    state: str | None


def told_of(event: Mapping[str, Any]) -> Told | None:
    """What an event `span` tells of; None if it makes no sense."""
    name, times_ns, state = event.get("name"), times_of(event), event.get("state")
    if not (isinstance(name, str) and 0 < len(name) <= NAME_CHARACTERS and name.isprintable()):
        return None
    if times_ns is None:
        return None
    return Told(name, *times_ns, event.get("ok") is not False, attributes_of(event), state if state in STATES else None)


def times_of(event: Mapping[str, Any]) -> tuple[int, int] | None:
    """When what an event tells of began and ended; None if that makes no sense."""
    start_ns, end_ns = event.get("start_ns"), event.get("end_ns")
    if type(start_ns) is int and type(end_ns) is int and 0 <= start_ns <= end_ns < 1 << 62:
        return start_ns, end_ns
    return None


def attributes_of(event: Mapping[str, Any]) -> dict[str, Value]:
    """The attributes in an event that OTLP can carry, within the bounds."""
    attributes = event.get("attributes")
    if not isinstance(attributes, Mapping):
        return {}
    fit = ((key, _fitted(value)) for key, value in attributes.items() if _is_key(key) and _is_value(value))
    return dict(list(fit)[:ATTRIBUTES])


def texts_of(event: Mapping[str, Any]) -> dict[str, str]:
    """Those of the attributes in an event that are texts."""
    return {key: value for key, value in attributes_of(event).items() if isinstance(value, str)}


def _is_key(key: object) -> bool:
    return isinstance(key, str) and 0 < len(key) <= NAME_CHARACTERS


def _is_value(value: object) -> bool:
    # OTLP's integers have 64 bits.
    return isinstance(value, str | bool | float) or (isinstance(value, int) and -(1 << 63) <= value < 1 << 63)


def _fitted(value: Value) -> Value:
    return value[:VALUE_CHARACTERS] if isinstance(value, str) else value
