"""What DistributedDataParallel's reducer says of itself: how long it computed, communicated, and both at once.

The reducer takes these times on its first ten iterations and on every hundredth, whoever asks: they are only read here,
every ten seconds at the end of a step. The event `ddp`: iteration, and in ns forward_compute, backward_compute,
backward_comm and backward_overlap; bucket_bytes, buckets. Cost: 0.1 µs a step; 10 µs a reading.
"""

import sys
from collections.abc import Callable, Iterable
from time import monotonic_ns
from typing import Any, Final

from trainspan.guard import warn_once

INTERVAL_NS: Final = 10_000_000_000
FIRST_TRIES: Final = 20
"""Steps at the beginning that are asked whatever the time is: the first times come with the third iteration or so."""

_TIMES: Final = {
    "forward_compute_ns": "forward_compute_time",
    "backward_compute_ns": "backward_compute_time",
    "backward_comm_ns": "backward_comm_time",
    "backward_overlap_ns": "backward_compute_comm_overlap_time",
}


def install(replicas: Iterable[Any], tell: Callable[..., None]) -> Callable[[], None]:
    """What is to be called at the end of every step of training.

    Args:
        replicas: the living modules of DistributedDataParallel.
        tell: `tell("ddp", **fields)` appends an event.
    """
    next_ns = 0
    told = -1
    tries = 0

    def step_ended() -> None:
        nonlocal next_ns, tries
        if not replicas:
            return
        now_ns = monotonic_ns()
        if now_ns < next_ns:
            return
        tries += 1
        try:
            read()
            next_ns = now_ns + INTERVAL_NS if told >= 0 or tries >= FIRST_TRIES else 0
        except Exception as error:
            next_ns = sys.maxsize  # this torch tells it in another way, now and later
            warn_once("ddp", f"the times of the reducer are not read ({type(error).__name__}: {error})")

    def read() -> None:
        nonlocal told
        for replica in list(replicas)[:1]:
            said = replica._get_ddp_logging_data()
            iteration = said.get("iteration")
            if iteration is None or iteration == told or not said.get(_TIMES["backward_compute_ns"]):
                continue
            told = iteration
            times = {field: said[name] for field, name in _TIMES.items() if name in said}
            sizes = [int(size) for size in str(said.get("bucket_sizes", "")).split(",") if size.strip().isdigit()]
            tell("ddp", iteration=iteration, buckets=len(sizes), bucket_bytes=sum(sizes), **times)

    return step_ended
