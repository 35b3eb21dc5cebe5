"""NVIDIA's driver is asked for what it has, once a reading, and whatever it answers nothing breaks."""

from collections import Counter

import pynvml
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.gpu_machines import Host, S, value_of
from trainspan import names
from trainspan.relay.probes.nvml import NvmlProbe
from trainspan.relay.probes.nvml_quantities import FIELDS
from trainspan.relay.probes.probe import Reading
from trainspan.testing.fake_nvml import error_code, errors


def test_fields_are_asked_for_by_the_numbers_of_the_module() -> None:
    """A cluster pins nvidia-ml-py 12.535, which has no names for four of these seven."""
    assert {name: getattr(pynvml, name) for name in FIELDS} == FIELDS


def test_eight_gpus_are_read() -> None:
    """Every quantity of the issue, in the unit of the semantic conventions."""
    host = Host("h100x8")

    first, second = host.look(0), host.look(10)

    gpu, *others = second
    assert len(others) == 7
    assert gpu.attributes() == {
        "hw.id": "GPU-55c4c5fd-deba-e3ab-208e-3f4ea921bff5",
        "hw.type": "gpu",
        "hw.name": "GPU 0",
        "hw.model": "NVIDIA H100 80GB HBM3",
        "hw.vendor": "NVIDIA",
        "hw.driver_version": "550.90.07",
    }
    assert gpu.pci == "0000:18:00.0"
    assert first[gpu].energy_j == 0
    reading = second[gpu]
    assert (reading.energy_j, reading.power_w) == (6520, 652)
    expected: dict[tuple[str, ...], float] = {
        ("hw.gpu.utilization", "general"): 0.98,
        ("hw.gpu.utilization", "memory_controller"): 0.39,
        ("hw.gpu.utilization", "encoder"): 0,
        ("hw.gpu.utilization", "decoder"): 0,
        ("hw.gpu.memory.usage",): 70211 << 20,
        ("hw.gpu.memory.limit",): 81559 << 20,
        ("hw.gpu.memory.utilization",): 70211 / 81559,
        ("hw.power",): 652,
        ("hw.energy",): 6520,
        ("hw.temperature", "gpu"): 58,
        ("hw.temperature", "memory"): 67,
        ("hw.gpu.speed", "sm"): 1.755e9,
        ("hw.gpu.speed", "memory"): 2.619e9,
        **{("hw.gpu.throttled", reason): 0 for reason in ("sw_thermal", "hw_slowdown", "hw_thermal")},
        **{("hw.gpu.throttled", reason): 0 for reason in ("hw_power_brake", "sync_boost")},
        ("hw.gpu.throttled", "sw_power_cap"): 1,
        ("hw.errors", "corrected"): 0,
        ("hw.errors", "uncorrected"): 0,
        ("hw.status", "ok"): 1,
        ("hw.status", "degraded"): 0,
        ("hw.status", "failed"): 0,
        ("hw.gpu.io", "nvlink", "transmit"): 1_700_000_000 * 1024,
        ("hw.gpu.io", "nvlink", "receive"): 1_700_000_000 * 1024,
    }
    assert {(s.metric.name, *s.attributes.values()): s.value for s in reading.samples} == expected
    assert host.said == []


def test_nvlink_of_blackwell_has_counters_of_its_own() -> None:
    """Its driver knows those before it no more."""
    host = Host("b200x2")

    host.look(0)

    assert [_io(reading, "nvlink") for reading in host.look(10).values()] == [[3_100_000_000_000] * 2] * 2


def test_pcie_is_told_where_its_counter_does_not_begin_anew_between_two_readings() -> None:
    """One of 32 bits does so many times a minute, and what is seen to rise of it then is anything."""
    host = Host("b200x2")

    host.look(0)

    assert [_io(reading, "pcie") for reading in host.look(10).values()] == [[], [2_100_000_000, 3_400_000_000]]


