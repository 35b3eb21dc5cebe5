"""Loops of validation: a step that holds forward passes without gradients holds one loop of them."""

from typing import NamedTuple

from trainspan.names import Phase
from trainspan.relay.timeline.records import RankStep


class Loop(NamedTuple):
    """From its first batch to its last. `iterations`: forward passes."""

    start_ns: int
    end_ns: int
    iterations: int


def loop_of(step: RankStep) -> Loop | None:
    """The loop in `step`; None if it holds none."""
    stays = [interval for interval in step.intervals if interval.phase is Phase.VALIDATION]
    if not stays or not step.validations:
        return None
    return Loop(stays[0].start_ns, stays[-1].end_ns, step.validations)
