"""A machine that is recorded is replayed as it was."""

import json

import pytest

from tests.unit.gpu_machines import Host
from trainspan.relay.probes.nvml import NvmlProbe
from trainspan.testing.fake_nvml import FakeNvml
from trainspan.testing.nvml_recording import recording_of


@pytest.mark.parametrize("machine", ["h100x8", "mig", "old_card"])
def test_a_recorded_machine_is_read_like_itself(machine: str) -> None:
    """The machines of the tests are to be replaced by real ones, by whoever has one."""
    host = Host(machine)
    host.nvml.nvmlInit()

    recorded = json.loads(json.dumps(recording_of(host.nvml)))

    replayed = NvmlProbe(load=lambda: FakeNvml(recorded, lambda: 0.0))
    readings = {gpu: replayed.read(gpu, 0) for gpu in replayed.gpus(0)}
    assert readings == host.look(0)