def test_nothing_expensive_is_called() -> None:
    """A list of processes takes milliseconds, with the driver's lock held for which whoever launches a kernel waits."""
    host = Host("h100x8")
    host.look(0)
    host.nvml.driver.calls.clear()

    host.look(60)

    per_gpu = Counter({name: calls for name, calls in host.nvml.driver.calls.items() if calls in {8, 16}})
    assert sum(per_gpu.values()) <= 8 * 16
    assert host.nvml.driver.calls - per_gpu == Counter({"nvmlEventSetWait_v2": 1})
    assert not any("Process" in name or name == "nvmlDeviceGetPcieThroughput" for name in host.nvml.driver.calls)


def test_a_mig_instance_is_a_part_of_its_gpu() -> None:
    """Memory is an instance's own; power and energy are the whole GPU's, and must not be counted once for each part."""
    host = Host("mig")

    readings = host.look(0)

    gpu, one, other, plain = readings
    assert [g.parent for g in (gpu, one, other, plain)] == [None, gpu.id, gpu.id, None]
    assert one.id.startswith("MIG-")
    assert one.attributes()["hw.parent"] == gpu.id
    assert one.pci == gpu.pci
    assert {sample.metric for sample in readings[one].samples} == {
        names.HW_GPU_MEMORY_USAGE,
        names.HW_GPU_MEMORY_LIMIT,
        names.HW_GPU_MEMORY_UTILIZATION,
    }
    assert readings[one].energy_j is None
    assert readings[gpu].energy_j == 0
    assert value_of(readings[gpu], "hw.gpu.utilization", "general") is None
    assert host.said == []


def test_an_old_card_is_asked_once_for_what_it_has_not() -> None:
    """A call that always fails is a cost without end, and a message without end."""
    host = Host("old_card")
    host.look(0)
    host.nvml.driver.calls.clear()

    (reading,) = host.look(5).values()

    assert host.nvml.driver.calls["nvmlDeviceGetTotalEnergyConsumption"] == 0
    assert host.nvml.driver.calls["nvmlDeviceGetCurrentClocksEventReasons"] == 0
    assert value_of(reading, "hw.gpu.throttled", "sw_power_cap") == 0
    assert (reading.energy_j, reading.power_w) == (None, 178)
    assert host.probe.unsupported(reading.gpu) == ("energy", "replaced memory rows")
    assert host.said == []


def test_a_workstation_card_is_read_without_ecc_and_memory_sensor() -> None:
    """What nvidia-smi says of a real one: no MIG, ECC off, no temperature of its memory."""
    host = Host("rtx_pro_6000")
    host.look(0)
    host.nvml.driver.calls.clear()

    (reading,) = host.look(10).values()

    told = {(s.metric.name, *s.attributes.values()) for s in reading.samples}
    assert {key[1] for key in told if key[0] == "hw.temperature"} == {"gpu"}
    assert {key[0] for key in told} == {
        *("hw.gpu.utilization", "hw.gpu.memory.usage", "hw.gpu.memory.limit", "hw.gpu.memory.utilization", "hw.power"),
        *("hw.energy", "hw.temperature", "hw.gpu.speed", "hw.gpu.throttled", "hw.status"),
    }
    assert host.probe.unsupported(reading.gpu) == ("corrected errors", "uncorrected errors")
    assert host.nvml.driver.calls["nvmlDeviceGetTotalEccErrors"] == 0
    assert host.said == []


def test_a_gpu_that_shares_the_memory_of_the_host_has_none_of_its_own() -> None:
    """Drivers say so of a GB10 with an error, or with zeros, which would be a limit that is always exceeded."""
    host, other = Host("gb10"), Host("gb10")
    other.nvml.driver.devices[0].recorded["answers"]["nvmlDeviceGetMemoryInfo"] = {"total": 0, "free": 0, "used": 0}
    host.look(0)

    (reading,), (same,) = host.look(10).values(), other.look(10).values()

    told = {(s.metric.name, *s.attributes.values()) for s in reading.samples}
    assert told == {(s.metric.name, *s.attributes.values()) for s in same.samples}
    assert not any(key[0].startswith("hw.gpu.memory") for key in told)
    assert ("hw.temperature", "memory") not in told  # it has no sensor, and says 0
    assert (reading.gpu.pci, reading.energy_j, host.said) == ("000f:01:00.0", 611.7, [])


