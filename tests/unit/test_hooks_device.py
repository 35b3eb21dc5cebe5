"""The rank tells which device it uses, when that is known and when it changes, and asks the device for nothing."""

from types import SimpleNamespace
from typing import Any

import pytest

from trainspan.record.hooks import device
from trainspan.relay.probes.matching import told_device_of

H100 = SimpleNamespace(
    name="NVIDIA H100 80GB HBM3",
    uuid="55C4C5FD-DEBA-E3AB-208E-3F4EA921BFF5",
    pci_domain_id=0,
    pci_bus_id=0x18,
    pci_device_id=0,
)


class Script:
    """A script that uses a device, or not."""

    def __init__(self, properties: Any = H100, environ: dict[str, str] | None = None):
        self.now_ns = 0
        self.ready = True
        self.used: int | None = 0
        self.asked = 0
        self.told: list[dict[str, Any]] = []

        def tell(name: str, **fields: Any) -> None:
            self.told.append({"event": name, **fields})

        def used() -> int | None:
            self.asked += 1
            return self.used

        self.step_ended = device.install(
            environ or {}, tell, used, lambda: self.ready, lambda _: properties, lambda: self.now_ns
        )


def test_it_is_told_once_in_use() -> None:
    """The relay finds the physical GPU by it, whatever CUDA_VISIBLE_DEVICES made of the numbers."""
    script = Script(environ={"CUDA_VISIBLE_DEVICES": "3,1"})
    script.ready = False
    script.step_ended()
    script.ready = True

    for second in range(100):
        script.now_ns = second * 1_000_000_000
        script.step_ended()

    (event,) = script.told
    assert event == {
        "event": "device",
        "index": 0,
        "uuid": "55c4c5fd-deba-e3ab-208e-3f4ea921bff5",
        "pci": "0000:18:00.0",
        "model": "NVIDIA H100 80GB HBM3",
        "visible": ["3", "1"],
        "in_pci_order": False,
    }
    assert script.asked == 10
    told = told_device_of(event)
    assert told is not None
    assert told.likely_id == "GPU-55c4c5fd-deba-e3ab-208e-3f4ea921bff5"


def test_another_device_is_told_again() -> None:
    """A script may choose its device after its first step."""
    script = Script()
    script.step_ended()
    script.used = 2
    script.now_ns = device.INTERVAL_NS

    script.step_ended()

    assert [event["index"] for event in script.told] == [0, 2]


def test_a_device_that_is_not_in_use_is_not_told() -> None:
    """A script on the CPU that has looked what GPUs there are draws no energy on the first of them."""
    script = Script()
    script.used = None
    script.step_ended()
    before = list(script.told)

    script.used = 1
    script.now_ns = device.INTERVAL_NS
    script.step_ended()

    assert (before, [event["index"] for event in script.told]) == ([], [1])


def test_an_older_torch_tells_less() -> None:
    """UUID and PCI address came to torch's properties one after the other."""
    script = Script(SimpleNamespace(name="NVIDIA A100-SXM4-80GB"))

    script.step_ended()

    assert (script.told[0]["uuid"], script.told[0]["pci"]) == (None, None)


def test_a_device_that_fails_is_left_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """After an error CUDA answers every call with it; the script must not get it from us."""
    script = Script()

    def broken() -> int:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    step_ended = device.install({}, script.step_ended, broken, lambda: True, lambda _: H100)
    step_ended()
    step_ended()

    assert script.told == []
    assert capsys.readouterr().err.count("which GPU this is cannot be told") == 1
