"""What is logged gets into the event log, at its pace, and nothing waits for a device."""

import gc
import math
from itertools import pairwise
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor

from trainspan.record.course import TOLD, Course
from trainspan.record.device_copies import Cuda, CudaCopies, Device, cuda
from trainspan.record.pace import Pace
from trainspan.record.scalars import MOST_NAMES, ScalarLog
from trainspan.record.work import WorkCount
from trainspan.testing.fake_cuda import FakeCuda, FakeNumber, FakeStream

S = 1_000_000_000


class FakeDevice:
    """A device that hands out what was copied when the test says that it is there; CPU tensors play its own.

    Attributes:
        arrived: whether what was copied so far has arrived.
        capturing: whether a graph is being captured.
        broken: whether every question fails, as after an error that CUDA does not forget.
        copies: how many copies were begun.
    """

    def __init__(self) -> None:
        self.arrived = False
        self.capturing = False
        self.broken = False
        self.copies = 0

    def device(self) -> Device:
        """It, as the log asks for it."""
        return Device(self.begin, lambda: self.capturing)

    def begin(self, tensor: Tensor) -> "FakeCopy":
        """A copy of `tensor` as it is now."""
        assert tensor.shape == ()
        if self.capturing:
            raise RuntimeError("a copy begun while a graph is captured is in the graph")
        self.copies += 1
        return FakeCopy(self)


class FakeCopy:
    """A number under way: the count of the copy it is."""

    def __init__(self, device: FakeDevice):
        self._device = device
        self._number = float(device.copies)

    def is_there(self) -> bool:
        if self._device.capturing:
            raise RuntimeError("operation not permitted when stream is capturing")
        if self._device.broken:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        return self._device.arrived

    def read(self) -> float:
        assert self._device.arrived, "read before it was there"
        return self._number


class Rank:
    """A log, its clock and its steps, and what it told."""

    def __init__(self, **devices: FakeDevice):
        self.now_ns = 0
        self.steps = 0
        self.told: list[dict[str, Any]] = []
        places = {kind: device.device() for kind, device in devices.items()}
        self.log = ScalarLog(self.tell, lambda: self.steps, places, lambda: self.now_ns)

    def tell(self, event: str, **fields: Any) -> None:
        """Append an event."""
        self.told.append({"event": event, **fields})

    def step(self, after_ns: int = S) -> None:
        """Complete a step, a while later."""
        self.now_ns += after_ns
        self.steps += 1
        self.log.step_ended()


def on_device(count: int = 1) -> Tensor:
    """A tensor on a device that this machine does not have."""
    return torch.empty(count, device="meta")