@pytest.mark.parametrize(("machine", "telling"), [("old_card", 0), ("mig", 1), ("h100x8", 8)])
def test_who_tells_nothing_of_replaced_rows_is_asked_once(machine: str, telling: int) -> None:
    """Cards before Ampere replace none, and a GPU in parts does not tell; its neighbour does."""
    host = Host(machine)
    host.look(0)
    host.nvml.driver.calls.clear()

    host.look(10)

    assert host.nvml.driver.calls["nvmlDeviceGetRemappedRows"] == telling
    assert host.said == []


def test_a_gpu_that_falls_off_the_bus_has_failed_and_the_others_go_on() -> None:
    """The machine to be drained is the one whose GPU says nothing any more, so that must be said for it."""
    host = Host("falls_off_bus")

    before, after, later = host.look(11), host.look(13), host.look(14)

    sound, lost = before
    assert value_of(before[lost], "hw.status", "ok") == 1
    assert {(s.metric.name, *s.attributes.values()): s.value for s in after[lost].samples} == {
        ("hw.errors", "xid_79"): 1,
        ("hw.status", "ok"): 0,
        ("hw.status", "degraded"): 0,
        ("hw.status", "failed"): 1,
    }
    assert later[lost].samples == after[lost].samples
    assert len(later[sound].samples) == len(before[sound].samples)
    assert [cause for cause, _ in host.said] == [f"nvml.lost.{lost.id}"]


@pytest.mark.parametrize("answer", ["TIMEOUT", "UNKNOWN", "GPU_IS_LOST"])
def test_a_gpu_whose_firmware_hangs_costs_one_call_and_has_failed(answer: str) -> None:
    """Then each call waits 45 s for it (XID 119): fourteen of them would hold up everything the relay does."""
    host = Host("old_card")
    host.look(0)
    host.nvml.driver.calls.clear()

    def hangs(call: str) -> int | None:
        if not call.startswith("nvmlDevice"):
            return None
        host.seconds += 45
        return error_code(answer)

    host.nvml.driver.fails = hangs

    (reading,) = host.look(10).values()

    assert host.seconds == 10 + 45
    assert value_of(reading, "hw.status", "failed") == 1
    assert host.said[-1][0] == f"nvml.{'lost' if answer == 'GPU_IS_LOST' else 'slow'}.{reading.gpu.id}"


def test_a_slow_answer_is_taken_and_the_rest_is_left_for_another_time() -> None:
    """A driver under load is no failed GPU."""
    host = Host("old_card")

    def slow(call: str) -> None:
        host.seconds += 2 * call.startswith("nvmlDeviceGetMemory")

    host.nvml.driver.fails = slow

    (reading,) = host.look(0).values()
    (later,) = host.look(10).values()

    assert value_of(reading, "hw.gpu.memory.limit") == 17070817280
    assert (value_of(reading, "hw.power"), value_of(reading, "hw.status", "ok")) == (None, 1)
    assert [cause for cause, _ in host.said] == [f"nvml.slow.{later.gpu.id}"] * 2  # `warn_once` says it once


def test_a_lost_gpu_that_is_back_is_read_again() -> None:
    """A reset brings it back while the job goes on, or the next one begins; nobody restarts the relay for it."""
    host = Host("falls_off_bus")
    host.nvml.driver.devices[1].recorded["whole"].append([30, None])
    host.look(0)

    readings = [host.look(seconds) for seconds in (13, 31, 59, 61)]

    states = [value_of(list(reading.values())[1], "hw.status", "ok") for reading in readings]
    assert states == [0, 0, 0, 1]
    assert host.nvml.driver.calls["nvmlInitWithFlags"] == 2
    # Its counter went on while nobody could read it.
    assert list(readings[-1].values())[1].energy_j == 61 * 648


def test_a_lost_gpu_that_is_not_even_listed_any_more_has_still_failed() -> None:
    """A driver that is opened anew may count without it, and give its number to the next one."""
    host = Host("falls_off_bus")
    sound, lost = host.look(0)
    host.look(13)
    host.nvml.driver.devices = host.nvml.driver.devices[:1]

    readings = host.look(61)

    assert list(readings) == [sound, lost]
    assert value_of(readings[lost], "hw.status", "failed") == 1
    assert value_of(readings[sound], "hw.status", "ok") == 1
    assert [cause for cause, _ in host.said] == [f"nvml.lost.{lost.id}"] * 2  # `warn_once` says it once


