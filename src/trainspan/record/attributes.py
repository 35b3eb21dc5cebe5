"""What the script gives us as attributes: what the wire can carry is kept, the rest is counted.

A value is a text, a number or a truth value of Python's own. Nothing else is turned into a text: to show a tensor waits
for its device and tells what is in it.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

Value = str | bool | int | float

MOST: Final = 64
NAME_CHARACTERS: Final = 128
VALUE_CHARACTERS: Final = 1024


def values_of(given: Mapping[str, Any], refused: Callable[[str], None]) -> dict[str, Value]:
    """The attributes that can be told.

    Args:
        given: by name.
        refused: called with the name of each one that cannot.
    """
    values: dict[str, Value] = {}
    for name, value in given.items():
        fits = type(name) is str and 0 < len(name) <= NAME_CHARACTERS and len(values) < MOST
        if value is None:
            continue
        if fits and type(value) in (str, bool, int, float) and not _is_long(value):
            values[name] = value[:VALUE_CHARACTERS] if type(value) is str else value
        else:
            refused(str(name)[:NAME_CHARACTERS])
    return values


def _is_long(value: Value) -> bool:
    """Whether it is an integer beyond OTLP's 64 bits."""
    return type(value) is int and not -(1 << 63) <= value < 1 << 63
