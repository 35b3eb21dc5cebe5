"""AMD's GPUs come through the same interface, in the same names and units."""

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.gpu_machines import RECORDED, S, value_of
from trainspan.relay.probes.amd import AmdSmiProbe, load_where_there_is_a_driver
from trainspan.relay.probes.probe import Gpu, Reading
from trainspan.testing.fake_amdsmi import ERRORS, FakeAmdSmi

MACHINE: Path = RECORDED.parent / "amdsmi" / "mi300x.json"


def look(probe: AmdSmiProbe, seconds: float) -> list[Reading]:
    """What a collection gives."""
    readings = [probe.read(gpu, round(seconds * S)) for gpu in probe.gpus(round(seconds * S))]
    return [reading for reading in readings if reading is not None]


def test_a_gpu_of_amd_is_read() -> None:
    """A fleet of two makers has one dashboard."""
    now = [0.0]
    smi = FakeAmdSmi.from_file(MACHINE, seconds=lambda: now[0])
    probe = AmdSmiProbe(load=lambda: smi)
    look(probe, 0)
    now[0] = 40

    reading, _ = look(probe, 40)

    assert reading.gpu == Gpu(
        "abff74a1-0000-1000-80c2-6d1e0ee7d9bd", 0, "AMD Instinct MI300X", "AMD", "0000:0c:00.0", driver="6.12.12"
    )
    values = {(s.metric.name, *s.attributes.values()): round(s.value, 6) for s in reading.samples}
    assert values.pop(("hw.energy",)) == round(40 * 46797386 * 15.2587890625e-6, 6)
    assert values == {
        ("hw.gpu.utilization", "general"): 0.96,
        ("hw.gpu.utilization", "memory_controller"): 0.44,
        ("hw.gpu.memory.usage",): 151203 << 20,
        ("hw.gpu.memory.limit",): 196592 << 20,
        ("hw.gpu.memory.utilization",): round(151203 / 196592, 6),
        ("hw.power",): 714,
        ("hw.temperature", "gpu"): 71,
        ("hw.temperature", "memory"): 64,
        ("hw.gpu.speed", "sm"): 2.107e9,
        ("hw.gpu.speed", "memory"): 1.3e9,
        ("hw.errors", "corrected"): 3,
        ("hw.errors", "uncorrected"): 0,
        ("hw.status", "ok"): 1,
        ("hw.status", "degraded"): 0,
        ("hw.status", "failed"): 0,
    }
    assert (round(reading.energy_j or 0), reading.power_w) == (28563, 714)


def test_what_a_card_has_not_is_asked_once() -> None:
    """`N/A`, an error, a missing sensor: fewer points, and one message where a permission is missing."""
    smi = FakeAmdSmi.from_file(MACHINE, seconds=lambda: 0.0)
    said: list[str] = []
    probe = AmdSmiProbe(lambda cause, _: said.append(cause), load=lambda: smi)
    look(probe, 0)
    smi.calls.clear()

    _, other = look(probe, 10)

    assert (other.energy_j, other.power_w) == (None, 138)
    assert probe.unsupported(other.gpu) == ("energy", "errors", "memory temperature")
    assert smi.calls["amdsmi_get_energy_count"] == 1
    assert said == ["amdsmi.errors"]


@pytest.mark.parametrize(("hangs", "state"), [(True, "failed"), (False, "ok")])
def test_a_gpu_that_takes_long_costs_one_call(hangs: bool, state: str) -> None:
    """The others would take as long, each for itself, and hold up everything the relay does."""
    now, said = [0.0], []

    def waits(call: str) -> int | None:
        if now[0] < 10 or call != "amdsmi_get_power_info":
            return None
        now[0] += 45
        return ERRORS["TIMEOUT"] if hangs else None

    smi = FakeAmdSmi.from_file(MACHINE, seconds=lambda: now[0], fails=waits)
    probe = AmdSmiProbe(lambda cause, _: said.append(cause), lambda: smi, lambda: round(now[0] * S))
    gpu = probe.gpus(0)[0]
    probe.read(gpu, 0)
    now[0] = 10

    reading = probe.read(gpu, 10 * S)

    assert reading is not None
    assert now[0] == 10 + 45
    assert (value_of(reading, "hw.status", state), value_of(reading, "hw.temperature", "gpu")) == (1, None)
    assert f"amdsmi.slow.{gpu.id}" in said


def test_amdsmi_of_rocm_6_has_other_words_for_the_same() -> None:
    """Clusters stay on one for years: 6.0 has the counter as `power`, the clock as `cur_clk`, and 65535 for nothing."""
    now = [0.0]
    smi = FakeAmdSmi.from_file(MACHINE.with_name("mi250x_rocm60.json"), seconds=lambda: now[0])
    probe = AmdSmiProbe(load=lambda: smi)
    look(probe, 0)
    now[0] = 10

    first, _ = look(probe, 10)

    values = {(s.metric.name, *s.attributes.values()): s.value for s in first.samples}
    assert round(values["hw.energy",]) == round(10 * 31568627 * 15.3e-6)
    assert (values["hw.power",], first.power_w) == (483, 483)
    assert values["hw.gpu.speed", "sm"] == 1.7e9
    assert values["hw.gpu.speed", "memory"] == 1.6e9


