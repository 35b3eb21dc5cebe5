"""The device's times of a step, by the marks of the host."""

from typing import Any

import pytest

from trainspan.names import Phase
from trainspan.relay.timeline.device import DeviceStep, Stretch, device_step_of
from trainspan.testing.builders import rank_step

EVENT = {
    "event": "device_step",
    "step": 7,
    "times_ns": [1_010, 1_030, 1_031, 1_040],
    "offsets_ns": [0, 5, 25, 25, 95],
}
"""A step from 1,000 to 1,040: 10 in other, 20 in forward, 1 in other, 9 in optimizer."""

STEP = rank_step(7, [(Phase.OTHER, 10), (Phase.FORWARD, 20), (Phase.OTHER, 1), (Phase.OPTIMIZER, 9)], start_ns=1_000)


def test_each_interval_has_what_the_device_did_between_its_marks() -> None:
    """The host is through with a launch in 9 ns; the device takes 70."""
    device = device_step_of(EVENT)

    stretches = device.stretches(STEP)

    assert stretches == (Stretch(0, 5), Stretch(5, 20), Stretch(25, 0), Stretch(25, 70))
    assert device.duration_ns == 95
    assert device.phase_times(STEP) == {Phase.OTHER: 5, Phase.FORWARD: 20, Phase.OPTIMIZER: 70}


def test_interval_whose_marks_the_device_did_not_see_has_no_time() -> None:
    """Marks can be lost to a lap, or told of another step: no time is better than a wrong one."""
    device = DeviceStep(7, (1_010, 1_039), (5, 25))

    stretches = device.stretches(STEP)

    assert stretches == (Stretch(0, 5), None, None, None)


@pytest.mark.parametrize(
    "change",
    [
        {"step": None},
        {"step": True},
        {"times_ns": []},
        {"times_ns": [1, 2, "3", 4]},
        {"times_ns": [1, 2, 3]},
        {"times_ns": [4, 3, 2, 1]},
        {"times_ns": [1, 2, 3, 1 << 70]},
        {"offsets_ns": [0, 5, 25, 25, 20]},
        {"offsets_ns": [0, 5, 25, 25, 1.5]},
        {"offsets_ns": None},
    ],
)
def test_event_that_makes_no_sense_is_refused(change: dict[str, Any]) -> None:
    """An event log is a file of the user's."""
    with pytest.raises(ValueError, match=r"is|holds|goes|marks"):
        device_step_of({**EVENT, **change})
