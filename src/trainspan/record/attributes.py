"""What the script gives us as attributes: what the wire can carry is kept, the rest is counted.

A value is a text, a number or a truth value. Nothing else is turned into a text: to show a tensor waits for its device
and tells what is in it.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from trainspan.record.arguments import plain_of, text_of

Value = str | bool | int | float

MOST: Final = 64
NAME_CHARACTERS: Final = 128
VALUE_CHARACTERS: Final = 1024


def values_of(given: Mapping[Any, Any], refused: Callable[[str], None]) -> dict[str, Value]:
    """The attributes that can be told.

    Args:
        given: by name.
        refused: called with the name of each one that cannot.
    """
    values: dict[str, Value] = {}
    for key, value in given.items():
        name = text_of(key)
        if value is None:
            continue
        plain = plain_of(value)
        fits = len(values) < MOST and not _is_long(plain)
        if name and len(name) <= NAME_CHARACTERS and plain is not None and fits:
            values[name] = plain[:VALUE_CHARACTERS] if isinstance(plain, str) else plain
        else:
            # To show what is no text may wait for a device, or fail.
            refused(name[:NAME_CHARACTERS] if name is not None else type(key).__name__)
    return values


def _is_long(value: object) -> bool:
    """Whether it is an integer beyond OTLP's 64 bits."""
    return type(value) is int and not -(1 << 63) <= value < 1 << 63
