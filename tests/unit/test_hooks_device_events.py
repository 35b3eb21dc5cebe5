"""Events on the device: which steps get them, when they are read, and what makes them step aside."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from tests.unit.devices import FakeStream
from tests.unit.tapes import Tape, recording_marker
from trainspan.names import Phase
from trainspan.record.hooks import device_events as hook
from trainspan.record.marker import Marker


class Timed(NamedTuple):
    """A loop on a fake device, and what it told."""

    marker: Marker
    tape: Tape
    stream: FakeStream
    told: list[dict[str, Any]]
    step_ended: Callable[[], None]

    def step(self, forward_ms: float = 2.0, optimizer_ms: float = 1.0) -> None:
        """One step of training; the first mark is made at once."""
        outer = self.marker.enter(Phase.FORWARD)
        self.stream.now_ms += forward_ms
        self.marker.resume(outer)
        outer = self.marker.enter(Phase.OPTIMIZER)
        self.stream.now_ms += optimizer_ms
        self.marker.step(outer)
        self.step_ended()


def loop(takes: Callable[[int], bool] = lambda _: True) -> Timed:
    """A loop whose steps are timed where `takes` says so."""
    marker, tape = recording_marker()
    stream = FakeStream()
    told: list[dict[str, Any]] = []
    step_ended = hook.install(
        marker, stream.device(), takes, lambda name, **fields: told.append({"event": name, **fields})
    )
    return Timed(marker, tape, stream, told, step_ended)


def test_phases_of_a_taken_step_are_timed_between_its_marks() -> None:
    """The relay finds the device's time of a phase by the times of the marks around it."""
    timed = loop(lambda number: number == 1)

    for _ in range(3):
        timed.step()

    [told] = timed.told
    marks = [mark for mark in timed.tape.slots() if mark]
    assert told["step"] == 1
    assert told["times_ns"] == [mark.time_ns for mark in marks[4:8]]
    assert told["offsets_ns"] == [0, 0, 2_000_000, 2_000_000, 3_000_000]


def test_device_that_is_behind_is_asked_and_not_waited_for() -> None:
    """Law 1: no synchronization; a launch runs many steps ahead of the device."""
    timed = loop(lambda number: number == 1)
    timed.stream.behind_ms = 7.0

    counts = []
    for _ in range(5):
        timed.step()
        counts.append(len(timed.told))

    assert counts == [0, 0, 0, 0, 1]
    assert timed.told[0]["offsets_ns"] == [0, 0, 2_000_000, 2_000_000, 3_000_000]
    assert timed.stream.queries == 4


def test_events_are_used_again() -> None:
    """Making one costs more than recording it, and each holds a handle of the driver."""
    timed = loop()

    for _ in range(40):
        timed.step()

    assert len(timed.told) == 39
    assert len(timed.stream.events) == 5


def test_device_far_behind_costs_the_oldest_step() -> None:
    """What waits has a bound; what is dropped is told."""
    timed = loop()
    timed.stream.behind_ms = 1e9

    for _ in range(hook.MOST_BEHIND + 2):
        timed.step()

    assert timed.told == [{"event": "device_dropped", "step": 1, "reason": "behind"}]


def test_step_with_a_capture_in_it_is_not_timed() -> None:
    """An event within a graph has no time, and a question while it is captured would invalidate it."""
    timed = loop()
    timed.step()
    timed.stream.capturing = True

    timed.step()
    timed.stream.capturing = False
    timed.step()
    timed.step()

    assert timed.told == [
        {"event": "device_dropped", "step": 1, "reason": "capture"},
        {"event": "device_dropped", "step": 2, "reason": "capture"},
        {"event": "device_step", "step": 3, "times_ns": timed.told[2]["times_ns"], "offsets_ns": [0, 0, 2e6, 2e6, 3e6]},
    ]


def test_step_of_very_many_marks_is_given_up() -> None:
    """A thousand micro-batches would take thousands of events."""
    timed = loop(lambda number: number == 1)
    timed.step()

    for _ in range(hook.MOST_MARKS):
        timed.marker.resume(timed.marker.enter(Phase.BACKWARD))
    timed.step()

    assert timed.told == [{"event": "device_dropped", "step": 1, "reason": "long"}]
    assert len(timed.stream.events) == hook.MOST_MARKS + 1


def test_nothing_is_asked_of_a_device_that_is_not_used() -> None:
    """Also in a fork of a process that used it: torch then says that it is not."""
    timed = loop()
    timed.stream.ready = False

    for _ in range(3):
        timed.step()

    assert (timed.stream.events, timed.stream.queries, timed.told) == ([], 0, [])


def test_failing_device_is_left_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """A sticky error of CUDA is the script's to see, at its own next call; ours must not be the one that raises."""
    timed = loop()
    timed.step()
    timed.stream.broken = True

    timed.step()
    timed.stream.broken = False
    timed.step()

    assert timed.told == []
    assert timed.stream.queries == 0
    assert "no more device times (RuntimeError: CUDA error: an illegal" in capsys.readouterr().err
