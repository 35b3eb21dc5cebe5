"""AMD's GPUs, read through AMD SMI (the module `amdsmi`, which comes with ROCm).

Cost: not measured; 9 calls a device.

Source: https://rocm.docs.amd.com/projects/amdsmi/en/latest/reference/amdsmi-py-api.html
"""

from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from time import monotonic_ns
from typing import Any, Final

from trainspan import guard, names
from trainspan.relay.probes.probe import (
    RETRY_NS,
    SLOW_NS,
    Complain,
    Gpu,
    Reading,
    Rising,
    Sample,
    card_of,
    said_of_slow,
)

DRIVER: Final = Path("/sys/module/amdgpu")
_MIB: Final = 1 << 20
_NOTHING: Final = (0xFFFF, 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF)
"""What AMD's library says for a number that a card does not have; from 6.1 on its Python makes `N/A` of some."""


def load_where_there_is_a_driver() -> Any:
    """The module `amdsmi`, which prints and fails in odd ways where its library is missing.

    Raises:
        ImportError: AMD's driver is not loaded, or the module is not installed.
    """
    if not DRIVER.exists():
        raise ImportError("AMD's driver is not loaded")
    return import_module("amdsmi")


class AmdSmiProbe:
    """A `Probe` of AMD's driver.

    Args:
        complain: told what keeps something from being read.
        load: gives the module `amdsmi`.
        clock: monotonic ns, for how long a call takes.
    """

    def __init__(
        self,
        complain: Complain = guard.warn_once,
        load: Callable[[], Any] = load_where_there_is_a_driver,
        clock: Callable[[], int] = monotonic_ns,
    ):
        self._complain = complain
        self._load = load
        self._clock = clock
        self._smi: Any = None
        self._why: str | None = None
        self._retry_ns = 0
        self._devices: dict[str, tuple[Gpu, Any]] = {}
        self._refused: dict[str, set[str]] = {}
        self._answers: dict[str, bool] = {}  # whether it does, of those that have told their power or temperature
        self._rising = Rising()

    def gpus(self, now_ns: int) -> Sequence[Gpu]:
        if self._smi is None and now_ns >= self._retry_ns:
            self._retry_ns = now_ns + RETRY_NS
            self._open()
        return [] if self._smi is None else [gpu for gpu, _ in self._devices.values()]

    def read(self, gpu: Gpu, now_ns: int, *, asks: bool = True) -> Reading | None:
        if gpu.id not in self._devices or self._smi is None:
            return None
        samples = self._asked(gpu) if asks else []
        if gpu.id in self._answers:
            samples += _status(answers=self._answers[gpu.id])
        values = {sample.metric: sample.value for sample in samples}
        return Reading(gpu, now_ns, tuple(samples), values.get(names.HW_ENERGY), values.get(names.HW_POWER))

    def unsupported(self, gpu: Gpu) -> Sequence[str]:
        """What that device has refused to tell, in words."""
        return tuple(sorted(self._refused.get(gpu.id, ())))

    def why_none(self) -> str | None:
        return self._why

    def close(self) -> None:
        if self._smi is not None:
            smi, self._smi = self._smi, None
            try:
                smi.amdsmi_shut_down()
            except Exception as error:  # noqa: BLE001 - a library that does not end well is none of the run's business
                self._complain("amdsmi.close", f"AMD SMI did not end well ({type(error).__name__}: {error})")

    def _open(self) -> None:
        try:
            smi = self._load()
            smi.amdsmi_init()
            self._devices = {gpu.id: (gpu, handle) for gpu, handle in _found(smi)}
        except ImportError:
            return  # most machines have no such driver, and need not be told
        except Exception as error:  # noqa: BLE001 - what it raises where its library is missing is a KeyError
            self._why = f"AMD SMI cannot be asked ({type(error).__name__}: {error})"
            self._complain("amdsmi", f"{self._why}; it is tried again every minute")
            return
        self._refused = {identity: set() for identity in self._devices}
        self._why = None
        self._smi = smi

    def _asked(self, gpu: Gpu) -> list[Sample]:
        """What it answers; a call that takes long is the last one, as with NVIDIA's."""
        samples: list[Sample] = []
        own, answers = _QUANTITIES if gpu.parent is None else _OF_PARTITIONS, False
        for quantity in own:
            if quantity in self._refused[gpu.id]:
                continue
            begun_ns = self._clock()
            found = self._samples(gpu, quantity)
            samples += found
            answers |= any(sample.metric is names.HW_POWER or sample.metric is names.HW_TEMPERATURE for sample in found)
            if (took_ns := self._clock() - begun_ns) > SLOW_NS:
                answers = bool(found)
                self._complain(f"amdsmi.slow.{gpu.id}", said_of_slow(gpu, quantity, took_ns))
                break
        if answers or gpu.id in self._answers:
            self._answers[gpu.id] = answers
        return [self._risen(gpu, sample) if sample.metric.instrument == "counter" else sample for sample in samples]

    def _samples(self, gpu: Gpu, quantity: str) -> list[Sample]:
        try:
            return list(_QUANTITIES[quantity](self._smi, self._devices[gpu.id][1]))
        except Exception as error:  # noqa: BLE001 - a broken driver is no reason to lose the run's telemetry
            text = str(error)
            if isinstance(error, AttributeError) or "NOT_SUPPORTED" in text or "NOT_YET_IMPLEMENTED" in text:
                self._refused[gpu.id].add(quantity)
            elif "NO_PERM" in text:
                self._refused[gpu.id].add(quantity)
                self._complain(f"amdsmi.{quantity}", f"{quantity} of GPU {gpu.number} may not be read; it is left out")
            else:
                self._complain(f"amdsmi.{quantity}", f"{quantity} of GPU {gpu.number} was not read: {_line(text)}")
        return []

    def _risen(self, gpu: Gpu, sample: Sample) -> Sample:
        key = (gpu.id, sample.metric.name, *sample.attributes.values())
        return sample._replace(value=self._rising.advance(key, sample.value))


