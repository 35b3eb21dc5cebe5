"""What the bookkeeping of device times costs a step on the training thread, beside the marks that are there anyway.

The events are those of a device that does nothing, so all that is measured is our own; where there is a GPU, its own
events too. A step has ten marks, and each row is what it takes more than one without device times, in CPU time.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from threading import get_ident
from types import SimpleNamespace
from typing import Any

import torch

from trainspan.identity import trace_id_of
from trainspan.names import Phase
from trainspan.record.hooks import device_events
from trainspan.record.marker import Marker, make_marker
from trainspan.recording.layout import HEADER_BYTES, MARK_BYTES
from trainspan.sampling import Sampling

MARKS = 1 << 12
STEPS_OF_A_BLOCK = 100
PHASES = (Phase.DATA_WAIT, Phase.FORWARD, Phase.BACKWARD, Phase.GRAD_CLIP)


class Idle:
    """An event that is reached at once and tells the time of nothing."""

    __slots__ = ()

    def record(self, stream: Any) -> None:
        """Nothing."""

    def query(self) -> bool:
        """It has been reached."""
        return True

    def elapsed_time(self, end_event: Any) -> float:  # noqa: ARG002 - torch's events are asked so
        """No time."""
        return 0.0


def idle() -> device_events.Device:
    """A device that does nothing."""
    stream = SimpleNamespace(device_index=0)
    return device_events.Device(lambda: True, lambda: stream, Idle, lambda: False, lambda _: nullcontext())


def marker() -> Marker:
    """One over a ring in plain memory."""
    made = make_marker(get_ident)
    made.attach(memoryview(bytearray(HEADER_BYTES + MARKS * MARK_BYTES)).cast("q"), MARKS)
    return made


def loop(device: device_events.Device | None, share: float) -> Callable[[], None]:
    """A block of steps; `device` None: without device times."""
    marks, sampling = marker(), Sampling("traceidratio", share)

    def takes(number: int) -> bool:
        return sampling.reason_for_step(number, trace_id_of("a-run-of-some-name", 0, "step", number)) is not None

    def nothing() -> None:
        """There are no device times."""

    ended = nothing
    if device is not None:
        ended = device_events.DeviceSteps(marks, device, takes, lambda *_, **__: None).step_ended

    def block() -> None:
        for _ in range(STEPS_OF_A_BLOCK):
            for phase in PHASES:
                marks.resume(marks.enter(phase))
            marks.step(marks.enter(Phase.OPTIMIZER))
            ended()

    return block


def measure(rounds: int) -> dict[str, dict[str, float]]:
    """Microseconds of CPU a step, by what it has more than one without device times."""
    plain = loop(None, 0)
    blocks = {"a step that is not timed": loop(idle(), 0), "a timed step, ten marks": loop(idle(), 1)}
    if torch.cuda.is_available():
        torch.cuda.init()
        real = device_events.cuda(torch.cuda.current_device, lambda: False)
        blocks |= {"the same with this GPU's events": loop(real, 1)}
    took: dict[str, list[float]] = {name: [] for name in blocks}
    for _ in range(rounds):
        base_us = cpu_us(plain)
        for name, block in blocks.items():
            took[name].append(cpu_us(block) - base_us)
    return {name: spread(values) for name, values in took.items()}


def cpu_us(block: Callable[[], None]) -> float:
    """CPU of a step of the block."""
    begun_ns = time.thread_time_ns()
    block()
    return (time.thread_time_ns() - begun_ns) / 1000 / STEPS_OF_A_BLOCK


def spread(values: list[float]) -> dict[str, float]:
    """Median and quartiles."""
    low, median, high = statistics.quantiles(values, n=4)
    return {"q1": round(low, 2), "median": round(median, 2), "q3": round(high, 2)}


def main() -> int:
    """Run the benchmark; prints a table, or JSON."""
    parser = argparse.ArgumentParser(prog="scripts/bench device_events", description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=300, help="rounds of a block of each kind (default: 300)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    if arguments.rounds < 2:
        parser.error(f"--rounds needs at least 2, not {arguments.rounds}")
    rows = measure(arguments.rounds)
    if arguments.json:
        print(json.dumps(rows, indent=2))
        return 0
    print(f"{'CPU a step, on the training thread':<40}{'median':>12}   quartiles")
    for name, row in rows.items():
        print(f"{name:<40}{row['median']:>9.2f} µs   {row['q1']:.2f} to {row['q3']:.2f}")
    if not torch.cuda.is_available():
        print("Not shown: what an event itself takes. There is no GPU on this machine.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
