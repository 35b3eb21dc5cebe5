"""Marks and device of a step find each other, whichever comes first, and nobody waits for what does not come."""

from typing import Any

from trainspan.names import Phase
from trainspan.relay.device_times import MOST_KEPT, DeviceTimes
from trainspan.relay.timeline.records import RankStep
from trainspan.sampling import sampling_from
from trainspan.testing.builders import identity_of, rank_step


def times(environ: dict[str, str] | None = None, share: float | None = None) -> DeviceTimes:
    """Of a rank that times its steps from step 1 on."""
    device = DeviceTimes(identity_of(0), sampling_from(environ or {})[0])
    device.take({"event": "device_events", "from_step": 1, "share": share})
    return device


def step(number: int) -> RankStep:
    """A step of one forward."""
    return rank_step(number, [(Phase.FORWARD, 10)], start_ns=100 * number)


def told(number: int) -> dict[str, Any]:
    """What the device says of it."""
    return {"event": "device_step", "step": number, "times_ns": [100 * number + 10], "offsets_ns": [0, 8]}


def test_device_answers_later_than_the_marks() -> None:
    """The usual order: the device is a few steps behind."""
    device = times()
    before = device.pair([step(1), step(2)])

    device.take(told(1))
    after = device.pair([step(3)])

    assert before == []
    assert [(timed.step.number, timed.device.duration_ns) for timed in after] == [(1, 8)]
    assert device.pair([]) == []


def test_device_answers_earlier_than_the_marks() -> None:
    """A look reads the event log after the marks: it may be a step ahead of them."""
    device = times()
    device.take(told(1))

    paired = device.pair([step(1)])

    assert [timed.step.number for timed in paired] == [1]


def test_step_waits_for_the_device_only_if_that_times_it() -> None:
    """A trace is made when its device has answered; all others must not be late."""
    device = times()

    waits = [device.awaits(number) for number in range(7)]
    device.take(told(1))
    device.take({"event": "device_dropped", "step": 2, "reason": "capture"})

    assert waits[:5] == [False, True, True, True, True]
    assert (device.awaits(1), device.awaits(2), device.awaits(3)) == (False, False, True)
    assert device.of(1) is not None
    assert device.of(2) is None


def test_share_of_the_rank_decides() -> None:
    """TRAINSPAN_DEVICE_SHARE is another share than that of the traces."""
    assert not times({"OTEL_TRACES_SAMPLER": "always_on"}, share=0.0).awaits(3)
    assert times({"OTEL_TRACES_SAMPLER": "always_off"}, share=1.0).awaits(3)


def test_rank_without_a_device_keeps_nothing() -> None:
    """Every CPU job is one."""
    device = DeviceTimes(identity_of(0), sampling_from({})[0])

    assert device.pair([step(1)]) == []
    assert not device.awaits(1)


def test_what_never_finds_its_other_half_is_forgotten() -> None:
    """Steps come by the million."""
    device = times(share=1.0)
    device.pair([step(number) for number in range(1, MOST_KEPT + 3)])

    device.take(told(1))
    device.take(told(3))

    assert [timed.step.number for timed in device.pair([])] == [3]


def test_event_that_makes_no_sense_changes_nothing() -> None:
    """An event log is a file of the user's."""
    device = times()

    device.take({"event": "device_step", "step": 1})
    device.take({"event": "device_events", "from_step": "two"})

    assert device.awaits(1)