def test_last_value_of_each_name_is_told_once_a_second() -> None:
    """Whole, with all its fields; what has not changed is not told again."""
    rank = Rank()
    rank.step()
    rank.log.log("loss", 2.0)
    rank.log.log({"loss": 1.5, "lr": numpy.float32(0.5), "accuracy": torch.tensor([0.25], requires_grad=True)}, step=41)

    rank.step()
    rank.log.log("loss", 1.0)
    rank.step(after_ns=S // 2)
    rank.step(after_ns=S // 2)
    rank.step()

    assert rank.told == [
        {
            "event": "scalars",
            "step": 2,
            "values": {"loss": 1.5, "lr": 0.5, "accuracy": 0.25},
            "counters": {},
            "dropped": 0,
            "at_step": 0,
            "global_step": 41,
        },
        {
            "event": "scalars",
            "step": 4,
            "values": {"loss": 1.0},
            "counters": {},
            "dropped": 0,
            "at_step": 0,
            "global_step": 41,
        },
    ]


def test_loss_that_is_no_number_is_told() -> None:
    """It is what somebody looks for."""
    rank = Rank()
    rank.log.log({"loss": math.nan, "grad_norm": torch.tensor(math.inf)})

    rank.step()

    [event] = rank.told
    assert math.isnan(event["values"]["loss"])
    assert event["values"]["grad_norm"] == math.inf


def test_counters_add_up() -> None:
    """A counter never goes back; what would take it there is not taken, and no device is waited for."""
    rank = Rank()
    rank.log.counter("skipped")
    rank.log.counter("skipped", 2)
    taken = [rank.log.counter("skipped", amount) for amount in (-1, math.inf, on_device(), "x", True)]

    rank.step()

    assert taken == [False, False, False, False, True]
    assert (rank.told[0]["counters"], rank.told[0]["dropped"]) == ({"skipped": 4.0}, 4)


def test_callback_is_asked_at_the_end_of_steps() -> None:
    """Not more often than it is told; one that fails is asked no more."""
    rank = Rank()
    asked: list[int] = []

    def depth() -> int:
        asked.append(rank.steps)
        if rank.steps > 3:
            raise OSError("the queue is gone")
        return 7

    rank.log.observe("queue", depth)
    for after_ns in (S, 1, 1, S, S):
        rank.step(after_ns)

    assert asked == [1, 4]
    assert [event["values"] for event in rank.told] == [{"queue": 7.0}]


def test_total_kept_elsewhere_is_a_counter() -> None:
    """A gauge cannot be rated; and who keeps the total may begin again, which must not look like going back."""
    rank = Rank()
    totals = iter([0, 5, 5, 7, 2, 4.5, math.nan, -1, "x", on_device(), 6])

    rank.log.counter("retries", 100)
    rank.log.observe("retries", lambda: next(totals), total=True)
    for _ in range(11):
        rank.step()

    assert [event["counters"] for event in rank.told if event["counters"]] == [
        {"retries": total} for total in (100.0, 105.0, 107.0, 109.0, 111.5, 113.0)
    ]
    assert [event["values"] for event in rank.told if event["values"]] == []
    assert rank.told[-1]["dropped"] == 4


def test_observed_total_of_nothing_yet_is_told() -> None:
    """A rate needs the zero from which it rises."""
    rank = Rank()

    rank.log.observe("retries", lambda: 0, total=True)
    rank.step()
    rank.step()

    assert [event["counters"] for event in rank.told] == [{"retries": 0.0}]


def test_callbacks_are_bounded() -> None:
    """One for each object that is made would be asked for ever."""
    rank = Rank()
    asked: list[int] = []

    for number in range(MOST_NAMES + 5):
        rank.log.observe(f"queue{number}", lambda: asked.append(1))
    rank.step()

    assert len(asked) == MOST_NAMES
    assert rank.told[0]["dropped"] >= 5


def test_value_on_a_device_is_read_when_it_is_there() -> None:
    """Waiting for it would stop the host until the device has done all that was queued before."""
    device = FakeDevice()
    rank = Rank(meta=device)

    rank.log.log("loss", on_device())
    rank.step()
    before = list(rank.told)
    device.arrived = True
    rank.step()

    assert before == []
    assert [event["values"] for event in rank.told] == [{"loss": 1.0}]


def test_device_is_asked_for_a_name_once_a_second() -> None:
    """A copy a step costs more than all marks of it; and what has not come yet is not asked for again."""
    device = FakeDevice()
    rank = Rank(meta=device)

    for _ in range(100):
        rank.log.log("loss", on_device())
        rank.step(after_ns=S // 10)
    stuck = device.copies
    device.arrived = True
    for _ in range(100):
        rank.log.log("loss", on_device())
        rank.step(after_ns=S // 10)

    assert stuck == 1
    assert 8 <= device.copies <= 11


def test_nothing_is_asked_of_a_device_while_a_graph_is_captured() -> None:
    """A question would invalidate the capture."""
    device = FakeDevice()
    rank = Rank(meta=device)
    rank.log.log("loss", on_device())

    device.capturing = True
    rank.log.log("accuracy", on_device())
    rank.step()
    device.capturing, device.arrived = False, True
    rank.step()

    assert [event["values"] for event in rank.told] == [{"loss": 1.0}]


class Pinned(Rank):
    """A log of what is on a fake of CUDA's devices; the meta device plays it."""

    def __init__(self) -> None:
        self.gpu = FakeCuda(lambda: self.now_ns / 1e6)
        self.pinned = 0

        def pin(_: Any, count: int) -> list[FakeNumber]:
            self.pinned += 1
            return self.gpu.pin(count)

        copies = CudaCopies(Cuda(pin, self.gpu.make_event, lambda _: self.gpu.current, lambda _: self.gpu.on(3)))
        super().__init__()
        self.log = ScalarLog(
            self.tell,
            lambda: self.steps,
            {"meta": Device(copies.begin, lambda: self.gpu.capturing)},
            lambda: self.now_ns,
        )


def test_copies_use_memory_and_events_again() -> None:
    """To pin memory takes the driver's lock; what is freed after a copy gets an event by torch each time."""
    rank = Pinned()
    rank.gpu.current.behind_ms = 10

    for number in range(50):
        rank.log.log({"loss": on_device(), "norm": on_device()})
        rank.step(after_ns=S + number)

    assert (rank.pinned, rank.gpu.made) == (1, 2)
    assert len(rank.told) == 50


def test_a_fork_lets_go_of_no_copy_under_way() -> None:
    """Torch frees pinned memory by recording an event, which in a DataLoader's worker ends that worker."""
    rank = Pinned()
    rank.gpu.current.behind_ms = 1e9
    rank.log.log("loss", on_device())

    rank.log.forget()
    gc.collect()

    assert rank.gpu.let_go == 0


def test_the_end_asks_where_the_number_comes_from() -> None:
    """The thread that ends the process may have used no device: asked there, CUDA makes a context on the first one."""
    rank = Pinned()
    rank.gpu.current = FakeStream(device_index=3)
    rank.log.log("loss", on_device())

    rank.log.close()

    assert rank.gpu.contexts == {3}


def test_device_that_fails_is_left_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """It is said once, training meets the error by itself, and what is no tensor is still logged."""
    device = FakeDevice()
    rank = Rank(meta=device)
    rank.log.log("loss", on_device())

    device.broken = True
    rank.step()
    rank.log.log({"loss": on_device(), "lr": 0.5})
    rank.step()

    assert "illegal memory access" in capsys.readouterr().err
    assert [event["values"] for event in rank.told] == [{"lr": 0.5}]


@pytest.mark.parametrize(
    "value",
    ["a text", None, torch.zeros(2), torch.zeros(1, dtype=torch.complex64), numpy.zeros(3), object(), on_device()],
    ids=["text", "None", "vector", "complex", "array", "object", "elsewhere"],
)
def test_what_is_no_number_is_dropped_and_counted(value: Any) -> None:
    """A framework hands over whatever its user logs."""
    rank = Rank()

    refused = rank.log.log({"odd": value, "loss": 1})
    rank.step()

    assert (rank.told[0]["values"], rank.told[0]["dropped"]) == ({"loss": 1.0}, 1)
    assert refused == ["odd"] or getattr(value, "is_meta", False)  # where no device can be read, that is no mistake


class Sharded:
    """As a DTensor's placement."""

    def __init__(self, replicated: bool):
        self._replicated = replicated

    def is_replicate(self) -> bool:
        return self._replicated


@pytest.mark.parametrize(("replicated", "values"), [(True, {"loss": 3.0}), (False, {})])
def test_only_a_replicated_tensor_is_read(replicated: bool, values: dict[str, float]) -> None:
    """What a sharded one holds takes a collective to know, which could wait for ever."""

    class Distributed(Tensor):
        """As DTensor looks from outside."""

        placements = (Sharded(replicated),)

        def __tensor_flatten__(self) -> Any:
            raise AssertionError("not asked")

        def to_local(self) -> Tensor:
            return torch.tensor(3.0)

    rank = Rank()

    rank.log.log("loss", torch.tensor(1.0).as_subclass(Distributed))
    rank.step()

    assert rank.told[0]["values"] == values


def test_names_are_bounded() -> None:
    """A name for each sample would be a series for each sample."""
    rank = Rank()

    for number in range(MOST_NAMES + 5):
        rank.log.log(f"name{number}", 1.0)
    rank.log.counter("another")
    rank.log.log("name0", 2.0)
    rank.step()

    [event] = rank.told
    assert (len(event["values"]), event["values"]["name0"], event["dropped"]) == (MOST_NAMES, 2.0, 6)


def test_what_is_left_is_told_at_the_end() -> None:
    """The last loss is the one that people compare."""
    rank = Rank()
    rank.log.log("loss", 2.0)
    rank.step()
    rank.log.log("loss", 1.0)

    rank.log.close()
    rank.log.close()

    assert [event["values"] for event in rank.told] == [{"loss": 2.0}, {"loss": 1.0}]


def test_child_begins_anew() -> None:
    """What was logged before a fork is the parent's."""
    rank = Rank()
    rank.log.log("loss", 2.0)
    rank.log.counter("skipped")

    rank.log.forget()
    rank.log.close()

    assert rank.told == []


def test_pace_slows_down_as_the_log_fills() -> None:
    """A job of weeks must leave room for what is rare: its checkpoints, and how it ended."""
    pace = Pace(portion_bytes=1000)
    told_ns = []

    for now_ns in range(0, 100 * S, S // 2):
        if pace.is_due(now_ns):
            told_ns.append(now_ns)
            pace.told(now_ns, 250)

    gaps_s = [(later - sooner) // S for sooner, later in pairwise(told_ns)]
    assert gaps_s == [1, 1, 1, *[2] * 4, *[4] * 4, *[8] * 4, *[16] * 2]


def test_course_is_told_when_it_changes() -> None:
    """A thousand steps that count on are one event."""
    told: list[dict[str, Any]] = []
    steps = 0
    course = Course(lambda _, **fields: told.append(fields), lambda: steps)

    course.note(0, 0)
    for steps in range(1, 1001):
        course.note(500 + steps, steps // 600)
        course.note(500 + steps, 99)

    assert told == [{"step": 0, "global_step": 501, "epoch": 0}, {"step": 599, "global_step": 1100, "epoch": 1}]


def test_course_that_always_changes_is_bounded() -> None:
    """The event log has a bound that others share."""
    told: list[dict[str, Any]] = []
    steps = 0
    course = Course(lambda _, **fields: told.append(fields), lambda: steps)

    for steps in range(1, TOLD + 10):
        course.note(steps * 2, 0)

    assert len(told) == TOLD


def test_work_that_the_user_counts_is_told_in_totals() -> None:
    """At most once a second, and at the end; what is not counted is not zero."""
    told: list[dict[str, Any]] = []
    times_ns = iter((1, 2, S + 1))
    work = WorkCount(lambda _, **fields: told.append(fields), lambda: next(times_ns))

    for _ in range(3):
        work.add(None, 100)
        work.step_ended()
    work.add(4, None)
    work.close()
    work.close()

    totals = [(None, 100), (None, 300), (4, 300)]
    assert told == [{"samples": samples, "tokens": tokens} for samples, tokens in totals]


@pytest.mark.parametrize("samples", ["many", math.nan, [1], -1, 2.5, on_device()])
def test_work_that_is_no_number_is_refused(samples: Any) -> None:
    """In the rank nothing of ours raises, and one mistake does not take the rest along."""
    told: list[dict[str, Any]] = []

    work = WorkCount(lambda _, **fields: told.append(fields))
    refused = work.add(samples, 3)
    work.close()

    assert refused == ["samples"]
    assert told == [{"samples": None, "tokens": 3}]


def test_a_capture_on_another_thread_counts() -> None:
    """The current stream of the thread that logs is not the one that captures, and torch tells of that alone."""
    assert cuda(lambda: True).is_capturing()


def test_a_failed_device_lets_go_of_no_copy_under_way() -> None:
    """Freed after an error that CUDA does not forget, it would end the process before the script has seen its error."""
    rank = Pinned()
    rank.log.log({"loss": on_device(), "norm": on_device()})
    rank.gpu.broken = True

    rank.step()
    gpu = rank.gpu
    del rank
    gc.collect()

    assert gpu.let_go == 0
