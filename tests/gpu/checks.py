"""What must hold on a GPU, each as a row of a table: what was measured, against which bound.

`scripts/test-gpu` prints the table; `tests/gpu/test_gpu.py` asserts each row. What needs two GPUs or another maker's is
shown on recorded machines alone.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from tests.gpu.runs import Server, Trained, recorded, unrecorded
from trainspan.relay.probes.nvml import NvmlProbe
from trainspan.relay.probes.nvml_quantities import QUANTITIES, Asked
from trainspan.relay.probes.probe import Rising

PHASES: Final = ("forward", "backward", "optimizer")
PROFILED_STEPS: Final = 20
ROUNDS, STEPS_OF_A_ROUND = 60, 20
ENERGY_S: Final = 60
CALLS: Final = 500


class Row(NamedTuple):
    """One thing that was measured. `bound` None: it is only told; `holds` None: nothing is asked of it."""

    what: str
    measured: str
    bound: str | None = None
    holds: bool | None = None


class Check(NamedTuple):
    """One check. `shows`: what is not shown where it cannot run."""

    name: str
    shows: str
    rows: Callable[[Path], Iterator[Row]]


def device_times(state: Path) -> Iterator[Row]:
    """Device time of each phase against what torch's profiler saw in the same steps."""
    run = recorded(state, "profile", str(PROFILED_STEPS))
    ours = run.device_s()
    steps = range(run.answer["first"], run.answer["first"] + run.answer["steps"])
    for phase in PHASES:
        profiled_s = sum(s["us"] for s in run.answer["stretches"] if s["phase"] == phase) / 1e6
        own_s = sum(ours.get((step, phase), 0.0) for step in steps)
        off = own_s / profiled_s - 1 if profiled_s else float("nan")
        text = f"{own_s * 1e3:.2f} ms against {profiled_s * 1e3:.2f} ms: {off:+.2%}"
        yield Row(f"device time of {phase}, {PROFILED_STEPS} steps", text, "2 %", abs(off) <= 0.02)


def step_time(state: Path) -> Iterator[Row]:
    """Step time with and without trainspan, in turns on the same GPU."""
    servers = (Server({}), Server({"TRAINSPAN_ENABLED": "1", "TRAINSPAN_DIR": str(state)}))
    try:
        for server in servers:
            server.seconds_of(STEPS_OF_A_ROUND)
        ratios, plain_s = [], []
        for number in range(ROUNDS):
            order = servers if number % 2 else servers[::-1]
            took = {server: server.seconds_of(STEPS_OF_A_ROUND) for server in order}
            ratios.append(took[servers[1]] / took[servers[0]] - 1)
            plain_s.append(took[servers[0]] / STEPS_OF_A_ROUND)
    finally:
        for server in servers:
            server.close()
    low, middle, high = statistics.quantiles(ratios, n=4)
    text = f"{middle:+.3%} [{low:+.3%}, {high:+.3%}] of {statistics.median(plain_s) * 1e3:.2f} ms"
    yield Row(f"step time with trainspan, {ROUNDS} pairs", text, "0.3 %", middle <= 0.003)


def synchronizations(state: Path) -> Iterator[Row]:
    """How often the host waits for the device, with and without trainspan, every step timed."""
    ours = recorded(state, "syncs", str(PROFILED_STEPS)).answer["waits"]
    plain = unrecorded("syncs", str(PROFILED_STEPS)).answer["waits"]
    yield Row(f"waits for the device in {PROFILED_STEPS} steps", f"{ours} against {plain}", "the same", ours == plain)


def energy(state: Path) -> Iterator[Row]:
    """The energy charged to a rank against the driver's own counter, read by the script itself."""
    environ = {"OTEL_METRIC_EXPORT_INTERVAL": "5000"}
    run = recorded(state, "seconds", str(ENERGY_S), environ=environ)
    charged_j, drawn_j = sum(run.numbers("training.energy").values()), run.answer["drawn_j"]
    off = charged_j / drawn_j - 1 if drawn_j else float("nan")
    text = f"{charged_j:.0f} J against {drawn_j:.0f} J: {off:+.2%}"
    yield Row(f"energy of {run.answer['seconds']:.0f} s of training", text, "2 %", abs(off) <= 0.02)
    named = {(span.attributes or {}).get("hw.id") for span in run.spans() if span.name == "training.process"}
    yield Row(
        "hw.id of the rank's process",
        f"{named} against {run.answer['uuid']}",
        "the same",
        named == {run.answer["uuid"]},
    )