def test_the_second_die_of_a_card_has_no_energy_of_its_own() -> None:
    """The first of an MI250X speaks for both; the second says 0 for ever, which is no counter that stands still."""
    smi = FakeAmdSmi.from_file(MACHINE.with_name("mi250x_rocm60.json"), seconds=lambda: 0.0)
    probe = AmdSmiProbe(load=lambda: smi)

    _, second = look(probe, 0)

    told = {s.metric.name for s in second.samples}
    assert (second.energy_j, second.power_w) == (None, None)
    assert {"hw.energy", "hw.power"} & told == set()
    assert value_of(second, "hw.status", "ok") == 1


def test_a_partition_is_a_part_of_its_gpu() -> None:
    """It tells no power and no temperature, and has the UUID of its GPU: neither is lost or failed for that."""
    said: list[str] = []
    smi = FakeAmdSmi.from_file(MACHINE.with_name("mi300x_dpx.json"), seconds=lambda: 0.0)
    probe = AmdSmiProbe(lambda cause, _: said.append(cause), load=lambda: smi)

    whole, part = look(probe, 0)

    assert (whole.gpu.id, whole.gpu.parent, whole.power_w) == (smi._machine["devices"][0]["uuid"], None, 642)
    assert (part.gpu.id, part.gpu.parent) == (f"{whole.gpu.id}/0000:05:00.1", whole.gpu.id)
    assert {s.metric.name for s in part.samples} == {
        *("hw.gpu.memory.usage", "hw.gpu.memory.limit", "hw.gpu.memory.utilization"),
    }
    assert value_of(whole, "hw.status", "ok") == 1
    assert said == []


def test_what_each_partition_tells_of_the_whole_gpu_is_told_once() -> None:
    """Of eight on one socket each has its 136 W with some releases of ROCm: a sum over the node would be 1088."""
    smi = FakeAmdSmi.from_file(MACHINE.with_name("mi300x_dpx.json"), seconds=lambda: 0.0)
    first, second = smi._machine["devices"]
    second["answers"] = first["answers"]
    probe = AmdSmiProbe(load=lambda: smi)

    _, part = look(probe, 0)

    assert {s.metric.name.rpartition(".")[0] for s in part.samples} == {"hw.gpu.memory"}
    assert (part.energy_j, part.power_w) == (None, None)


@pytest.mark.parametrize("answer", [{"error": "NOT_SUPPORTED"}, "N/A"])
def test_a_gpu_that_never_tells_its_power_is_not_failed_for_that(answer: object) -> None:
    """In a virtual machine neither that nor a temperature is supported, and a library may not know the card."""
    now = [0.0]
    smi = FakeAmdSmi.from_file(MACHINE, seconds=lambda: now[0])
    answers = smi._machine["devices"][0]["answers"]
    power = answer if isinstance(answer, dict) else dict.fromkeys(answers["amdsmi_get_power_info"], answer)
    answers |= {"amdsmi_get_power_info": power, "amdsmi_get_temp_metric": {"error": "NOT_SUPPORTED"}}
    second = smi._machine["devices"][1]["answers"]
    for call in ("amdsmi_get_power_info", "amdsmi_get_temp_metric"):
        second[call] = [[0, second[call]], [5, {"error": "IO"}]]
    probe = AmdSmiProbe(lambda *_: None, load=lambda: smi)
    look(probe, 0)
    now[0] = 10

    silent, failing = look(probe, 10)

    assert "hw.status" not in {s.metric.name for s in silent.samples}
    assert value_of(failing, "hw.status", "failed") == 1


def test_a_busy_rate_that_is_none_is_left_out() -> None:
    """What a release says for no sensor must not become 65,535 %."""
    smi = FakeAmdSmi.from_file(MACHINE, seconds=lambda: 0.0)
    smi._machine["devices"][0]["answers"]["amdsmi_get_gpu_activity"] = {"gfx_activity": 65535, "umc_activity": 7}
    probe = AmdSmiProbe(load=lambda: smi)

    first, _ = look(probe, 0)

    assert value_of(first, "hw.gpu.utilization", "general") is None
    assert value_of(first, "hw.gpu.utilization", "memory_controller") == 0.07


def test_most_hosts_have_no_amd() -> None:
    """The module prints and raises a KeyError where its library is missing, so it is not even imported there."""
    probe = AmdSmiProbe(load=load_where_there_is_a_driver)

    assert list(probe.gpus(0)) == []
    assert probe.why_none() is None


@given(st.lists(st.none() | st.sampled_from(sorted(ERRORS.values())), max_size=200), st.integers(1, 20))
def test_no_error_of_any_call_at_any_time_gets_out(errors: list[int | None], every: int) -> None:
    """As with NVIDIA's."""
    rest = iter(errors)
    calls = Counter[str]()
    now = [0.0]

    def fails(call: str) -> int | None:
        calls[call] += 1
        return next(rest, None) if calls.total() % every == 0 else None

    smi = FakeAmdSmi.from_file(MACHINE, seconds=lambda: now[0], fails=fails)
    probe = AmdSmiProbe(lambda *_: None, load=lambda: smi)

    for now[0] in (0.0, 5.0, 61.0, 130.0):
        for reading in look(probe, now[0]):
            assert all(sample.value >= 0 for sample in reading.samples)
    probe.close()
