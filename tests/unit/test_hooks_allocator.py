"""Memory of the allocator, and where it ran out."""

from typing import Any

import pytest
import torch

from tests.unit.tapes import recording_marker
from trainspan.names import Phase
from trainspan.record.hooks import allocator as hook

COUNTERS = {
    "reserved_bytes.all.current": 40 << 30,
    "allocated_bytes.all.current": 30 << 30,
    "active_bytes.all.current": 31 << 30,
    "allocated_bytes.all.peak": 39 << 30,
    "num_alloc_retries": 2,
    "num_ooms": 1,
    "segment.all.current": 7,
}


def counters_of(number: int) -> dict[str, Any]:
    """Of the fourth device; the others are empty."""
    return dict(COUNTERS) if number == 3 else dict.fromkeys(COUNTERS, 0)


class Told(list[dict[str, Any]]):
    """What was told."""

    def tell(self, name: str, **fields: Any) -> None:
        self.append({"event": name, **fields})


def test_counters_are_read_once_in_a_while() -> None:
    """A reading takes as long as a hundred marks."""
    marker, _ = recording_marker()
    told = Told()
    step_ended = hook.install(marker, told.tell, lambda: 3, lambda: True, counters_of)

    for _ in range(100):
        step_ended()

    assert told == [
        {
            "event": "allocator",
            "reserved_bytes": 40 << 30,
            "allocated_bytes": 30 << 30,
            "active_bytes": 31 << 30,
            "allocated_peak_bytes": 39 << 30,
            "retries": 2,
            "ooms": 1,
        }
    ]


def test_device_that_is_not_used_is_not_read() -> None:
    """Reading would initialize it."""
    marker, _ = recording_marker()
    told = Told()

    hook.install(marker, told.tell, lambda: 3, lambda: False, counters_of)()

    assert told == []


def test_no_device_in_use_is_no_reading() -> None:
    """The counters of a device that nobody uses are zeros, which say that a model takes no memory."""
    marker, _ = recording_marker()
    told = Told()

    hook.install(marker, told.tell, lambda: None, lambda: True, counters_of)()

    assert told == []


def test_allocator_without_counters_is_asked_once(capsys: pytest.CaptureFixture[str]) -> None:
    """A pluggable allocator has none, and says so by an exception."""
    marker, _ = recording_marker()
    told = Told()
    asked: list[int] = []

    def read(_: int) -> dict[str, Any]:
        asked.append(1)
        raise RuntimeError("CUDAPluggableAllocator does not yet support getDeviceStats")

    step_ended = hook.install(marker, told.tell, lambda: 0, lambda: True, read)
    step_ended()
    step_ended()

    assert (told, asked) == ([], [1])
    assert "the allocator's memory is not read" in capsys.readouterr().err


def test_failed_allocation_is_told_with_its_step_and_phase() -> None:
    """The script may catch it and go on with a smaller batch: no end of the process would tell."""
    marker, _ = recording_marker()
    told = Told()
    hook.install(marker, told.tell, lambda: None, lambda: False, counters_of)
    marker.step(marker.enter(Phase.OPTIMIZER))

    for error in (torch.cuda.OutOfMemoryError("tried to allocate 2 GiB"), ValueError("shape")):
        outer = marker.enter(Phase.BACKWARD)
        try:
            raise error
        except Exception:  # noqa: BLE001 - as the hooks do
            marker.abort(outer)

    assert told == [{"event": "out_of_memory", "step": 1, "phase": "backward"}]
