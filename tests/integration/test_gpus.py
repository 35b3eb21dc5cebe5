"""The GPUs of a node in a real relay: the right ones, once, with the energy of the work."""

import json
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from threading import Event
from typing import Any, NamedTuple

import pytest

from tests.integration.machines import RECORDED, recorded_gpus
from tests.integration.relayed import (
    Ended,
    SpanSeen,
    command_line,
    latest_numbers,
    run_folder,
    spans_of,
    train,
    wait_for_relay,
)
from trainspan.recording import layout
from trainspan.recording.reader import Refusal, open_recording
from trainspan.recording.writer import RecordingWriter
from trainspan.relay.gpus import NodeGpus
from trainspan.relay.pipeline import Pipeline
from trainspan.relay.probes.nvml import NvmlProbe
from trainspan.relay.probes.ownership import Ownership
from trainspan.relay.tail import Sighting
from trainspan.testing.builders import identity_of, marks_of
from trainspan.testing.fake_nvml import FakeNvml
from trainspan.testing.otlp_sink import OtlpSink, attributes_of

SECONDS = 6
ELSEWHERE = "GPU-55c4c5fd-deba-e3ab-208e-3f4ea921bff5"
WATTS = (652, 648, 655, 641, 650, 639, 658, 645)


class Seen(NamedTuple):
    """What came of a run: two ranks, which CUDA shows the GPUs 5 and 2 of eight."""

    ended: Ended
    sink: OtlpSink
    folder: Path
    ids: list[str]

    def spans(self, name: str) -> list[SpanSeen]:
        """Those of one name."""
        return [span for span in spans_of(self.sink) if span.name == name]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """Two ranks under torchrun, on a machine of eight recorded GPUs."""
    state = tmp_path_factory.mktemp("gpus")
    gpus = recorded_gpus(state / "modules", "h100x8")
    ids = [device["uuid"] for device in json.loads(Path(gpus["RECORDED_MACHINE"]).read_text())["devices"]]
    environ = {
        **gpus,
        "CUDA_VISIBLE_DEVICES": "5,2",
        "TRAINSPAN_DEVICE_SHARE": "0",
        "TRAINSPAN_CARBON_G_PER_KWH": "400",
        "OTEL_METRIC_EXPORT_INTERVAL": "500",
    }
    with OtlpSink() as sink:
        ended = train(
            *("pretended_gpu.py", str(SECONDS), "0.02"), state=state, environ={**sink.environ, **environ}, ranks=2
        )
        folder = wait_for_relay(state)
    assert ended.exit_code == 0, ended.stderr
    return Seen(ended, sink, folder, ids)


def test_every_gpu_of_the_node_is_there_once(seen: Seen) -> None:
    """Two ranks and eight GPUs are eight series; and they belong to the node, not to a rank."""
    resources = [item.resource for item in seen.sink.metrics() if item.item.name == "hw.power"]

    watts = {attributes["hw.id"]: value for attributes, value in _latest(seen, "hw.power")}

    assert watts == dict(zip(seen.ids, WATTS, strict=True))
    assert all("training.rank" not in resource and "training.node_rank" in resource for resource in resources)


def test_readings_are_a_second_apart(seen: Seen) -> None:
    """The driver's lock is the launches' lock: an export twice a second must not ask twice a second."""
    energies = [
        point.as_double
        for item in seen.sink.metrics()
        if item.item.name == "hw.energy"
        for point in item.item.sum.data_points
        if attributes_of(point.attributes)["hw.id"] == seen.ids[0]
    ]

    risen = [later - earlier for earlier, later in pairwise(energies) if later > earlier]

    assert len(energies) > len(risen) + 1
    # The recorded counter is refreshed ten times a second.
    assert all(joules >= 0.9 * WATTS[0] for joules in risen)


def test_a_ranks_spans_name_its_gpu(seen: Seen) -> None:
    """From a slow step to the temperature of the GPU it ran on is one click, or an evening."""
    of_ranks = {(span.attributes["training.rank"], span.attributes.get("hw.id")) for span in _late_steps(seen)}
    of_processes = {
        (span.attributes["training.rank"], span.attributes["hw.id"]) for span in seen.spans("training.process")
    }

    assert of_processes == {(0, seen.ids[5]), (1, seen.ids[2])}
    assert of_ranks == of_processes


def _late_steps(seen: Seen) -> list[SpanSeen]:
    """Those after the first, at whose end a rank tells what it uses."""
    return [span for span in seen.spans("training.rank_step") if span.attributes["training.step"] > 0]


