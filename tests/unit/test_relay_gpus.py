"""What a relay makes of the GPUs of its node and of what its ranks say they use."""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.unit.gpu_machines import RECORDED, Host, S
from trainspan.cli.checks.gpus import check
from trainspan.names import Phase
from trainspan.relay.gpus import NodeGpus
from trainspan.relay.probes.amd import AmdSmiProbe
from trainspan.relay.probes.matching import ToldDevice
from trainspan.relay.probes.ownership import Ownership
from trainspan.relay.probes.probe import Gpu
from trainspan.relay.timeline.records import RankStep
from trainspan.testing.builders import rank_step
from trainspan.testing.fake_amdsmi import FakeAmdSmi


def node(host: Host, directory: Path | None = None) -> NodeGpus:
    """A relay on that host."""

    def complain(cause: str, message: str) -> None:
        host.said.append((cause, message))

    ownership = Ownership((lambda: directory) if directory else None, complain)
    # A reading takes no time here: on a machine under load, one that did would put off the next.
    return NodeGpus([host.probe], ownership, complain, lambda: 0)


def timed(host: Host) -> NodeGpus:
    """A relay on that host, which knows how long a reading takes."""
    return NodeGpus([host.probe], Ownership(None, lambda *_: None), lambda *_: None, lambda: host.now_ns)


def minute(gpus: NodeGpus, host: Host, number: int) -> dict[str, dict[str, Any]]:
    """What is exported at the end of a minute, by metric and GPU; before that the relay turns once a second."""
    while host.seconds < 60 * number:
        host.seconds = min(host.seconds + 1, 60 * number)
        gpus.settle(host.now_ns)
    gpus.look(host.now_ns)
    return exported(gpus)


def exported(gpus: NodeGpus) -> dict[str, dict[str, Any]]:
    """By metric and GPU: the value, or what attribute it has where there is one for each."""
    found: defaultdict[str, dict[str, Any]] = defaultdict(dict)
    for reading in gpus.readings:
        for sample in reading.samples:
            if not sample.attributes:
                found[sample.metric.name][reading.gpu.id] = sample.value
            elif sample.value:
                found[sample.metric.name][reading.gpu.id] = next(iter(sample.attributes.values()))
    return dict(found)


def told(gpu: Gpu) -> ToldDevice:
    """What a rank on that GPU says."""
    return ToldDevice(0, gpu.id.partition("-")[2], gpu.pci, gpu.model, None, in_pci_order=False)


def steps(start_s: int, end_s: int) -> list[RankStep]:
    """One of a second after the other."""
    return [rank_step(n, [(Phase.FORWARD, S)], start_ns=(start_s + n) * S) for n in range(end_s - start_s)]


def joules(gpus: NodeGpus, host: Host) -> dict[str, float]:
    """Charged by now, by rank."""
    return {rank: sum(charge.joules.values()) for rank, charge in gpus.charges(host.now_ns).items()}


def look(gpus: NodeGpus, host: Host, seconds: Sequence[float]) -> None:
    """Look at these times."""
    for host.seconds in seconds:
        gpus.look(host.now_ns)


def test_a_rank_is_charged_from_where_its_gpu_is_known() -> None:
    """The first reading comes with the word of the rank, and not at the next export a minute later."""
    host = Host("h100x8")
    gpus = node(host)
    gpu = list(Host("h100x8").look(0))[3]
    look(gpus, host, (0, 60))
    host.seconds = 70

    named = gpus.use("a", told(gpu), host.now_ns, same_host=True)
    gpus.count("a", steps(70, 80))
    host.seconds = 80
    gpus.end("a")
    gpus.settle(host.now_ns)

    assert named == gpu.id
    assert round(joules(gpus, host)["a"]) == 6410


def test_two_ranks_that_come_at_the_same_moment_are_both_charged_from_there() -> None:
    """The second finds the GPUs read already, and must not wait a minute for its first reading."""
    host = Host("h100x8")
    gpus = node(host)
    first, second, *_ = Host("h100x8").look(0)
    for rank, gpu in (("a", first), ("b", second)):
        gpus.use(rank, told(gpu), host.now_ns, same_host=True)
        gpus.count(rank, steps(0, 60))

    look(gpus, host, (60,))

    assert {rank: round(charged) for rank, charged in joules(gpus, host).items()} == {"a": 39120, "b": 38880}


