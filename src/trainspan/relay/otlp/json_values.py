"""The values inside parsed OTLP JSON, checked one by one: text, ids, numbers, attributes.

Each raises ValueError, TypeError, KeyError, AttributeError or OverflowError for what could not be sent again.
"""

from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from opentelemetry.attributes import BoundedAttributes
from opentelemetry.sdk.util import BoundedList

Item: TypeAlias = Mapping[str, Any]

MAX_DEPTH = 24
"""Values inside values. Protobuf refuses messages nested 100 deep, and a value in a mapping takes three of them."""


def attributes_in(item: Item, field: str = "attributes") -> Mapping[str, Any]:
    """The attributes of `item`, with how many of them were dropped where the SDK keeps that."""
    values = {text_in(pair, "key"): value_of(pair.get("value", {})) for pair in item.get(field, ())}
    dropped = unsigned_in(item, "droppedAttributesCount", 32)
    if not dropped:
        return values
    counted = BoundedAttributes(attributes=values)
    counted.dropped = dropped
    return counted


def bounded(items: list[Any], dropped: int) -> Sequence[Any]:
    """`items`, as the SDK keeps a list of which some were dropped."""
    if not dropped:
        return items
    counted = BoundedList.from_seq(None, items)
    counted.dropped = dropped
    return counted


def value_of(item: Item, depth: int = 0) -> Any:
    """One attribute value or log body; None where it is empty."""
    if depth > MAX_DEPTH:
        raise ValueError(f"values nested more than {MAX_DEPTH} deep")
    if not item:
        return None
    ((kind, value),) = item.items()
    return _VALUES[kind](value, depth)


def text_in(item: Item, field: str) -> str:
    """The text in a field; empty where it is missing, as protobuf has it."""
    return text(item.get(field, ""))


def text(value: Any) -> str:
    """`value`, if it is text that protobuf can hold."""
    if not isinstance(value, str):
        raise TypeError(f"no text: {value!r:.40}")
    if not value.isascii():
        value.encode()  # half a surrogate pair is valid JSON and no valid protobuf
    return value


def truth(value: Any) -> bool:
    """`value`, if it is true or false."""
    if not isinstance(value, bool):
        raise TypeError(f"neither true nor false: {value!r:.40}")
    return value


def id_in(item: Item, field: str, size_bytes: int) -> int:
    """The id in a field, of exactly `size_bytes` in hexadecimal."""
    raw = bytes.fromhex(item[field])
    if len(raw) != size_bytes:
        raise ValueError(f"{field} has {len(raw)} bytes, not {size_bytes}")
    return int.from_bytes(raw, "big")


def whole(value: Any, low: int, high: int) -> int:
    """A number of JSON's, or of protobuf's in quotes, with `low` <= number < `high`."""
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise TypeError(f"no whole number: {value!r:.40}")
    found = int(value)
    if not low <= found < high:
        raise ValueError(f"out of range: {value!r:.40}")
    return found


def unsigned_in(item: Item, field: str, bits: int = 64) -> int:
    """The count or time in a field; 0 where it is missing, as protobuf has it."""
    return whole(item.get(field, 0), 0, 1 << bits)


def counts_in(item: Item) -> list[int]:
    """The counts of a histogram's buckets."""
    return [whole(count, 0, 1 << 64) for count in item.get("bucketCounts", ())]


def signed_in(item: Item, field: str) -> int:
    """The 32-bit number in a field; 0 where it is missing, as protobuf has it."""
    return whole(item.get(field, 0), -(1 << 31), 1 << 31)


def number(value: Any) -> float:
    """A number of JSON's, or the "NaN", "Infinity" and "-Infinity" of protobuf's."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise TypeError(f"no number: {value!r:.40}")
    return float(value)


def optional_number_in(item: Item, field: str) -> Any:
    """The number in a field, or None, which the SDK's exporters take though their types do not say so."""
    return number(item[field]) if field in item else None


def measured_in(item: Item) -> int | float:
    """The value of a point or an exemplar."""
    return whole(item["asInt"], -(1 << 63), 1 << 63) if "asInt" in item else number(item["asDouble"])


def _array(value: Item, depth: int) -> list[Any]:
    return [value_of(inner, depth + 1) for inner in value.get("values", ())]


def _mapping(value: Item, depth: int) -> dict[str, Any]:
    return {text_in(pair, "key"): value_of(pair.get("value", {}), depth + 1) for pair in value.get("values", ())}


_VALUES: Mapping[str, Callable[[Any, int], Any]] = {
    "stringValue": lambda value, _: text(value),
    "intValue": lambda value, _: whole(value, -(1 << 63), 1 << 63),
    "doubleValue": lambda value, _: number(value),
    "boolValue": lambda value, _: truth(value),
    "bytesValue": lambda value, _: b64decode(value, validate=True),
    "arrayValue": _array,
    "kvlistValue": _mapping,
}
