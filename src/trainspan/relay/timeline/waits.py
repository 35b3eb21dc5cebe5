"""How long ranks waited for each other in a collective: what each of them spent in it beyond the one that came last.

Ranks of other nodes are not seen, so this is the least it can have been. No clocks are compared, only durations.
"""

from collections.abc import Sequence
from typing import NamedTuple

from trainspan.relay.timeline.collectives import Call, Kind


class Stay(NamedTuple):
    """One rank's time in one collective, in monotonic ns of its host."""

    call: Call
    start_ns: int
    end_ns: int


class Wait(NamedTuple):
    """What one rank waited for others in one collective, from when it came to it."""

    kind: Kind
    start_ns: int
    end_ns: int


def waits_of(ranks: Sequence[Sequence[Stay]]) -> list[list[Wait]]:
    """The waits of each rank, in those collectives that more than one of them took part in.

    Args:
        ranks: the stays of each rank in one step.
    """
    shortest_ns: dict[tuple[str, str, int], list[int]] = {}
    for stays in ranks:
        for call, start_ns, end_ns in stays:
            key = call.key
            if key is not None:
                shortest_ns.setdefault(key, []).append(end_ns - start_ns)
    return [
        [
            Wait(call.kind, start_ns, end_ns - min(shortest_ns[key]))
            for call, start_ns, end_ns in stays
            if (key := call.key) is not None and len(shortest_ns[key]) > 1
        ]
        for stays in ranks
    ]
