"""Typed reading of JSON that comes from a file: what is missing or of another kind is a ValueError that says where."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

T = TypeVar("T")


def field(written: Any, name: str, *kinds: type) -> Any:
    """The value of `name` in the object `written`, which is of one of `kinds`. A truth value is no number.

    JSON's integers have no bound; ours have 64 bits, as OTLP's.

    Raises:
        ValueError: there is no such field, or it holds something else.
    """
    if not isinstance(written, Mapping):
        raise ValueError(f"{type(written).__name__} where an object was expected")
    if name not in written:
        raise ValueError(f"{name} is missing")
    value = written[name]
    if not isinstance(value, kinds) or isinstance(value, bool) or _is_beyond_words(value):
        raise ValueError(f"{name} is {str(value)[:80]!r}")
    return value


def _is_beyond_words(value: Any) -> bool:
    return isinstance(value, int) and not -(1 << 63) <= value < 1 << 63


def optional(written: Any, name: str, kind: type) -> Any:
    """As `field`, for a value of `kind` that may be None."""
    return field(written, name, kind, type(None))


def read_at(place: str, read: Callable[[Any], T], written: Any) -> T:
    """What `read` makes of `written`.

    Raises:
        ValueError: as `read` does, with `place` before what it says.
    """
    try:
        return read(written)
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from error
