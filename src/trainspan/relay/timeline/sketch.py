"""Quantiles of a stream in bounded memory, mergeable over ranks, nodes and time.

The buckets are those of OpenTelemetry's exponential histogram at scale 6: bucket `i` holds values above `base**i` up to
`base**(i+1)`, where `base = 2**(1/64)`. An answer from the middle of a bucket is at most 0.55 % off; 1 % is promised.

Source: Masson, Rim, Lee: DDSketch (VLDB 2019); OpenTelemetry data model, exponential histogram.
"""

from collections.abc import Mapping
from math import ceil, floor, inf, isfinite, log2
from typing import Any, Final

SCALE: Final = 6
_PER_OCTAVE: Final = 1 << SCALE
_LEAST_INDEX: Final = -30 * _PER_OCTAVE  # 2**-30 s, just under 1 ns
_GREATEST_INDEX: Final = 20 * _PER_OCTAVE - 1  # 2**20 s, 12 days
MOST_BUCKETS: Final = _GREATEST_INDEX - _LEAST_INDEX + 1
"""Bound of one sketch: 3200. The times of one phase need a few dozen."""


class Sketch:
    """Count, sum, least, greatest and quantiles of values from 1 ns to 12 days, in seconds.

    A value below that range counts as zero, one above it as the greatest bucket; `least` and `greatest` stay exact.

    Attributes:
        buckets: count by index, only where there is one.
        zeros: values of zero, or too small for a bucket.
    """

    __slots__ = ("buckets", "count", "greatest", "least", "total", "zeros")

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self.least = inf
        self.greatest = -inf
        self.zeros = 0
        self.buckets: dict[int, int] = {}

    def add(self, value: float) -> None:
        """Count `value`, zero or more.

        Cost: 0.6 µs.
        """
        self.count += 1
        self.total += value
        if value < self.least:  # a call of `min` would cost half as much as everything here
            self.least = value
        if value > self.greatest:
            self.greatest = value
        index = ceil(log2(value) * _PER_OCTAVE) - 1 if value > 0 else _LEAST_INDEX - 1
        if index < _LEAST_INDEX:
            self.zeros += 1
            return
        index = min(index, _GREATEST_INDEX)
        self.buckets[index] = self.buckets.get(index, 0) + 1

    def merge(self, other: "Sketch") -> None:
        """Count everything that `other` has counted."""
        self.count += other.count
        self.total += other.total
        self.least = min(self.least, other.least)
        self.greatest = max(self.greatest, other.greatest)
        self.zeros += other.zeros
        for index, count in other.buckets.items():
            self.buckets[index] = self.buckets.get(index, 0) + count

    @property
    def mean(self) -> float | None:
        """Arithmetic mean; None when nothing was counted."""
        return self.total / self.count if self.count else None

    def quantile(self, q: float) -> float | None:
        """The value that a share `q` (0 to 1) of the values does not exceed, within 1 %; None without values."""
        if not self.count:
            return None
        rank = floor(q * (self.count - 1))
        if rank >= self.count - 1:
            return self.greatest
        seen = self.zeros
        for index in sorted(self.buckets):
            if seen > rank:
                break
            seen += self.buckets[index]
            if seen > rank:
                return min(max(_middle_of(index), self.least), self.greatest)
        return self.least

    def to_json(self) -> dict[str, Any]:
        """A JSON object that `from_json` reads."""
        return {
            "scale": SCALE,
            "count": self.count,
            "sum": self.total,
            "min": self.least if self.count else None,
            "max": self.greatest if self.count else None,
            "zeros": self.zeros,
            "buckets": [list(pair) for pair in sorted(self.buckets.items())],
        }

    @classmethod
    def from_json(cls, written: Mapping[str, Any]) -> "Sketch":
        """The sketch that was written.

        Raises:
            ValueError: this is no sketch, or one with other buckets; the message says what was seen.
        """
        try:
            sketch = cls()
            sketch.count, sketch.zeros = int(written["count"]), int(written["zeros"])
            sketch.total = float(written["sum"])
            if sketch.count:
                sketch.least, sketch.greatest = float(written["min"]), float(written["max"])
            sketch.buckets = {int(index): int(count) for index, count in written["buckets"]}
            scale = int(written["scale"])
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"no sketch: {error!r}") from error
        if scale != SCALE:
            raise ValueError(f"a sketch of scale {scale}; only {SCALE} is understood")
        sketch._check()
        return sketch

    def _check(self) -> None:
        """Raise ValueError unless the numbers agree with each other."""
        counts = [self.zeros, *self.buckets.values()]
        if min(counts) < 0 or sum(counts) != self.count:
            raise ValueError(f"a sketch whose buckets hold {sum(counts)} values and whose count is {self.count}")
        if any(not _LEAST_INDEX <= index <= _GREATEST_INDEX for index in self.buckets):
            raise ValueError("a sketch with a bucket out of range")
        if self.count and not 0 <= self.least <= self.greatest < inf:
            raise ValueError(f"a sketch from {self.least} to {self.greatest}")
        if not isfinite(self.total):
            raise ValueError(f"a sketch of sum {self.total}")


def _middle_of(index: int) -> float:
    """The value whose relative distance to both ends of bucket `index` is the same."""
    low, high = (float(2 ** (i / _PER_OCTAVE)) for i in (index, index + 1))
    return 2 * low * high / (low + high)
