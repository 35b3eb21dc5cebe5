"""The recorded machines, and a clock to move through their recordings."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from trainspan.relay.probes.nvml import NvmlProbe
from trainspan.relay.probes.probe import Gpu, Reading
from trainspan.testing.fake_nvml import FakeNvml

RECORDED = Path(__file__).resolve().parents[1] / "data" / "nvml"
S = 1_000_000_000


class Host:
    """A host with the GPUs of a recorded machine.

    Attributes:
        seconds: since the recording began; move it.
        slept_s: how long calls of the driver have taken, all together.
        nvml: what the probe asks.
        probe: of this host.
        said: (cause, message) of every complaint.
    """

    def __init__(self, machine: str, fails: Callable[[str], int | None] = lambda _: None):
        self.seconds = self.slept_s = 0.0
        self.nvml = FakeNvml.from_file(
            RECORDED / f"{machine}.json", seconds=lambda: self.seconds, fails=fails, sleep=self.sleep
        )
        self.said: list[tuple[str, str]] = []
        self.probe = NvmlProbe(
            lambda cause, message: self.said.append((cause, message)), lambda: self.nvml, lambda: self.now_ns
        )

    @property
    def now_ns(self) -> int:
        """Monotonic."""
        return round(self.seconds * S)

    def hang(self, gpu: int, since_s: float, until_s: float | None = None, answer: str = "TIMEOUT") -> None:
        """Let each call on that GPU take 45 s and end in an error, as where its firmware does not answer (XID 119)."""
        series: list[list[Any]] = [[since_s, {"error": answer, "after_s": 45}]]
        if until_s is not None:
            series.append([until_s, None])
        self.nvml.driver.devices[gpu].recorded["whole"] = series

    def sleep(self, seconds: float) -> None:
        """Let time pass, in a call of the driver."""
        self.seconds += seconds
        self.slept_s += seconds

    def look(self, seconds: float | None = None) -> dict[Gpu, Reading]:
        """What a collection gives, at `seconds` or now."""
        self.seconds = self.seconds if seconds is None else seconds
        readings = {gpu: self.probe.read(gpu, self.now_ns) for gpu in self.probe.gpus(self.now_ns)}
        return {gpu: reading for gpu, reading in readings.items() if reading is not None}


def value_of(reading: Reading, metric: str, *attributes: str) -> float | None:
    """The value of one sample, by the values of its attributes; None: there is none."""
    found = [s.value for s in reading.samples if s.metric.name == metric and tuple(s.attributes.values()) == attributes]
    return found[0] if found else None