def test_the_energy_of_each_gpu_is_charged_to_its_rank(seen: Seen) -> None:
    """Watts times the time it trained, by phase; not what was drawn before, and not that of the six idle GPUs."""
    energy = latest_numbers(seen.sink, "training.energy")
    carbon = latest_numbers(seen.sink, "training.carbon")
    trained_s = {line["rank"]: line["trained_s"] for line in seen.ended.lines}

    for rank, watts in ((0, 639), (1, 655)):
        joules = sum(value for (of, _), value in energy.items() if of == rank)
        assert 0.5 * watts * trained_s[rank] < joules <= 1.02 * watts * trained_s[rank]
        # It sleeps in `other`, between forward and backward.
        assert energy[(rank, "other")] > 0.5 * joules
        assert energy[(rank, "backward")] > 0
        assert carbon[(rank,)] == pytest.approx(joules / 3.6e6 * 400)


def test_the_run_folder_knows_the_energy(seen: Seen) -> None:
    """The report is made from it, without a backend."""
    energy = latest_numbers(seen.sink, "training.energy")

    summary = json.loads((seen.folder / "summary.json").read_text())

    joules = [sum(value for (of, _), value in energy.items() if of == rank) for rank in (0, 1)]
    assert [rank["energy_j"] for rank in summary["ranks"]] == pytest.approx(joules)


def test_no_step_is_timed_on_the_device_where_the_share_is_0(seen: Seen) -> None:
    """Who wants no event on the device gets none."""
    assert _clocks(seen.sink) == {"host"}
    assert [span for span in spans_of(seen.sink) if "training.device.duration" in span.attributes] == []


def test_device_times_reach_the_metrics_and_the_spans(tmp_path: Path) -> None:
    """The device's answer comes steps later, and from the last steps only at the very end."""
    with OtlpSink() as sink:
        environ = {**sink.environ, "TRAINSPAN_DEVICE_SHARE": "1", "OTEL_TRACES_SAMPLER": "always_on"}
        ended = train("pretended_gpu.py", "2", "0.02", state=tmp_path, environ=environ)
        wait_for_relay(tmp_path)

    # The time of that GPU is the host's.
    steps = {
        span.attributes["training.step"]: span.attributes.get("training.device.duration")
        for span in spans_of(sink)
        if span.name == "training.rank_step"
    }
    phases_s: defaultdict[int, float] = defaultdict(float)
    for span in spans_of(sink):
        if span.name in {"training.forward", "training.backward", "training.optimizer"}:
            phases_s[span.attributes["training.step"]] += span.attributes.get("training.device.duration", 0.0)
    assert ended.exit_code == 0, ended.stderr
    assert len(steps) > 20
    # The first, at whose end it begins.
    assert [number for number, device_s in steps.items() if device_s is None] == [0]
    assert all(0 < phases_s[number] <= device_s + 1e-6 for number, device_s in steps.items() if device_s is not None)
    # It sleeps between forward and backward.
    assert all(device_s >= 0.02 for device_s in steps.values() if device_s is not None)
    assert _clocks(sink) == {"host", "device"}


def _clocks(sink: OtlpSink) -> set[str]:
    """The clocks of the phases' durations."""
    return {
        attributes_of(point.attributes)["training.clock"]
        for item in sink.metrics()
        if item.item.name == "training.phase.duration"
        for point in (item.item.histogram.data_points or item.item.exponential_histogram.data_points)
    }


def _latest(seen: Seen, metric: str) -> list[tuple[dict[str, Any], float]]:
    """(attributes, value) of every point of the last export of a gauge."""
    last = [item.item for item in seen.sink.metrics() if item.item.name == metric][-1]
    return [(attributes_of(point.attributes), point.as_double or point.as_int) for point in last.gauge.data_points]


def test_replay_reads_no_gpu(tmp_path: Path) -> None:
    """A login node's GPUs, days later, are not those the run was on; what the rank itself said of its GPU is."""
    gpus = recorded_gpus(tmp_path / "modules", "h100x8")
    environ = {**gpus, "TRAINSPAN_DEVICE_SHARE": "0", "CUDA_VISIBLE_DEVICES": ELSEWHERE}
    ended = train("pretended_gpu.py", "0.5", "0.02", state=tmp_path, environ={**environ, "TRAINSPAN_RELAY": "off"})
    with OtlpSink() as sink:
        code = command_line("replay", str(run_folder(tmp_path)), environ={**environ, **sink.environ})

    assert (ended.exit_code, code) == (0, 0)
    told = {item.item.name for item in sink.metrics()}
    assert "training.steps" in told
    assert [name for name in told if name.startswith("hw.") or name == "training.energy"] == []
    assert {span.attributes.get("hw.id") for span in spans_of(sink) if span.name == "training.process"} == {ELSEWHERE}


