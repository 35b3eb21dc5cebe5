"""What the script hands to the API, read with distrust: it can be of any type, and fail when it is asked.

Each function gives what it should be, or None where it is not that. None of them raises, or waits for a device.
"""

import math
import os
import sys
from collections.abc import Mapping
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any, Final

_LARGEST: Final = 1 << 62
_FUNCTIONS: Final = (FunctionType, BuiltinFunctionType, MethodType)
_PLAIN: Final = (str, bool, int, float)
_OF_NUMPY: Final = ("bool_", "integer", "floating")


def text_of(given: object) -> str | None:
    """A text. Its type tells, and not what it says of itself: a proxy that is not bound yet fails at that question."""
    if type(given) is str:
        return given
    return str.__str__(given) if issubclass(type(given), str) else None  # of a subclass: Python's own text


def plain_of(given: Any) -> str | bool | int | float | None:
    """A text, truth value or number as Python's own, also of an enumeration or of numpy's; of a tensor none."""
    kind = type(given)
    if kind in _PLAIN:
        plain: str | bool | int | float = given
        return plain
    for own, converted in ((str, str.__str__), (int, int.__int__), (float, float.__float__)):
        if issubclass(kind, own):
            return converted(given)
    numpy = sys.modules.get("numpy")  # a script without numpy has none of its numbers
    if numpy is not None and issubclass(kind, tuple(getattr(numpy, name, ()) for name in _OF_NUMPY)):
        one = given.item()
        return one if type(one) in _PLAIN else None  # there are longer ones than Python's
    return None


def number_of(given: Any) -> float | None:
    """A number, also of numpy's, or of a tensor of one element on the CPU."""
    if type(given) is float:
        return given
    try:
        if type(given) is not int and is_tensor(given):
            local = local_of(given)
            is_here = local is not None and local.device.type == "cpu" and local.numel() == 1
            return float(local.item()) if is_here else None
        is_one = getattr(given, "size", 1) == 1 and hasattr(type(given), "__float__")
        return float(given) if is_one else None
    except Exception:
        return None


def amount_of(given: object) -> float | None:
    """A finite number from 0."""
    number = number_of(given)
    return number if number is not None and 0 <= number < math.inf else None


def whole_of(given: object) -> int | None:
    """A whole number from 0 that OTLP can carry."""
    number = given if type(given) is int else number_of(given)
    if number is None or not 0 <= number < _LARGEST or number != int(number):
        return None
    return int(number)


def flag_of(given: object) -> bool | None:
    """A truth value."""
    return given if type(given) is bool else None


def tag_of(given: object) -> str | None:
    """A tag: a text, or the number of a job."""
    plain = plain_of(given)
    return None if plain is None else str(plain)


def mapping_of(given: Any) -> dict[Any, Any] | None:
    """A mapping, of whatever kind."""
    try:
        return dict(given) if issubclass(type(given), Mapping) else None
    except Exception:
        return None


def path_of(given: Any) -> str | None:
    """A path that a file can have."""
    try:
        path = text_of(os.fsdecode(given))
    except Exception:
        return None
    return None if path is None or "\0" in path else path


def is_function(given: object) -> bool:
    """Whether it is a function, and no class, module or other object that only can be called."""
    return type(given) in _FUNCTIONS


def is_tensor(given: object) -> bool:
    """Whether it is a tensor of torch's."""
    torch = sys.modules.get("torch")  # a script without torch logs, too
    kind = getattr(torch, "Tensor", None)  # None while torch is being imported
    return kind is not None and issubclass(type(given), kind)


def local_of(tensor: Any) -> Any:
    """`tensor` as a plain one, apart from its graph; None if this process alone cannot know what it holds."""
    if not hasattr(tensor, "__tensor_flatten__"):
        with sys.modules["torch"]._C.DisableTorchFunctionSubclass():
            return tensor.detach()
    placements = getattr(tensor, "placements", None)
    if placements and all(placement.is_replicate() for placement in placements):
        return tensor.detach().to_local()
    return None
