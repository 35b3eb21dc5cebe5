"""What one rank's device says of its steps, brought together with what its marks say of them.

The device answers steps later, in the event log; the marks of a step come at once. Both wait here for each other, and
a step's trace waits for the device: see `awaits`.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from trainspan.identity import Identity, trace_id_of
from trainspan.relay.timeline.device import DeviceStep, device_step_of
from trainspan.relay.timeline.fields import field, optional
from trainspan.relay.timeline.records import RankStep
from trainspan.sampling import Sampling

MOST_KEPT: Final = 256
"""Steps kept of either side. A rank gives up on its device after fewer."""


class Timed(NamedTuple):
    """A step, by its marks and by its device."""

    step: RankStep
    device: DeviceStep


class DeviceTimes:
    """The steps of one process that its device has timed.

    Args:
        identity: of the process.
        sampling: in force; which steps are timed follows from it, unless the rank has a share of its own.
    """

    def __init__(self, identity: Identity, sampling: Sampling):
        self._identity = identity
        self._sampling = sampling
        self._from: int | None = None  # number of the first step that may be timed
        self._told: OrderedDict[int, DeviceStep | None] = OrderedDict()  # None: given up
        self._unpaired: OrderedDict[int, RankStep] = OrderedDict()

    def take(self, event: Mapping[str, Any]) -> None:
        """Take over an event of the rank; one that makes no sense changes nothing."""
        try:
            self._take(event)
        except ValueError:
            return

    def pair(self, steps: Sequence[RankStep]) -> list[Timed]:
        """The steps that are now known from both sides; `steps` have been completed since the last call."""
        if self._from is None:
            return []
        for step in steps:
            self._unpaired[step.number] = step
        paired = []
        for number in [number for number in self._told if number in self._unpaired]:
            step, device = self._unpaired.pop(number), self._told[number]
            if device is not None:
                paired.append(Timed(step, device))
        while len(self._unpaired) > MOST_KEPT:
            self._unpaired.popitem(last=False)
        return paired

    def awaits(self, number: int) -> bool:
        """Whether the device may still say something of that step."""
        if self._from is None or number < self._from or number in self._told:
            return False
        trace_id = trace_id_of(self._identity.run, self._identity.attempt, "step", number)
        return self._sampling.reason_for_step(number, trace_id) is not None

    def of(self, number: int) -> DeviceStep | None:
        """What the device said of that step; None: nothing, or too long ago."""
        return self._told.get(number)

    def _take(self, event: Mapping[str, Any]) -> None:
        if event["event"] == "device_events":
            share = optional(event, "share", float)
            self._from = field(event, "from_step", int)
            if share is not None and 0 <= share <= 1:
                self._sampling = Sampling("traceidratio", share)
        elif event["event"] == "device_step":
            device = device_step_of(event)
            self._tell(device.number, device)
        elif event["event"] == "device_dropped":
            self._tell(field(event, "step", int), None)

    def _tell(self, number: int, device: DeviceStep | None) -> None:
        self._told[number] = device
        if len(self._told) > MOST_KEPT:
            self._told.popitem(last=False)