def nvml_calls(state: Path) -> Iterator[Row]:
    """What each call of the driver takes while the GPU trains."""
    server = Server({"TRAINSPAN_DIR": str(state)})
    probe = NvmlProbe()
    try:
        server.seconds_of(STEPS_OF_A_ROUND)
        for name, took_us in _call_times(server, probe).items():
            ordered = sorted(took_us)
            p50, p99 = ordered[len(ordered) // 2], ordered[int(len(ordered) * 0.99)]
            yield Row(f"NVML under load: {name}", f"p50 {p50:.0f} µs, p99 {p99:.0f} µs")
    finally:
        probe.close()
        server.close()


def _call_times(server: Server, probe: NvmlProbe) -> dict[str, list[float]]:
    """Microseconds of each call of the first GPU, taken between blocks of steps that are under way."""
    gpu = probe.gpus(time.monotonic_ns())[0]
    probe.read(gpu, time.monotonic_ns())
    device = probe._devices[gpu.id]
    asked = Asked(probe._nvml, device.handle, Rising(), gpu.id)
    took: dict[str, list[float]] = {quantity.name: [] for quantity in device.quantities}
    for _ in range(10):
        server.begin(STEPS_OF_A_ROUND * 10)
        for _ in range(CALLS // 10):
            for quantity in device.quantities:
                begun_ns = time.perf_counter_ns()
                list(quantity.read(asked))
                took[quantity.name].append((time.perf_counter_ns() - begun_ns) / 1000)
        server.end()
    assert set(took) <= {quantity.name for quantity in QUANTITIES}
    return took


def cuda_graph(state: Path) -> Iterator[Row]:
    """A step that is captured and replayed: each replay is a step, with a phase of its own."""
    run = recorded(state, "steps", "50", "--how", "graph")
    replays = run.answer["steps"]
    steps = sum(run.numbers("training.steps").values())
    # Three to warm up, and the captured one.
    yield Row("steps of a CUDA graph replayed 50 times", f"{steps:.0f}", "53 or 54", steps - replays in {3, 4})
    found = _steps_with(run, "graph_replay")
    yield Row("of them with the phase graph_replay", f"{found}", str(replays), found == replays)


def compiled(state: Path) -> Iterator[Row]:
    """A compiled model: as many graphs as without trainspan, and every step seen."""
    run = recorded(state, "steps", "20", "--how", "compiled")
    plain = unrecorded("steps", "20", "--how", "compiled")
    text = f"{run.answer['graphs']} against {plain.answer['graphs']}"
    yield Row("graphs of a compiled model", text, "the same", run.answer["graphs"] == plain.answer["graphs"])
    steps = sum(run.numbers("training.steps").values())
    yield Row("steps of a compiled model", f"{steps:.0f}", "20", steps == 20)
    timed = len({step for step, phase in run.device_s() if phase == "forward"})
    yield Row("of them with a device time of forward", f"{timed}", "19 or 20", timed >= 19)


def _steps_with(run: Trained, phase: str) -> int:
    spans = (span.attributes or {} for span in run.spans())
    return len({attributes["training.step"] for attributes in spans if attributes.get("training.phase") == phase})


CHECKS: Final = (
    Check("device times", "device phase times within 2 % of torch.profiler, on a real model in bf16", device_times),
    Check("step time", "that a step takes at most 0.3 % longer with trainspan", step_time),
    Check("synchronizations", "that trainspan adds no synchronization", synchronizations),
    Check("energy", "the energy of a minute within 2 % of the driver's counter, and the right GPU", energy),
    Check("NVML calls", "what each call of the driver takes under load, p50 and p99", nvml_calls),
    Check("CUDA graph", "a step captured into a CUDA graph", cuda_graph),
    Check("compiled", "a step through torch.compile on a GPU", compiled),
)
"""What the issue of GPUs asks to be shown on one."""

NOT_HERE: Final = (
    "several GPUs: which rank uses which, with CUDA_VISIBLE_DEVICES reordered (recorded machines: tests/unit)",
    "MIG instances and a GPU that falls off the bus (recorded machines: tests/unit)",
    "GPUs of AMD (recorded machine: tests/unit)",
)
"""What no run of this on one GPU shows, and where it is tried instead."""
