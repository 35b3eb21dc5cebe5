"""What one collection of a node's GPUs costs: our own code on a recorded machine, and the driver where there is one."""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from trainspan.relay.probes.nvml import NvmlProbe
from trainspan.relay.probes.probe import Reading
from trainspan.relay.signals.devices import device_metrics
from trainspan.testing.fake_nvml import FakeNvml

RECORDED = Path(__file__).resolve().parent.parent / "tests" / "data" / "nvml"


class Remembered:
    """A module that answers what it has answered before: what it takes itself is a look into a dict."""

    def __init__(self, module: Any):
        self._module = module
        self._answers: dict[tuple[Any, ...], Any] = {}

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._module, name)
        if not callable(found) or not name.startswith("nvmlDeviceGet"):
            self.__dict__[name] = found
            return found

        def answer(*arguments: Any) -> Any:
            key = (name, *(a if isinstance(a, int) else id(a) for a in arguments[:3] if not isinstance(a, list)))
            if key not in self._answers:
                self._answers[key] = found(*arguments)
            return self._answers[key]

        self.__dict__[name] = answer
        return answer


def collect(probe: NvmlProbe, now_ns: int) -> list[Reading]:
    """One collection of every GPU."""
    return [reading for gpu in probe.gpus(now_ns) if (reading := probe.read(gpu, now_ns)) is not None]


def microseconds(action: Callable[[], object], times: int, clock: Callable[[], int]) -> dict[str, float]:
    """Median and 99th percentile of what `action` takes by `clock`, in ns."""
    for _ in range(min(times, 20)):
        action()
    took = []
    for _ in range(times):
        begun_ns = clock()
        action()
        took.append((clock() - begun_ns) / 1000)
    return {"p50_us": round(statistics.median(took), 1), "p99_us": round(quantile(took, 0.99), 1)}


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which that share of `values` lies."""
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def measure(times: int) -> dict[str, dict[str, float]]:
    """By what was measured."""
    rows: dict[str, dict[str, float]] = {}
    recorded = Remembered(FakeNvml.from_file(RECORDED / "h100x8.json"))
    probe = NvmlProbe(load=lambda: recorded)
    readings = collect(probe, 0)
    # Of the processor: nothing of it waits.
    own = time.thread_time_ns
    rows[f"recorded, {len(readings)} GPUs: our own code"] = microseconds(lambda: collect(probe, 0), times, own)
    rows["the same, as metrics"] = microseconds(lambda: device_metrics(readings, (0, 1)), times, own)
    real = NvmlProbe()
    gpus = len(collect(real, time.monotonic_ns()))
    if gpus:
        rows[f"this machine, {gpus} GPUs: all of it"] = microseconds(
            lambda: collect(real, time.monotonic_ns()), times, time.perf_counter_ns
        )
    real.close()
    return rows


def main() -> int:
    """Run the benchmark; prints a table, or JSON."""
    parser = argparse.ArgumentParser(prog="scripts/bench gpu_probe", description=__doc__)
    parser.add_argument("--times", type=int, default=1000, help="collections of each kind (default: 1000)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    if arguments.times < 1:
        parser.error(f"--times needs at least 1, not {arguments.times}")
    rows = measure(arguments.times)
    if arguments.json:
        print(json.dumps(rows, indent=2))
        return 0
    print(f"{'one collection':<44}{'p50':>10}{'p99':>10}")
    for name, row in rows.items():
        print(f"{name:<44}{row['p50_us']:>7.0f} µs{row['p99_us']:>7.0f} µs")
    if not any(name.startswith("this machine") for name in rows):
        print("Not shown: what the driver itself takes. There is no NVIDIA driver on this machine.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
