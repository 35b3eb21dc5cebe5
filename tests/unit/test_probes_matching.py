"""The GPU a rank means is found by what it tells, and where that is not certain, none is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.gpu_machines import Host
from trainspan.placement import VisibleDevices, visible_devices
from trainspan.relay.probes.matching import ToldDevice, gpu_of, told_device_of
from trainspan.relay.probes.probe import Gpu

EIGHT = tuple(Host("h100x8").look(0))
MIG = tuple(Host("mig").look(0))
MIXED = (*EIGHT[:2], MIG[-1]._replace(number=2))
NOBODY = ToldDevice(0, None, None, "NVIDIA H100 80GB HBM3", None, in_pci_order=False)


def bare(gpu: Gpu) -> str:
    """Its UUID as torch has it."""
    return gpu.id.partition("-")[2]


@pytest.mark.parametrize(
    ("told", "gpus", "expected"),
    [
        pytest.param(NOBODY._replace(uuid=bare(EIGHT[5])), EIGHT, EIGHT[5], id="uuid"),
        pytest.param(NOBODY._replace(uuid=bare(MIG[2])), MIG, MIG[2], id="uuid of a MIG instance"),
        pytest.param(NOBODY._replace(uuid=bare(MIG[2])), EIGHT, None, id="uuid of no GPU here"),
        pytest.param(NOBODY._replace(uuid=bare(MIG[0])), MIG, None, id="uuid of a GPU in parts"),
        pytest.param(
            NOBODY._replace(uuid=bare(MIG[0]), visible=(MIG[2].id,)), MIG, MIG[2], id="uuid of a GPU, and its MIG id"
        ),
        pytest.param(
            NOBODY._replace(uuid=bare(MIG[0]), visible=("0",)), MIG[:2], MIG[1], id="uuid of a GPU with one part here"
        ),
        pytest.param(NOBODY._replace(pci="0000:9a:00.0"), EIGHT, EIGHT[4], id="pci"),
        pytest.param(NOBODY._replace(pci=MIG[0].pci), MIG[:2], MIG[1], id="pci of a GPU with one part here"),
        pytest.param(NOBODY._replace(pci=MIG[0].pci), MIG, None, id="pci of a GPU in parts"),
        pytest.param(NOBODY._replace(number=3), EIGHT, EIGHT[3], id="number, all visible"),
        pytest.param(NOBODY._replace(number=1, visible=("6", "2")), EIGHT, EIGHT[2], id="reordered numbers"),
        pytest.param(NOBODY._replace(number=2, visible=("6", "2")), EIGHT, None, id="more than are visible"),
        pytest.param(NOBODY._replace(number=0, visible=()), EIGHT, None, id="none visible"),
        pytest.param(NOBODY._replace(visible=(EIGHT[7].id,)), EIGHT, EIGHT[7], id="visible by uuid"),
        pytest.param(NOBODY._replace(visible=(EIGHT[7].id[:9],)), EIGHT, EIGHT[7], id="by the beginning of a uuid"),
        pytest.param(NOBODY._replace(visible=("GPU-",)), EIGHT, None, id="by what many begin with"),
        pytest.param(NOBODY._replace(number=1, visible=(MIG[1].id, MIG[2].id)), MIG, MIG[2], id="by MIG id"),
        pytest.param(NOBODY._replace(number=1), MIXED, None, id="a number among unequal ones"),
        pytest.param(NOBODY._replace(number=1, in_pci_order=True), MIXED, MIXED[1], id="in the driver's order"),
    ],
)
def test_the_gpu_that_is_meant(told: ToldDevice, gpus: tuple[Gpu, ...], expected: Gpu | None) -> None:
    """Megatron's and others' energy is that of another GPU as soon as CUDA_VISIBLE_DEVICES reorders them."""
    found = gpu_of(told, gpus, same_host=True)

    assert found == expected


def test_of_another_host_only_a_uuid_counts() -> None:
    """A relay may read the recordings of a pod beside it; number 0 and PCI addresses are everywhere."""
    by_uuid = gpu_of(NOBODY._replace(uuid=bare(EIGHT[5])), EIGHT, same_host=False)
    by_pci = gpu_of(NOBODY._replace(pci="0000:9a:00.0"), EIGHT, same_host=False)
    by_number = gpu_of(NOBODY._replace(number=3), EIGHT, same_host=False)

    assert (by_uuid, by_pci, by_number) == (EIGHT[5], None, None)


def test_an_amd_gpu_is_found_by_its_place() -> None:
    """Torch's UUID of a ROCm device is not that of its driver, so the rank tells none."""
    gpu = Gpu("abff74a1-0000-1000-80c2-6d1e0ee7d9bd", 0, "AMD Instinct MI300X", "AMD", "0000:0c:00.0")

    found = gpu_of(NOBODY._replace(pci="0000:0c:00.0"), (gpu,), same_host=True)

    assert found == gpu


