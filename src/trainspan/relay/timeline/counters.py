"""Counters and times that a rank tells of its allocator, its compiler and its reducer, the newest only.

Read with distrust: a log can hold anything.
"""

from collections.abc import Mapping
from typing import Any, Final

_LARGEST: Final = 1 << 62

ALLOCATOR: Final = ("reserved_bytes", "active_bytes", "allocated_bytes", "allocated_peak_bytes", "retries", "ooms")
COMPILED: Final = ("compilations", "recompilations", "graph_breaks")
REDUCER: Final = (
    "forward_compute_ns",
    "backward_compute_ns",
    "backward_comm_ns",
    "backward_overlap_ns",
    "bucket_bytes",
)


def counts_of(event: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, int]:
    """Those of `names` that `event` gives a sound number for."""
    return {name: value for name in names if type(value := event.get(name)) is int and 0 <= value < _LARGEST}