def test_two_jobs_on_a_node_send_each_gpu_once_and_their_own(tmp_path: Path) -> None:
    """The second job's GPUs must not go on under the name of the first, nor its energy be charged to both."""
    gpus = recorded_gpus(tmp_path / "modules", "h100x8")
    sinks: dict[str, OtlpSink] = {}

    def job(number: str) -> Ended:
        with OtlpSink() as sink:
            sinks[number] = sink
            environ = {
                **gpus,
                **sink.environ,
                "CUDA_VISIBLE_DEVICES": number,
                "TRAINSPAN_RUN_ID": f"job-{number}",
                "TRAINSPAN_DEVICE_SHARE": "0",
                "OTEL_METRIC_EXPORT_INTERVAL": "500",
            }
            state = tmp_path / f"state-{number}"
            ended = train("pretended_gpu.py", "12", "0.02", state=state, environ=environ)
            wait_for_relay(state)
        return ended

    with ThreadPoolExecutor() as beside:
        ended = list(beside.map(job, ("3", "6")))

    assert [one.exit_code for one in ended] == [0, 0]
    points = {number: _seen_at(sink) for number, sink in sinks.items()}
    # While both train, and have told what they use.
    begin = max(min(at for _, at in of_job) for of_job in points.values()) + 3_000_000_000
    end = min(max(at for _, at in of_job) for of_job in points.values()) - 1_000_000_000
    ids = [device["uuid"] for device in json.loads(Path(gpus["RECORDED_MACHINE"]).read_text())["devices"]]
    named = {n: {ids.index(gpu) for gpu, at in of_job if begin < at < end} for n, of_job in points.items()}
    assert begin < end
    assert named["3"] | named["6"] == set(range(8))
    assert named["3"] & named["6"] == set()
    assert (3 in named["3"], 6 in named["6"]) == (True, True)
    assert all(latest_numbers(sink, "training.energy") for sink in sinks.values())


def _seen_at(sink: OtlpSink) -> list[tuple[str, int]]:
    """(GPU, Unix ns) of every point of its power."""
    return [
        (attributes_of(point.attributes)["hw.id"], point.time_unix_nano)
        for item in sink.metrics()
        if item.item.name == "hw.power"
        for point in item.item.gauge.data_points
    ]


@pytest.mark.parametrize(("ended", "span"), [(None, "training.rank_step"), ("closed", "training.process")])
def test_what_there_is_to_tell_is_delivered_while_a_gpu_hangs(tmp_path: Path, ended: str | None, span: str) -> None:
    """A call on it takes 45 s, and what its rank did last is what somebody looks for then."""
    hangs = Event()
    delivered: list[bool] = []
    writer = RecordingWriter.create(tmp_path, identity_of(world_size=1), layout.CAPACITY_MIN, time.monotonic_ns())
    reader = open_recording(writer.path)
    assert not isinstance(reader, Refusal)
    # Nothing is taken before the call has begun.
    with OtlpSink(faulty=lambda _: not hangs.wait(20)) as sink:

        def hang(_: float) -> None:
            hangs.set()
            delivered.append(sink.wait_for(lambda sink: span in {one.name for one in spans_of(sink)}, 20))

        nvml = FakeNvml.from_file(RECORDED / "h100x8.json", sleep=hang)
        nvml.driver.devices[3].recorded["whole"] = {"error": "TIMEOUT", "after_s": 45}
        probe = NvmlProbe(lambda *_: None, lambda: nvml)
        gpus = NodeGpus([probe], Ownership(None, lambda *_: None), lambda *_: None)
        environ = {**sink.environ, "TRAINSPAN_DIR": str(tmp_path), "OTEL_METRIC_EXPORT_INTERVAL": "1"}
        pipeline = Pipeline(tmp_path, environ, lambda _: None, gpus)
        pipeline.take(Sighting(reader, marks_of(3), 0, [], ended), time.monotonic_ns())

        for _ in range(2):
            pipeline.turn(time.monotonic_ns() + 10_000_000)

        pipeline.close(time.monotonic_ns() + 20_000_000, 5.0)
    writer.close(time.monotonic_ns())
    assert delivered == [True]
