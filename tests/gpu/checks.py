"""What must hold on a GPU, each as a row of a table: what was measured, against which bound.

`scripts/test-gpu` prints the table; `tests/gpu/test_gpu.py` asserts each row. What needs two GPUs or another maker's is
shown on recorded machines alone.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from tests.gpu.runs import Bench, Server, Trained
from trainspan.relay.probes.nvml import NvmlProbe
from trainspan.relay.probes.nvml_quantities import QUANTITIES, Asked, Quantity
from trainspan.relay.probes.probe import Reading, Rising

PHASES: Final = ("forward", "backward", "optimizer")
BLOCKS: Final = 10
SMALL: Final = ("--size", "small")
RELAY: Final[Mapping[str, str]] = {
    "opentelemetry.sdk": "opentelemetry-sdk",
    "opentelemetry.proto": "opentelemetry-exporter-otlp",
    "grpc": "grpcio",
}
DRIVER: Final[Mapping[str, str]] = {"pynvml": "nvidia-ml-py"}


class Row(NamedTuple):
    """One thing that was measured. `bound` None: it is only told; `holds` None: nothing is asked of it."""

    what: str
    measured: str
    bound: str | None = None
    holds: bool | None = None


class Check(NamedTuple):
    """One check. `shows`: what is not shown where it cannot run. `needs`: distributions by module, beside torch."""

    name: str
    shows: str
    rows: Callable[[Bench], Iterator[Row]]
    needs: Mapping[str, str]


def device_times(bench: Bench) -> Iterator[Row]:
    """Device time of each phase against what torch's profiler saw in the same steps."""
    yield from _against_profiler(bench.recorded("profile", str(bench.amounts.profiled_steps)), PHASES)


def _against_profiler(run: Trained, phases: Sequence[str]) -> Iterator[Row]:
    own_s, profiled = run.device_s(), run.answer["stretches"]
    for phase in phases:
        both = [
            (own_s[s["step"], phase], s["us"] / 1e6)
            for s in profiled
            if s["phase"] == phase and (s["step"], phase) in own_s
        ]
        found = f"{len(both)} of {run.answer['steps']}"
        yield Row(f"steps with a device time of {phase}", found, "9 of 10", len(both) >= 0.9 * run.answer["steps"])
        ours, theirs = sum(own for own, _ in both), sum(other for _, other in both)
        off = ours / theirs - 1 if theirs else float("nan")
        text = f"{ours * 1e3:.2f} ms against {theirs * 1e3:.2f} ms: {off:+.2%}"
        yield Row(f"device time of {phase}", text, "2 %", abs(off) <= 0.02)


def step_time(bench: Bench) -> Iterator[Row]:
    """Step time with and without trainspan, in turns on the same GPU."""
    ratios, plain_s = _pairs(bench, "real")
    low, middle, high = statistics.quantiles(ratios, n=4)
    text = f"{middle:+.3%} [{low:+.3%}, {high:+.3%}] of {plain_s * 1e3:.2f} ms"
    yield Row(f"step time with trainspan, {bench.amounts.rounds} pairs", text, "0.3 %", middle <= 0.003)


def host_bound(bench: Bench) -> Iterator[Row]:
    """The same of a step that the host cannot keep the device busy with: nothing hides what the hooks take."""
    ratios, plain_s = _pairs(bench, "small", *SMALL)
    low, middle, high = (ratio * plain_s * 1e6 for ratio in statistics.quantiles(ratios, n=4))
    text = f"{middle:+.1f} µs [{low:+.1f}, {high:+.1f}] of {plain_s * 1e6:.0f} µs"
    yield Row("a step of a tiny model with trainspan", text)


def _pairs(bench: Bench, name: str, *arguments: str) -> tuple[list[float], float]:
    """How much longer a round takes with trainspan, each time, as a ratio; and seconds of a plain step."""
    environ = {"TRAINSPAN_ENABLED": "1", "TRAINSPAN_DIR": str(bench.state / name)}
    steps = bench.amounts.steps_of_a_round
    servers: list[Server] = []
    try:
        servers += [bench.server({}, *arguments), bench.server(environ, *arguments)]
        for server in servers:
            server.seconds_of(steps)
        ratios, plain_s = [], []
        for number in range(bench.amounts.rounds):
            order = servers if number % 2 else servers[::-1]
            took = {server: server.seconds_of(steps) for server in order}
            ratios.append(took[servers[1]] / took[servers[0]] - 1)
            plain_s.append(took[servers[0]] / steps)
    finally:
        for server in servers:
            server.close()
    return ratios, statistics.median(plain_s)


def synchronizations(bench: Bench) -> Iterator[Row]:
    """How often the host waits for the device, with and without trainspan, every step timed and its loss logged."""
    steps = str(bench.amounts.profiled_steps)
    recorded, unrecorded = bench.recorded("syncs", steps).answer, bench.unrecorded("syncs", steps).answer
    ours, plain = recorded["waits"], unrecorded["waits"]
    # The profiler's run ends with a wait: one that saw none cannot count them.
    yield Row(f"waits for the device in 2 x {steps} steps", f"{ours} against {plain}", "the same", ours == plain != {})
    # Without one, nothing was shown of what is logged.
    copies = f"{recorded['copies']} against {unrecorded['copies']}"
    yield Row("copies of the loss in them", copies, "some", recorded["copies"] > unrecorded["copies"])