def test_a_rank_that_ends_right_after_a_reading_waits_for_one_more() -> None:
    """A relay that left before would lose the energy of its last second: 2 % of a minute."""
    host = Host("h100x8")
    gpus = node(host)
    gpu = next(iter(Host("h100x8").look(0)))
    gpus.use("a", told(gpu), host.now_ns, same_host=True)
    look(gpus, host, (10,))
    gpus.count("a", [rank_step(0, [(Phase.FORWARD, 10 * S + S // 2)], start_ns=0)])
    host.seconds = 10.5
    gpus.end("a")
    gpus.settle(host.now_ns)
    early, awaited = joules(gpus, host), gpus.awaits_reading

    look(gpus, host, (10.9, 11.1))

    assert (early, awaited, gpus.awaits_reading) == ({"a": 6520.0}, True, False)
    assert 0.4 * 652 < joules(gpus, host)["a"] < 0.6 * 652


def test_a_rank_that_turns_to_another_gpu_is_charged_with_that() -> None:
    """CUDA's device 0 is what every rank has until it chooses."""
    host = Host("h100x8")
    gpus = node(host)
    zero, one, *_ = Host("h100x8").look(0)
    gpus.use("a", told(zero), host.now_ns, same_host=True)
    host.seconds = 10

    named = gpus.use("a", told(one), host.now_ns, same_host=True)
    gpus.count("a", steps(10, 20))
    look(gpus, host, (20,))

    assert named == one.id
    assert round(joules(gpus, host)["a"]) == 6480


def test_energy_of_a_mig_instance_is_not_known() -> None:
    """The counter is that of the whole GPU, on whose other instances somebody else works."""
    host = Host("mig")
    gpus = node(host)
    instance = list(Host("mig").look(0))[1]

    named = gpus.use("a", told(instance), host.now_ns, same_host=True)
    gpus.count("a", steps(0, 10))
    look(gpus, host, (10,))

    assert named == instance.id
    assert joules(gpus, host) == {}


def test_a_gpu_another_relay_charges_is_not_charged_here(tmp_path: Path) -> None:
    """Two jobs on one GPU: what it drew is told once."""
    host = Host("h100x8")
    gpu = next(iter(Host("h100x8").look(0)))
    first, second = node(host, tmp_path), node(host, tmp_path)
    for gpus in (first, second):
        gpus.use("a", told(gpu), 0, same_host=True)
        gpus.count("a", steps(0, 10))

    look(first, host, (10,))
    look(second, host, (10,))

    assert round(joules(first, host)["a"]) == 6520
    assert joules(second, host) == {}
    assert [reading.gpu for reading in first.readings].count(gpu) == 1
    assert gpu not in [reading.gpu for reading in second.readings]


def test_a_gpu_that_cannot_be_read_is_said_once_and_named_by_the_rank() -> None:
    """A job on GPUs without a metric of theirs needs the reason; the spans need no driver."""
    host = Host("h100x8")
    host.nvml.driver.machine["init"] = {"error": "LIBRARY_NOT_FOUND"}
    gpus = node(host)
    gpu = next(iter(Host("h100x8").look(0)))

    named = [gpus.use(rank, told(gpu), 0, same_host=True) for rank in ("a", "b")]

    assert named == [gpu.id, gpu.id]
    assert set(host.said) == {("gpu", "a rank uses NVIDIA H100 80GB HBM3, which cannot be read here: no driver")}


def test_a_gpu_that_hangs_rests_alone() -> None:
    """Each call on it takes 45 s where its firmware does not answer: the other seven are read on, and it has failed."""
    host = Host("h100x8")
    gpus = timed(host)
    host.hang(3, since_s=30)
    host.nvml.driver.machine["events"] = [{"at_s": 75, "device": 3, "type": 8, "value": 119}]

    minutes = [minute(gpus, host, number) for number in range(31)]

    ids = [gpu.id for gpu in Host("h100x8").look(0)]
    assert [set(found["hw.power"]) for found in minutes[1:]] == [{*ids[:3], *ids[4:]}] * 30
    assert [found["hw.energy"][ids[7]] for found in minutes[2:]] == [645 * 60 * number for number in range(2, 31)]
    assert [found["hw.status"][ids[3]] for found in minutes] == ["ok"] + ["failed"] * 30
    assert [found["hw.errors"] for found in minutes[2:]] == [{ids[3]: "xid_119"}] * 29
    assert host.slept_s == 45
    assert [cause for cause, _ in host.said] == [f"nvml.slow.{ids[3]}"]


@pytest.mark.parametrize("answer", ["TIMEOUT", "GPU_IS_LOST"])
def test_a_gpu_that_hangs_has_a_fiftieth_of_the_relays_time(answer: str) -> None:
    """While it is asked no mark is read, and to look whether a lost one is back asks it too."""
    host = Host("h100x8")
    gpus = timed(host)
    host.hang(3, since_s=30, answer=answer)

    for number in range(601):
        minute(gpus, host, number)

    assert 90 <= host.slept_s <= 600 * 60 / 50 + 45


@pytest.mark.parametrize("answer", ["TIMEOUT", "GPU_IS_LOST"])
def test_a_gpu_that_answers_again_is_back(answer: str) -> None:
    """Nobody restarts the relay for it, and its energy has gone on meanwhile."""
    host = Host("h100x8")
    gpus = timed(host)
    gpu = list(Host("h100x8").look(0))[3]
    host.hang(3, since_s=30, until_s=600, answer=answer)

    minutes = [minute(gpus, host, number) for number in range(51)]

    states = [found["hw.status"][gpu.id] for found in minutes]
    back = states.index("ok", 1)
    assert 38 <= back <= 41
    assert states == ["ok"] + ["failed"] * (back - 1) + ["ok"] * (51 - back)
    assert minutes[-1]["hw.energy"][gpu.id] == 641 * 60 * 50


def test_of_gpus_that_hang_together_one_is_asked_at_a_time() -> None:
    """Where all wait for the same lock of the driver, asking one after the other is minutes without a mark."""
    host = Host("h100x8")
    gpus = timed(host)
    for gpu in range(8):
        host.hang(gpu, since_s=30)
    look(gpus, host, (0, 60))
    slept_s = [host.slept_s]

    while gpus.awaits_reading:
        look(gpus, host, (host.seconds + 1,))
        slept_s.append(host.slept_s)

    assert slept_s == [*(45 * n for n in range(1, 9)), 8 * 45]
    assert list(exported(gpus)["hw.status"].values()) == ["failed"] * 8


def test_a_gpu_that_has_hung_is_asked_after_the_others() -> None:
    """They have answered when it keeps the relay waiting once more."""
    host = Host("h100x8")
    gpus = timed(host)
    host.hang(0, since_s=30)
    again_s = 60 + 45 * 51 + 1

    look(gpus, host, (0, 60, 106, again_s))

    assert host.slept_s == 90
    assert [reading.at_ns for reading in gpus.readings if reading.power_w] == [again_s * S] * 7


def test_what_is_read_after_a_slow_look_for_gpus_has_the_time_it_was_read_at() -> None:
    """Joules of the 45 s that the driver took to list them would be charged to the steps before."""
    host = Host("h100x8")
    gpus = timed(host)
    host.hang(0, since_s=0, until_s=1)

    look(gpus, host, (0,))

    assert [reading.at_ns for reading in gpus.readings] == [45 * S] * 7


def test_a_driver_that_answers_slowly_is_asked_seldom() -> None:
    """Each of its GPUs is slow, none of them hangs; meanwhile the relay reads no marks and sends nothing."""
    host = Host("h100x8")
    gpus = timed(host)
    host.nvml.driver.fails = lambda call: host.sleep(0.375) if call == "nvmlDeviceGetPowerUsage" else None

    for _ in range(152):
        look(gpus, host, (host.seconds + 1,))

    assert host.nvml.driver.calls["nvmlDeviceGetPowerUsage"] == 2 * 8


def test_a_gpu_of_amds_that_rests_goes_on_as_it_was() -> None:
    """Its driver may hang too, and its status is the one thing to know of it then."""
    now_s = [0.0]

    def sleep(seconds: float) -> None:
        now_s[0] += seconds

    smi = FakeAmdSmi.from_file(RECORDED.parent / "amdsmi" / "mi300x.json", seconds=lambda: now_s[0], sleep=sleep)
    answers = smi._machine["devices"][0]["answers"]
    for call in ("amdsmi_get_power_info", "amdsmi_get_temp_metric"):
        answers[call] = [[0, answers[call]], [30, {"error": "TIMEOUT", "after_s": 20}]]
    probe = AmdSmiProbe(lambda *_: None, load=lambda: smi)
    gpus = NodeGpus([probe], Ownership(None, lambda *_: None), lambda *_: None, lambda: round(now_s[0] * S))
    calls = []

    for now_s[0] in (0, 60, 180, 240):
        gpus.look(round(now_s[0] * S))
        calls.append(smi.calls["amdsmi_get_power_info"])

    hung, sound = smi._machine["devices"][0]["uuid"], smi._machine["devices"][1]["uuid"]
    assert exported(gpus)["hw.status"] == {sound: "ok", hung: "failed"}
    assert set(exported(gpus)["hw.power"]) == {sound}
    assert calls == [2, 3, 4, 5]


def test_at_most_once_a_second() -> None:
    """Whatever the export interval is, and however many ranks come and go."""
    host = Host("h100x8")
    gpus = node(host)

    look(gpus, host, [tenth / 10 for tenth in range(31)])

    assert host.nvml.driver.calls["nvmlDeviceGetPowerUsage"] == 4 * 8


def test_doctor_says_that_a_gpu_has_failed() -> None:
    """It is still listed, and all that is wrong with it is that it does not answer."""
    host = Host("falls_off_bus")
    host.look(0)
    host.look(13)

    findings = list(check([host.probe]))

    assert [finding.state for finding in findings] == ["ok", "note"]
    assert findings[1].text.endswith("it has failed")


def test_the_energy_of_a_minute_is_off_by_less_than_half_a_percent() -> None:
    """The page says so: the counter lags by up to 0.1 s, and only at the first reading and the last."""
    host = Host("h100x8")
    gpus = node(host)
    gpu = next(iter(Host("h100x8").look(0)))
    host.seconds = 0.37
    gpus.use("a", told(gpu), host.now_ns, same_host=True)
    gpus.count("a", [rank_step(n, [(Phase.FORWARD, S)], start_ns=round((0.37 + n) * S)) for n in range(62)])

    look(gpus, host, [0.37 + 5.03 * n for n in range(1, 13)])

    charged_j = joules(gpus, host)["a"]
    assert abs(charged_j / (652 * 12 * 5.03) - 1) < 0.005