@pytest.mark.parametrize(("answer", "found"), [("TIMEOUT", 8), ("NO_PERMISSION", 7)])
def test_a_gpu_that_did_not_answer_at_first_is_looked_for_again(answer: str, found: int) -> None:
    """The job was started anew on a node where it hung; one that may not be read is no reason to open the driver."""
    host = Host("h100x8")
    host.nvml.driver.devices[3].recorded["whole"] = [[0, {"error": answer}], [30, None]]

    looks = [len(host.look(seconds)) for seconds in (0, 31, 61)]

    assert looks == [7, 7, found]


def test_mig_instances_that_are_made_anew_take_the_place_of_the_old() -> None:
    """An administrator divides a GPU between two jobs of a relay that stays; an instance has no hardware to fail."""
    host = Host("mig")
    host.look(0)
    gone = host.nvml.driver.devices[0].instances.pop()
    host.nvml.driver.machine["devices"][0]["whole"] = None
    host.nvml.driver.fails = lambda _: error_code("UNINITIALIZED") if host.seconds == 5 else None

    host.look(5)
    readings = host.look(66)

    assert gone is not None
    assert gone.recorded["uuid"] not in {gpu.id for gpu in readings}
    assert len(readings) == 3


def test_a_reloaded_driver_does_not_turn_the_energy_back() -> None:
    """Its counter begins anew; a counter on the wire must not, or a rate becomes nonsense."""
    host = Host("h100x8")
    counter = {"from": 0, "per_s": 652_000}
    answers = host.nvml.driver.devices[0].recorded["answers"]
    answers["nvmlDeviceGetTotalEnergyConsumption"] = [[0, {"from": 9e9, "per_s": 652_000}], [10, counter]]

    energies = [next(iter(host.look(seconds).values())).energy_j for seconds in (0, 5, 11, 12)]

    assert energies == [0, 5 * 652, 5 * 652, 6 * 652]


def test_a_host_without_a_driver_is_asked_once_a_minute() -> None:
    """Most machines have no GPU: they need no message, and no second library search a second later."""
    host = Host("h100x8")
    host.nvml.driver.machine["init"] = {"error": "LIBRARY_NOT_FOUND"}

    readings = [host.look(seconds) for seconds in (0, 1, 30, 59, 60, 61)]

    assert readings == [{}] * 6
    assert host.nvml.driver.calls["nvmlInitWithFlags"] == 2
    assert host.probe.why_none() is None
    assert host.said == []


def test_a_driver_that_comes_is_found_and_one_that_goes_is_said_once() -> None:
    """A node is handed over while its driver still loads, and upgraded while a daemon's relay stays."""
    host = Host("h100x8")
    host.nvml.driver.machine["init"] = [
        [0, {"error": "DRIVER_NOT_LOADED"}],
        [50, None],
        [70, {"error": "DRIVER_NOT_LOADED"}],
    ]
    gone = [[0, None], [70, {"error": "UNINITIALIZED"}]]
    host.nvml.driver.devices[0].recorded["whole"] = gone

    found = [len(host.look(seconds)) for seconds in (0, 55, 60, 71, 100, 131, 200)]

    assert found == [0, 0, 8, 0, 0, 0, 0]
    assert [cause for cause, _ in host.said] == ["nvml"] * 4  # `warn_once` says it once


def test_what_may_not_be_read_is_left_out_with_one_message() -> None:
    """In a container some counters belong to the administrator; the rest does not."""
    power = error_code("NO_PERMISSION")
    host = Host("h100x8", lambda call: power if call == "nvmlDeviceGetPowerUsage" else None)
    host.look(0)

    readings = host.look(5)

    assert {value_of(reading, "hw.power") for reading in readings.values()} == {None}
    assert {reading.energy_j for reading in readings.values()} == {
        5.0 * w for w in (652, 648, 655, 641, 650, 639, 658, 645)
    }
    assert {cause for cause, _ in host.said} == {"nvml.permission.power"}
    assert host.nvml.driver.calls["nvmlDeviceGetPowerUsage"] == 8


