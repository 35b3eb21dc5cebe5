"""Events on the device: which steps get them, when they are read, and what makes them step aside."""

import gc
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from tests.unit.devices import Gpu
from tests.unit.tapes import Tape, recording_marker
from trainspan.names import Phase
from trainspan.record.hooks import device_events as hook
from trainspan.record.marker import Marker
from trainspan.testing.fake_cuda import FakeStream


class Timed(NamedTuple):
    """A loop on a fake device, and what it told."""

    marker: Marker
    tape: Tape
    gpu: Gpu
    told: list[dict[str, Any]]
    steps: hook.DeviceSteps

    def step(self, forward_ms: float = 2.0, optimizer_ms: float = 1.0) -> None:
        """One step of training; the first mark is made at once."""
        outer = self.marker.enter(Phase.FORWARD)
        self.gpu.at_ms += forward_ms
        self.marker.resume(outer)
        outer = self.marker.enter(Phase.OPTIMIZER)
        self.gpu.at_ms += optimizer_ms
        self.marker.step(outer)
        self.steps.step_ended()


def loop(takes: Callable[[int], bool] = lambda _: True) -> Timed:
    """A loop whose steps are timed where `takes` says so."""
    marker, tape = recording_marker()
    gpu = Gpu()
    told: list[dict[str, Any]] = []
    steps = hook.DeviceSteps(marker, gpu.device(), takes, lambda name, **fields: told.append({"event": name, **fields}))
    return Timed(marker, tape, gpu, told, steps)


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
    timed.gpu.current.behind_ms = 7.0

    counts = []
    for _ in range(5):
        timed.step()
        counts.append(len(timed.told))

    assert counts == [0, 0, 0, 0, 1]
    assert timed.told[0]["offsets_ns"] == [0, 0, 2_000_000, 2_000_000, 3_000_000]
    assert timed.gpu.queries == 4


def test_events_are_used_again() -> None:
    """Making one costs more than recording it, and each holds a handle of the driver."""
    timed = loop()

    for _ in range(40):
        timed.step()

    assert len(timed.told) == 39
    assert timed.gpu.made == 5


def test_device_far_behind_is_given_no_more_steps() -> None:
    """What waits has a bound, and what is dropped is told. Dropped at its other end, no step would ever be timed."""
    timed = loop()
    timed.gpu.current.behind_ms = 100.0

    for _ in range(hook.MOST_BEHIND + 30):
        timed.step()

    dropped = [told["step"] for told in timed.told if told["event"] == "device_dropped"]
    assert [told["reason"] for told in timed.told if "reason" in told] == ["behind"] * len(dropped)
    assert dropped[0] == hook.MOST_BEHIND + 1
    # The device is 34 steps behind, and still gets to the first ones.
    assert [told["step"] for told in timed.told if told["event"] == "device_step"] == [1, 2, 3]
    assert timed.gpu.made <= (hook.MOST_BEHIND + 1) * 5


def test_a_phase_on_another_stream_is_timed_where_its_step_is() -> None:
    """Prefetchers call the loader within a stream of their own, which is idle while the step's has work for seconds."""
    timed = loop(lambda number: number == 1)
    timed.gpu.current.behind_ms = 50.0
    timed.step()
    usual = timed.gpu.current

    timed.gpu.current = FakeStream()
    timed.marker.resume(timed.marker.enter(Phase.DATA_WAIT))
    timed.gpu.current = usual
    timed.step()
    timed.gpu.at_ms += 100
    timed.step()

    [told] = timed.told
    assert told["offsets_ns"] == [0, 0, 0, 0, 2_000_000, 2_000_000, 3_000_000]


def test_a_script_that_turns_to_another_device_is_timed_there() -> None:
    """An event belongs to the device it was recorded on first: one of the old ones would be refused."""
    timed = loop()
    for _ in range(3):
        timed.step()

    timed.gpu.current = FakeStream(device_index=1)
    for _ in range(3):
        timed.step()

    assert [(told["step"], told["event"]) for told in timed.told] == [(n, "device_step") for n in range(1, 6)]


def test_a_script_without_a_device_in_use_is_not_timed() -> None:
    """It has initialized CUDA to look what there is, and trains on the CPU: an event would take half a GPU gigabyte."""
    timed = loop()
    unused = timed.gpu.device()._replace(stream=lambda: None)
    steps = hook.DeviceSteps(timed.marker, unused, lambda _: True, timed.steps._tell)

    steps.step_ended()

    assert timed.told == [{"event": "device_dropped", "step": 0, "reason": "unused"}]
    assert (timed.gpu.made, timed.gpu.contexts) == (0, set())


def test_the_end_makes_no_context_on_another_device() -> None:
    """The thread that ends the process may never have used a device; its questions would go to the first one."""
    timed = loop()
    timed.gpu.current = FakeStream(device_index=3)
    timed.gpu.thread_on = 3
    timed.step()
    timed.step()
    timed.gpu.thread_on = 0

    timed.steps.close()

    assert [told["step"] for told in timed.told] == [1]
    assert timed.gpu.contexts == {3}