def _found(smi: Any) -> Iterator[tuple[Gpu, Any]]:
    """Each GPU, and behind it its further partitions: the first one stands for the GPU.

    Partitions differ in the function of their PCI address alone, which is made up, and before ROCm 7.12 not in UUID.

    Source: https://github.com/ROCm/amdsmi/issues/132, https://github.com/ROCm/rocm-systems/pull/3977
    """
    ids: set[str] = set()
    first_of: dict[str, str] = {}
    for number, handle in enumerate(smi.amdsmi_get_processor_handles()):
        asic, driver = smi.amdsmi_get_gpu_asic_info(handle), smi.amdsmi_get_gpu_driver_info(handle)
        pci = smi.amdsmi_get_gpu_device_bdf(handle).lower()
        identity = smi.amdsmi_get_gpu_device_uuid(handle)
        identity = f"{identity}/{pci}" if identity in ids else identity
        ids.add(identity)
        parent = first_of.get(card_of(pci))
        first_of.setdefault(card_of(pci), identity)
        yield Gpu(identity, number, asic["market_name"], "AMD", pci, parent, driver.get("driver_version")), handle


def _activity(smi: Any, handle: Any) -> Iterator[Sample]:
    activity = smi.amdsmi_get_gpu_activity(handle)
    for task, name in (("general", "gfx_activity"), ("memory_controller", "umc_activity")):
        if (percent := _number(activity.get(name))) is not None:
            yield Sample(names.HW_GPU_UTILIZATION, percent / 100, {names.HW_GPU_TASK: task})


def _memory(smi: Any, handle: Any) -> Iterator[Sample]:
    usage = smi.amdsmi_get_gpu_vram_usage(handle)  # MiB
    yield Sample(names.HW_GPU_MEMORY_USAGE, usage["vram_used"] * _MIB)
    yield Sample(names.HW_GPU_MEMORY_LIMIT, usage["vram_total"] * _MIB)
    if usage["vram_total"]:
        yield Sample(names.HW_GPU_MEMORY_UTILIZATION, usage["vram_used"] / usage["vram_total"])