def test_a_relay_without_pynvml_says_how_to_get_it() -> None:
    """The dependency can be left out; then `doctor` and the relay must know why there is nothing."""

    def load() -> None:
        raise ModuleNotFoundError("No module named 'pynvml'")

    probe = NvmlProbe(load=load)

    assert probe.gpus(0) == []
    assert probe.why_none() == "the module pynvml is not installed: pip install nvidia-ml-py"


@pytest.mark.parametrize("answer", ["FUNCTION_NOT_FOUND", "DEPRECATED"])
def test_a_call_that_a_later_driver_drops_has_a_successor(answer: str) -> None:
    """NVIDIA has said that CUDA 14 will not know the temperature by its old call; what it dropped before says so."""
    host = Host("h100x8")
    for device in host.nvml.driver.devices:
        answers = device.recorded["answers"]
        answers["nvmlDeviceGetTemperatureV"] = answers["nvmlDeviceGetTemperature"]
        answers["nvmlDeviceGetTemperature"] = {"error": answer}
    host.look(0)

    readings = host.look(5)

    assert [value_of(reading, "hw.temperature", "gpu") for reading in readings.values()][:3] == [58, 61, 63]
    assert host.said == []


def test_xids_of_the_others_are_counted_beside_a_lost_gpu() -> None:
    """With a lost GPU among them, a wait for events ends in that error when there is none."""
    host = Host("falls_off_bus")
    host.nvml.driver.machine["events"].append({"at_s": 20, "device": 0, "type": 8, "value": 63})
    lost = error_code("GPU_IS_LOST")
    host.nvml.driver.fails = lambda call: lost if call == "nvmlEventSetWait_v2" and host.seconds in {14, 15} else None

    readings = [host.look(seconds) for seconds in (0, 13, 14, 15, 21)]

    assert value_of(next(iter(readings[-1].values())), "hw.errors", "xid_63") == 1
    assert [cause for cause, _ in host.said if "events" in cause] == []


def test_an_old_pynvml_lacks_calls() -> None:
    """A cluster pins it; what it does not know is left out, with nothing said."""
    host = Host("h100x8")
    del host.nvml.module.nvmlDeviceGetRemappedRows, host.nvml.module.nvmlDeviceGetFieldValues

    readings = host.look(0).values()

    assert [len(reading.samples) for reading in readings] == [23] * 8
    assert host.said == []


@given(
    st.sampled_from(["h100x8", "mig", "old_card", "falls_off_bus", "rtx_pro_6000", "gb10"]),
    st.lists(st.none() | st.sampled_from(sorted(errors().values())), max_size=400),
    st.integers(1, 40),
)
def test_no_error_of_any_call_at_any_time_gets_out(machine: str, errors: list[int | None], every: int) -> None:
    """A driver in trouble is when the telemetry is needed, and it must not take the relay along."""
    rest = iter(errors)
    calls = Counter[str]()

    def fails(call: str) -> int | None:
        calls[call] += 1
        return next(rest, None) if calls.total() % every == 0 else None

    host = Host(machine, fails)

    looks = [host.look(seconds) for seconds in (0, 1, 5, 20, 61, 70, 130, 200)]
    host.probe.close()

    energies: dict[str, float] = {}
    for readings in looks:
        for gpu, reading in readings.items():
            if reading.energy_j is not None:
                assert reading.energy_j >= energies.get(gpu.id, 0)
                energies[gpu.id] = reading.energy_j
            assert reading.energy_j is None or reading.energy_j <= 660 * host.seconds
            assert all(sample.value >= 0 for sample in reading.samples)
            assert len({(s.metric, *s.attributes.items()) for s in reading.samples}) == len(reading.samples)
    assert host.now_ns == 200 * S


def _io(reading: Reading, link: str) -> list[float]:
    """Bytes sent and received over it."""
    found = {s.attributes["network.io.direction"]: s.value for s in reading.samples if link in s.attributes.values()}
    return [found[direction] for direction in ("transmit", "receive") if found]
