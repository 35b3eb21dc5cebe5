"""Quantities as a person reads them: three significant digits and a unit. Missing is a dash, zero is a zero."""

from typing import Final

MISSING: Final = "-"

_SMALL: Final = ((1.0, "s", 1.0), (1e-3, "ms", 1e3), (1e-6, "µs", 1e6))
_ENERGIES: Final = ((3.6e6, "kWh"), (1e3, "kJ"))
_LARGE: Final = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_BYTES: Final = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def duration(seconds: float | None) -> str:
    """`seconds` as text: `812 µs`, `41.3 ms`, `1.07 s`, `3 min 20 s`, `2 h 05 min`, `4 d 03 h`."""
    if seconds is None:
        return MISSING
    if seconds >= 99.5:
        return _long(round(seconds))
    # The limit is what rounds to 1000 of the next smaller unit, so that no number has four digits.
    for unit_s, unit, factor in _SMALL:
        if seconds >= unit_s * 0.9995:
            return f"{_three_digits(seconds * factor)} {unit}"
    return f"{round(seconds * 1e6)} µs" if seconds * 1e6 >= 0.5 else "0 s"


def ratio(share: float | None) -> str:
    """A share from 0 to 1 as text: `81.2 %`."""
    return MISSING if share is None else f"{share * 100:.1f} %"


def rate(per_second: float | None) -> str:
    """A rate in 1/s as text: `1.93/s`; a slow one per minute: `4.2/min`."""
    if per_second is None:
        return MISSING
    if 0 < per_second < 0.0995:
        return f"{_three_digits(per_second * 60)}/min"
    return f"{_three_digits(per_second)}/s"


def count_rate(per_second: float, what: str) -> str:
    """How many of something a second, as text: `31.2k tokens/s`."""
    number, prefix = _prefixed(per_second)
    return f"{number}{prefix} {what}/s"


def flop_rate(per_second: float) -> str:
    """Floating-point operations a second as text: `312 TFLOP/s`."""
    number, prefix = _prefixed(per_second)
    return f"{number} {prefix}FLOP/s"


def size(size_bytes: int | None) -> str:
    """A size as text: `1.5 GiB`."""
    if size_bytes is None:
        return MISSING
    for unit_bytes, unit in _BYTES:
        if size_bytes >= unit_bytes:
            return f"{_three_digits(size_bytes / unit_bytes)} {unit}"
    return f"{size_bytes} B"


def energy(joules: float | None) -> str:
    """Energy as text: `31.4 J`, `52.1 kJ`, `18.0 kWh`."""
    if joules is None:
        return MISSING
    for unit_j, unit in _ENERGIES:
        if joules >= unit_j * 0.9995:
            return f"{_three_digits(joules / unit_j)} {unit}"
    return f"{_three_digits(joules)} J"


def _prefixed(number: float) -> tuple[str, str]:
    # The limit is what rounds to 1000 of the next smaller prefix, so that no number has four digits.
    for factor, prefix in _LARGE:
        if number >= factor * 0.9995:
            return _three_digits(number / factor), prefix
    return _three_digits(number), ""


def _long(seconds: int) -> str:
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60:02d} s"
    minutes = round(seconds / 60)
    if minutes < 24 * 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    hours = round(seconds / 3600)
    return f"{hours // 24} d {hours % 24:02d} h"


def _three_digits(number: float) -> str:
    if number >= 99.95:
        return f"{number:.0f}"
    return f"{number:.1f}" if number >= 9.995 else f"{number:.2f}"
