"""A machine that is recorded is replayed as it was."""

import json

import pytest

from tests.unit.gpu_machines import RECORDED, Host
from trainspan.relay.probes.nvml import NvmlProbe
from trainspan.testing.fake_nvml import FakeNvml
from trainspan.testing.nvml_recording import recording_of


@pytest.mark.parametrize("machine", ["h100x8", "b200x2", "mig", "old_card", "rtx_pro_6000", "gb10"])
def test_a_recorded_machine_is_read_like_itself(machine: str) -> None:
    """The machines of the tests are to be replaced by real ones, by whoever has one."""
    host = Host(machine)
    host.nvml.nvmlInit()

    recorded = json.loads(json.dumps(recording_of(host.nvml)))

    replayed = NvmlProbe(load=lambda: FakeNvml(recorded, lambda: 0.0))
    readings = {gpu: replayed.read(gpu, 0) for gpu in replayed.gpus(0)}
    assert readings == host.look(0)


def test_every_mig_instance_is_recorded_by_what_it_answers() -> None:
    """A real one need not tell its PCI address, which is that of its GPU; places between instances can be free."""
    machine = json.loads((RECORDED / "mig.json").read_text())
    machine["devices"][0]["mig"].insert(1, None)
    nvml = FakeNvml(machine)
    nvml.nvmlInit()

    recorded = recording_of(nvml)

    assert [[part["uuid"][:4] for part in device["mig"]] for device in recorded["devices"]] == [["MIG-", "MIG-"], []]