def energy(bench: Bench) -> Iterator[Row]:
    """The energy charged to a rank against the driver's own counter, read by the script itself."""
    environ = {"OTEL_METRIC_EXPORT_INTERVAL": "5000"}
    run = bench.recorded("seconds", str(bench.amounts.energy_s), environ=environ)
    charged_j, drawn_j = sum(run.numbers("training.energy").values()), run.answer["drawn_j"]
    off = charged_j / drawn_j - 1 if drawn_j else float("nan")
    text = f"{charged_j:.0f} J against {drawn_j:.0f} J: {off:+.2%}"
    yield Row(f"energy of {run.answer['seconds']:.0f} s of training", text, "2 %", abs(off) <= 0.02)
    named = {(span.attributes or {}).get("hw.id") for span in run.spans() if span.name == "training.process"}
    text = f"{', '.join(map(str, named))} against {run.answer['uuid']}"
    yield Row("hw.id of the rank's process", text, "the same", named == {run.answer["uuid"]})


def readings(bench: Bench) -> Iterator[Row]:
    """What is read of a GPU that trains: whether it is plausible shows whether the units are right."""
    with Load(bench) as load:
        first = load.read()
        load.train(bench.amounts.readings_s)
        time.sleep(load.begin() / 2)
        last = load.read()
        load.end()
    seconds = (last.at_ns - first.at_ns) / 1e9
    values = {(s.metric.name, *s.attributes.values()): s.value for s in last.samples}
    before = {(s.metric.name, *s.attributes.values()): s.value for s in first.samples}
    yield Row("not told by this GPU", ", ".join(load.probe.unsupported(last.gpu)) or "nothing")
    for key, (low, high) in PLAUSIBLE.items():
        value = values.get(key)
        text = "not told" if value is None else f"{value:g}"
        yield Row(
            f"{' '.join(key)} under load", text, f"{low:g} to {high:g}", value is not None and low <= value <= high
        )
    watts = (values.get(("hw.energy",), 0) - before.get(("hw.energy",), 0)) / seconds
    power = values.get(("hw.power",), float("nan"))
    text = f"{watts:.0f} W against {power:.0f} W"
    yield Row(f"energy of {seconds:.1f} s against power", text, "30 %", abs(watts / power - 1) <= 0.3)
    for key in sorted(key for key in values if key[0] == "hw.gpu.io"):
        rate = (values[key] - before.get(key, 0)) / seconds
        yield Row(f"{' '.join(key)}, bytes a second", f"{rate:.3g}")
    throttled = [key[1] for key, value in values.items() if key[0] == "hw.gpu.throttled" and value]
    yield Row("slowed by", ", ".join(throttled) or "nothing")


PLAUSIBLE: Final = {
    ("hw.gpu.utilization", "general"): (0.5, 1.0),
    ("hw.gpu.memory.utilization",): (0.001, 1.0),
    ("hw.gpu.memory.limit",): (4e9, 1e12),
    ("hw.power",): (30, 2000),
    ("hw.temperature", "gpu"): (15, 95),
    ("hw.gpu.speed", "sm"): (0.3e9, 5e9),
    ("hw.status", "ok"): (1, 1),
}