def _power(smi: Any, handle: Any) -> Iterator[Sample]:
    power = smi.amdsmi_get_power_info(handle)
    # Which of them a card has depends on its generation.
    told = (_number(power.get(name)) for name in ("current_socket_power", "average_socket_power", "socket_power"))
    watts = next((value for value in told if value), None)
    if watts is not None:
        yield Sample(names.HW_POWER, watts)


def _energy(smi: Any, handle: Any) -> Iterator[Sample]:
    energy = smi.amdsmi_get_energy_count(handle)  # counter_resolution: µJ
    count = _number(energy.get("energy_accumulator", energy.get("power")))  # its name before 6.3
    # The second die of an MI200 says 0: its sensor is that of the first, which speaks for both.
    # Source: https://git.zx2c4.com/linux-dev/commit/?id=076f55a45e9e41fcbc377ad064f10f29b26dc298
    if count:
        yield Sample(names.HW_ENERGY, count * energy["counter_resolution"] * 1e-6)


def _hotspot(smi: Any, handle: Any) -> Iterator[Sample]:
    yield _temperature(smi, handle, smi.AmdSmiTemperatureType.HOTSPOT, "gpu")


def _memory_temperature(smi: Any, handle: Any) -> Iterator[Sample]:
    yield _temperature(smi, handle, smi.AmdSmiTemperatureType.VRAM, "memory")


def _temperature(smi: Any, handle: Any, sensor: Any, location: str) -> Sample:
    degrees = smi.amdsmi_get_temp_metric(handle, sensor, smi.AmdSmiTemperatureMetric.CURRENT)
    return Sample(names.HW_TEMPERATURE, degrees, {names.HW_SENSOR_LOCATION: location})


def _sm_clock(smi: Any, handle: Any) -> Iterator[Sample]:
    yield from _clock(smi.amdsmi_get_clock_info(handle, smi.AmdSmiClkType.GFX), "sm")


def _memory_clock(smi: Any, handle: Any) -> Iterator[Sample]:
    yield from _clock(smi.amdsmi_get_clock_info(handle, smi.AmdSmiClkType.MEM), "memory")


def _clock(told: Any, clock: str) -> Iterator[Sample]:
    if (megahertz := _number(told.get("clk", told.get("cur_clk")))) is not None:  # its name before 6.2
        yield Sample(names.HW_GPU_SPEED, megahertz * 1e6, {names.HW_GPU_CLOCK: clock})


def _errors(smi: Any, handle: Any) -> Iterator[Sample]:
    errors = smi.amdsmi_get_gpu_total_ecc_count(handle)
    for kind, name in (("corrected", "correctable_count"), ("uncorrected", "uncorrectable_count")):
        yield Sample(names.HW_ERRORS, errors[name], {names.ERROR_TYPE: kind})


_QUANTITIES: Final[dict[str, Callable[[Any, Any], Iterator[Sample]]]] = {
    "utilization": _activity,
    "memory": _memory,
    "power": _power,
    "energy": _energy,
    "temperature": _hotspot,
    "memory temperature": _memory_temperature,
    "sm clock": _sm_clock,
    "memory clock": _memory_clock,
    "errors": _errors,
}


_OF_PARTITIONS: Final = ("memory",)
"""What is a partition's own: the rest it does not tell, or each one tells it of the whole GPU."""


def _status(*, answers: bool) -> Iterator[Sample]:
    """A device that tells neither its power nor its temperature any more has failed.

    In a virtual machine neither is supported.
    """
    state = "ok" if answers else "failed"
    for each in ("ok", "degraded", "failed"):
        yield Sample(names.HW_STATUS, int(each == state), {names.HW_STATE: each})


def _number(told: Any) -> float | None:
    """`N/A` is what AMD SMI says for what a card does not have, or the largest number."""
    number = isinstance(told, int | float) and not isinstance(told, bool)
    return told if number and told not in _NOTHING else None


def _line(text: str) -> str:
    """AMD's messages have several lines."""
    return " ".join(text.split())[:200]