def test_of_the_partitions_of_an_amd_gpu_none_is_certain() -> None:
    """Torch tells of each the address of the first: its energy would be that of the neighbours' work too."""
    whole = Gpu("a7ff74a1-0000-1000-80c2-6d1e0ee7d9bd", 0, "AMD Instinct MI300X", "AMD", "0000:05:00.0")
    part = whole._replace(id=f"{whole.id}/0000:05:00.1", number=1, pci="0000:05:00.1", parent=whole.id)
    other = whole._replace(id="b8ff74a1-0000-1000-80c2-6d1e0ee7d9be", number=2, pci="0000:26:00.0")

    found = gpu_of(NOBODY._replace(pci="0000:05:00.0"), (whole, part, other), same_host=True)
    certain = gpu_of(NOBODY._replace(pci="0000:26:00.0"), (whole, part, other), same_host=True)

    assert (found, certain) == (None, other)


@pytest.mark.parametrize(
    ("told", "likely"),
    [
        (NOBODY._replace(uuid="55c4c5fd-deba-e3ab-208e-3f4ea921bff5"), "GPU-55c4c5fd-deba-e3ab-208e-3f4ea921bff5"),
        (NOBODY._replace(visible=(MIG[1].id,)), MIG[1].id),
        (NOBODY._replace(visible=("0",)), None),
        (NOBODY, None),
    ],
)
def test_without_a_driver_the_rank_is_believed(told: ToldDevice, likely: str | None) -> None:
    """Spans can be joined with another exporter's metrics where this relay may not ask the driver."""
    assert told.likely_id == likely


@given(
    st.fixed_dictionaries(
        {},
        optional={
            name: st.none() | st.booleans() | st.integers() | st.text() | st.lists(st.text() | st.integers())
            for name in ("index", "uuid", "pci", "model", "visible", "in_pci_order")
        },
    )
)
def test_whatever_a_log_holds_is_survived(event: dict[str, object]) -> None:
    """The event log is a file that anybody of this user can write."""
    told = told_device_of({"event": "device", "ts": 1, **event})

    assert told is None or gpu_of(told, EIGHT, same_host=True) in {None, *EIGHT}
    assert told is None or told.likely_id is None or told.likely_id.startswith(("GPU-", "MIG-"))


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, VisibleDevices(None, in_pci_order=False)),
        ({"CUDA_VISIBLE_DEVICES": ""}, VisibleDevices([], in_pci_order=False)),
        ({"CUDA_VISIBLE_DEVICES": "3, 1"}, VisibleDevices(["3", "1"], in_pci_order=False)),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, VisibleDevices([], in_pci_order=False)),
        ({"CUDA_VISIBLE_DEVICES": "2,-1,1"}, VisibleDevices(["2"], in_pci_order=False)),
        (
            {"HIP_VISIBLE_DEVICES": "2", "ROCR_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
            VisibleDevices(None, in_pci_order=True),
        ),
    ],
)
def test_what_the_environment_shows(environ: dict[str, str], expected: VisibleDevices) -> None:
    """An empty CUDA_VISIBLE_DEVICES hides every GPU, an absent one shows all, and what is no GPU ends the list.

    ROCm's variables are nothing to CUDA; launchers set them all.
    """
    assert visible_devices(environ, hip=False) == expected


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, None),
        ({"ROCR_VISIBLE_DEVICES": "6,4"}, ["6", "4"]),
        ({"HIP_VISIBLE_DEVICES": "3,1"}, ["3", "1"]),
        ({"CUDA_VISIBLE_DEVICES": "3,1"}, ["3", "1"]),
        ({"HIP_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "0"}, ["1"]),
        ({"HIP_VISIBLE_DEVICES": "", "CUDA_VISIBLE_DEVICES": "3"}, ["3"]),
        ({"HIP_VISIBLE_DEVICES": "", "CUDA_VISIBLE_DEVICES": ""}, None),
        ({"HIP_VISIBLE_DEVICES": "-1", "CUDA_VISIBLE_DEVICES": "3"}, []),
        ({"ROCR_VISIBLE_DEVICES": "6,4", "HIP_VISIBLE_DEVICES": "1"}, ["4"]),
        ({"ROCR_VISIBLE_DEVICES": "6,GPU-5f2a1", "CUDA_VISIBLE_DEVICES": "1,0"}, ["GPU-5f2a1", "6"]),
        ({"ROCR_VISIBLE_DEVICES": "6,4", "HIP_VISIBLE_DEVICES": "0,2,1"}, ["6"]),
        ({"ROCR_VISIBLE_DEVICES": ""}, []),
    ],
)
def test_what_the_environment_shows_of_rocm(environ: dict[str, str], expected: list[str] | None) -> None:
    """HIP numbers what is left by the runtime below it: 1 is the second of those, not of the machine.

    An empty list hides everything from that runtime, as from CUDA, and says nothing to HIP.
    """
    assert visible_devices(environ, hip=True).entries == expected
