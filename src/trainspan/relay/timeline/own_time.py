"""What of a rank's steps is its own time: where it waits for no other rank.

Where ranks average gradients in every step, all of them take as long as the slowest. It comes late, and the others wait
for it inside backward and, for a global norm, inside grad_clip. So who is late is told by the time before and after:
data_wait, h2d, forward and optimizer. By the host's clock where the host is slow, by the device's where the device is.
In the user's own code (`other`) a device is waited for, which may itself wait for another rank.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from trainspan.names import AnyPhase, Phase

OWN_PHASES: Final = (Phase.DATA_WAIT, Phase.H2D, Phase.FORWARD, Phase.OPTIMIZER)


class OwnTime(NamedTuple):
    """Of all steps so far, by the host; of the `timed` ones, by the device. None: no step had any of the phases."""

    host_ns: int | None = None
    device_ns: int | None = None
    timed: int = 0

    def with_step(self, phase_times_ns: Mapping[AnyPhase, int]) -> "OwnTime":
        """And a step more, by its `phase_times_of`. Cost: 1 µs."""
        return OwnTime(_sum(self.host_ns, phase_times_ns), self.device_ns, self.timed)

    def with_timed_step(self, phase_times_ns: Mapping[AnyPhase, int]) -> "OwnTime":
        """And a step more that the device has timed."""
        return OwnTime(self.host_ns, _sum(self.device_ns, phase_times_ns), self.timed + 1)


def own_ns(phase_times_ns: Mapping[AnyPhase, int]) -> int | None:
    """The own time of one step, by its `phase_times_of`; None: it had none of the phases."""
    return _sum(None, phase_times_ns)


def held_up_ns(ranks: Sequence[tuple[int, int | None]]) -> int:
    """By how much one rank held the others up in a step: its own time beyond that of the middle one; 0: nobody waited.

    The middle one, of an even number the one with less, is what a step takes without a straggler. Others waited if
    their step took as long, within half of what the one needed more; ranks that are not bound to each other do not.

    Args:
        ranks: (duration, own time) of the step of each rank of a node.
    """
    own = sorted(one for _, one in ranks if one is not None)
    if len(own) < 2:
        return 0
    more_ns = own[-1] - own[(len(own) - 1) // 2]
    durations_ns = [duration_ns for duration_ns, _ in ranks]
    return more_ns if max(durations_ns) - min(durations_ns) <= more_ns // 2 else 0


def _sum(total_ns: int | None, phase_times_ns: Mapping[AnyPhase, int]) -> int | None:
    for phase in OWN_PHASES:
        time_ns = phase_times_ns.get(phase)
        if time_ns is not None:
            total_ns = (total_ns or 0) + time_ns
    return total_ns