def nvml_calls(bench: Bench) -> Iterator[Row]:
    """What each call of the driver takes while the GPU trains, and all of them together."""
    with Load(bench) as load:
        for name, took_us in _call_times(bench, load).items():
            ordered = sorted(took_us)
            p50, p99 = ordered[len(ordered) // 2], ordered[int(len(ordered) * 0.99)]
            yield Row(f"NVML under load: {name}", f"p50 {p50:.0f} µs, p99 {p99:.0f} µs")


class Load:
    """A GPU that trains on command, and the probe that reads it."""

    def __init__(self, bench: Bench):
        self.probe: NvmlProbe = bench.probe()
        self._steps = bench.amounts.steps_of_a_round
        self._server = bench.server({})

    def __enter__(self) -> "Load":
        self._server.seconds_of(self._steps)
        return self

    def __exit__(self, *_: object) -> None:
        self.probe.close()
        self._server.close()

    def train(self, seconds: float) -> None:
        """For that long at least: a driver renews its counters about every 100 ms."""
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            self._server.seconds_of(self._steps)

    def begin(self) -> float:
        """Train on; about how many seconds it will."""
        took_s = self._server.seconds_of(self._steps)
        self._server.begin(self._steps)
        return took_s

    def end(self) -> None:
        """Until it does not."""
        self._server.end()

    def read(self) -> Reading:
        """What the first GPU says."""
        now_ns = time.monotonic_ns()
        gpus = self.probe.gpus(now_ns)
        reading = self.probe.read(gpus[0], now_ns) if gpus else None
        assert reading is not None, f"no GPU can be read: {self.probe.why_none()}"
        return reading


def _call_times(bench: Bench, load: Load) -> dict[str, list[float]]:
    """Microseconds of each call of the first GPU, spread over blocks of steps that are under way."""
    reading = load.read()
    device = load.probe._devices[reading.gpu.id]
    asked = Asked(load.probe._nvml, device.handle, Rising(), device.gpu.id)
    actions: dict[str, Callable[[], Any]] = {
        quantity.name: partial(_read_one, quantity, asked) for quantity in device.quantities
    }
    actions["all of them, as the relay asks"] = load.read
    took: dict[str, list[float]] = {name: [] for name in actions}
    per_block = max(bench.amounts.calls // BLOCKS, 1)
    for _ in range(BLOCKS):
        seconds = load.begin()
        for _ in range(per_block):
            for name, action in actions.items():
                begun_ns = time.perf_counter_ns()
                action()
                took[name].append((time.perf_counter_ns() - begun_ns) / 1000)
            time.sleep(0.8 * seconds / per_block)
        load.end()
    assert {quantity.name for quantity in device.quantities} <= {quantity.name for quantity in QUANTITIES}
    return took


def _read_one(quantity: Quantity, asked: Asked) -> None:
    list(quantity.read(asked))


def cuda_graph(bench: Bench) -> Iterator[Row]:
    """A step that is captured and replayed: each replay is a step, with a phase of its own."""
    count = bench.amounts.graph_steps
    run = bench.recorded("steps", str(count), "--how", "graph")
    steps = sum(run.numbers("training.steps").values())
    # Three to warm up, and the captured one.
    yield Row(f"steps of a CUDA graph replayed {count} times", f"{steps:.0f}", str(count + 4), steps == count + 4)
    found = run.steps_with("graph_replay")
    yield Row("of them with the phase graph_replay", f"{found}", str(count), found == count)
    profiled = bench.recorded("profile", str(bench.amounts.profiled_steps), "--how", "graph")
    yield from _against_profiler(profiled, ("graph_replay",))


def compiled(bench: Bench) -> Iterator[Row]:
    """A compiled model: as many graphs as without trainspan, and every step seen."""
    yield from _compiled(bench, "compiled")


def reduce_overhead(bench: Bench) -> Iterator[Row]:
    """The same where torch.compile replays CUDA graphs of its own: in forward and backward, not as steps."""
    yield from _compiled(bench, "overhead")


def _compiled(bench: Bench, how: str) -> Iterator[Row]:
    arguments = ("steps", str(bench.amounts.compiled_steps), "--how", how, *SMALL)
    run, plain = bench.recorded(*arguments), bench.unrecorded(*arguments)
    text = f"{run.answer['graphs']} against {plain.answer['graphs']}"
    same = run.answer["graphs"] == plain.answer["graphs"] > 0
    yield Row(f"graphs of a model, {how}", text, "the same", same)
    steps, count = sum(run.numbers("training.steps").values()), bench.amounts.compiled_steps
    yield Row(f"steps of a model, {how}", f"{steps:.0f}", str(count), steps == count)
    device_s = run.device_s()
    for phase in ("forward", "backward"):
        timed = len({step for step, of in device_s if of == phase})
        # Not the first: a device is known at its end. Not those in which a graph is captured.
        yield Row(f"of them with a device time of {phase}", f"{timed}", f"{count - 5} at least", timed >= count - 5)


CHECKS: Final = (
    Check(
        "device_times",
        "device phase times within 2 % of torch.profiler, on a real model in bf16",
        device_times,
        RELAY,
    ),
    Check("synchronizations", "that trainspan adds no synchronization", synchronizations, RELAY),
    Check("step_time", "that a step takes at most 0.3 % longer with trainspan", step_time, RELAY),
    Check("host_bound", "what trainspan takes of a step that the host is busy with", host_bound, RELAY),
    Check(
        "energy",
        "the energy of a minute within 2 % of the driver's counter, and the right GPU",
        energy,
        {**RELAY, **DRIVER},
    ),
    Check("readings", "that what the driver says of a GPU under load is plausible", readings, DRIVER),
    Check("nvml_calls", "what each call of the driver takes under load, p50 and p99", nvml_calls, DRIVER),
    Check("cuda_graph", "a step captured into a CUDA graph", cuda_graph, RELAY),
    Check("compiled", "a step through torch.compile on a GPU", compiled, RELAY),
    Check("reduce_overhead", "the same where torch.compile replays CUDA graphs", reduce_overhead, RELAY),
)
"""What is to be shown on a GPU, the most important first."""

NOT_HERE: Final = (
    "several GPUs: which rank uses which, with CUDA_VISIBLE_DEVICES reordered (recorded machines: tests/unit)",
    "MIG instances and a GPU that falls off the bus (recorded machines: tests/unit)",
    "GPUs of AMD (recorded machine: tests/unit)",
)
"""What no run of this on one GPU shows, and where it is tried instead."""