def test_nothing_is_asked_while_another_thread_captures() -> None:
    """On the thread that trains the current stream captures nothing then; a question invalidates the capture."""
    timed = loop()
    timed.step()
    timed.gpu.captures = True

    timed.step()
    timed.gpu.captures = False
    timed.step()
    timed.step()

    assert timed.gpu.queries == 1
    assert [(told["step"], told["event"]) for told in timed.told] == [
        *((1, "device_dropped"), (2, "device_dropped"), (3, "device_step"))
    ]


def test_the_last_steps_are_told_at_the_end() -> None:
    """There is no later step in which to ask; who has waited for the device before the end gets all of them."""
    timed = loop()
    timed.gpu.current.behind_ms = 4.0
    for _ in range(5):
        timed.step()
    before = len(timed.told)

    timed.gpu.at_ms += 4
    timed.steps.close()

    assert (before, [told["step"] for told in timed.told]) == (2, [1, 2, 3, 4])


def test_the_end_waits_for_no_device() -> None:
    """A process that ends must end."""
    timed = loop()
    timed.gpu.current.behind_ms = 1e9
    for _ in range(3):
        timed.step()

    timed.steps.close()

    assert timed.told == []


def test_a_fork_asks_nothing_of_its_parents_device() -> None:
    """It inherits the events, and torch says that it uses no device."""
    timed = loop()
    timed.gpu.current.behind_ms = 4.0
    for _ in range(3):
        timed.step()
    asked = timed.gpu.queries
    timed.gpu.ready = False

    timed.steps.close()

    assert (timed.gpu.queries, timed.told) == (asked, [])


def test_a_step_that_an_exception_leaves_in_the_middle_goes_on() -> None:
    """A script that skips a bad batch: the marks of both halves have their events."""
    timed = loop(lambda number: number == 1)
    timed.step()
    outer = timed.marker.enter(Phase.FORWARD)
    timed.gpu.at_ms += 5
    timed.marker.abort(outer)

    timed.step()
    timed.step()

    [told] = timed.told
    assert told["offsets_ns"] == [0, 0, 5_000_000, 5_000_000, 7_000_000, 7_000_000, 8_000_000]


def test_step_with_a_capture_in_it_is_not_timed() -> None:
    """An event within a graph has no time, and a question while it is captured would invalidate it."""
    timed = loop()
    timed.step()
    timed.gpu.capturing = True

    timed.step()
    timed.gpu.capturing = False
    timed.step()
    timed.step()

    assert timed.told == [
        {"event": "device_dropped", "step": 1, "reason": "capture"},
        {"event": "device_dropped", "step": 2, "reason": "capture"},
        {"event": "device_step", "step": 3, "times_ns": timed.told[2]["times_ns"], "offsets_ns": [0, 0, 2e6, 2e6, 3e6]},
    ]


def test_a_capture_before_the_first_event_is_no_failure() -> None:
    """A script that captures its first step is timed from its replays on."""
    timed = loop()
    timed.gpu.capturing = True
    timed.step()

    timed.gpu.capturing = False
    for _ in range(3):
        timed.step()

    assert [(told["event"], told["step"]) for told in timed.told] == [
        *(("device_dropped", 1), ("device_step", 2), ("device_step", 3))
    ]


def test_step_of_very_many_marks_is_given_up() -> None:
    """A thousand micro-batches would take thousands of events."""
    timed = loop(lambda number: number == 1)
    timed.step()

    for _ in range(hook.MOST_MARKS):
        timed.marker.resume(timed.marker.enter(Phase.BACKWARD))
    timed.step()

    assert timed.told == [{"event": "device_dropped", "step": 1, "reason": "long"}]
    assert timed.gpu.made == hook.MOST_MARKS + 1


def test_nothing_is_asked_of_a_device_that_is_not_used() -> None:
    """Also in a fork of a process that used it: torch then says that it is not."""
    timed = loop()
    timed.gpu.ready = False

    for _ in range(3):
        timed.step()

    assert (timed.gpu.made, timed.gpu.queries, timed.told) == (0, 0, [])


def test_a_device_that_comes_into_use_later_is_timed_from_there() -> None:
    """A script can warm up on the CPU; the step in which CUDA was initialized has begun without an event."""
    timed = loop()
    timed.gpu.ready = False
    for _ in range(3):
        timed.step()

    timed.gpu.ready = True
    for _ in range(3):
        timed.step()

    assert [(told["event"], told["step"]) for told in timed.told] == [("device_step", 4), ("device_step", 5)]


def test_failing_device_is_left_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """A sticky error of CUDA is the script's to see, at its own next call; ours must not be the one that raises."""
    timed = loop()
    timed.step()
    timed.gpu.broken = True

    timed.step()
    timed.gpu.broken = False
    timed.step()

    # Nobody is to wait for it any more.
    assert timed.told == [{"event": "device_events", "from_step": 1, "share": 0.0}]
    assert timed.gpu.queries == 0
    assert "no more device times (RuntimeError: CUDA error: an illegal" in capsys.readouterr().err


def test_no_event_is_ever_let_go_of() -> None:
    """Where CUDA has failed, each would be a line on stderr above the script's own error, or the end of the process."""
    timed = loop()
    for number in range(20):
        timed.gpu.current = FakeStream(device_index=number % 2)
        timed.step()
    timed.gpu.broken = True
    timed.step()
    made, gpu = timed.gpu.made, timed.gpu

    del timed
    gc.collect()

    assert made == 10
    assert gpu.let_go == 0
