"""What is asked of NVIDIA's driver, call by call, and what it means on the wire.

A row is one call that a device may refuse: what it does not support is asked once and never again. Only cheap calls:
none lists processes (4.5 ms each, with the driver's global lock held), none measures over a time of its own
(`nvmlDeviceGetPcieThroughput` waits for 20 ms).

Units of NVML: power mW, energy mJ, clocks MHz, temperatures Celsius, utilization percent, NVLink KiB.

Source: NVML API reference; https://opentelemetry.io/docs/specs/semconv/hardware/gpu/
"""

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from trainspan import names
from trainspan.relay.probes.probe import Rising, Sample

_ALL_LINKS: Final = 0xFFFFFFFF  # the scope that stands for the sum over every NVLink
FIELDS: Final = {
    "NVML_FI_DEV_MEMORY_TEMP": 82,
    "NVML_FI_DEV_PCIE_COUNT_TX_BYTES": 197,
    "NVML_FI_DEV_PCIE_COUNT_RX_BYTES": 198,
    "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX": 138,
    "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX": 139,
    "NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES": 202,
    "NVML_FI_DEV_NVLINK_COUNT_RCV_BYTES": 204,
}
"""Fields that are asked for, by number: nvidia-ml-py before 12.555 has no name for PCIe's, before 12.560 none for those
of NVLink's fifth generation, which their drivers know or refuse one by one."""
ASKED_FIELDS: Final = tuple((number, _ALL_LINKS) if "NVLINK" in name else number for name, number in FIELDS.items())
"""The same, as the call takes them."""
_SHORT: Final = 1 << 32
"""A counter of PCIe below this may have 32 bits, which are full after 70 ms at full speed: read once a minute, it tells
nothing then. One above it has more."""
_VALUE_FIELDS: Final = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""Members of a field's value, by NVML_VALUE_TYPE_*."""

_THROTTLE_REASONS: Final = {
    "sw_power_cap": "SwPowerCap",
    "sw_thermal": "SwThermalSlowdown",
    "hw_slowdown": "HwSlowdown",
    "hw_thermal": "HwThermalSlowdown",
    "hw_power_brake": "HwPowerBrakeSlowdown",
    "sync_boost": "SyncBoost",
}


class Asked(NamedTuple):
    """A device that is being asked. `rising`: counters of this host; `id`: of the device, the beginning of its keys."""

    nvml: Any
    handle: Any
    rising: Rising
    id: str

    def risen(self, count: float, *key: str) -> float:
        """How much that counter of the device has risen."""
        return self.rising.advance((self.id, *key), count)


class Quantity(NamedTuple):
    """One call. `of_instances`: whether a MIG instance can answer it for itself."""

    name: str
    read: Callable[[Asked], Iterator[Sample]]
    of_instances: bool = False


def _utilization(asked: Asked) -> Iterator[Sample]:
    rates = asked.nvml.nvmlDeviceGetUtilizationRates(asked.handle)
    for task, percent in (("general", rates.gpu), ("memory_controller", rates.memory)):
        yield Sample(names.HW_GPU_UTILIZATION, percent / 100, {names.HW_GPU_TASK: task})


def _encoder(asked: Asked) -> Iterator[Sample]:
    percent = asked.nvml.nvmlDeviceGetEncoderUtilization(asked.handle)[0]
    yield Sample(names.HW_GPU_UTILIZATION, percent / 100, {names.HW_GPU_TASK: "encoder"})


def _decoder(asked: Asked) -> Iterator[Sample]:
    percent = asked.nvml.nvmlDeviceGetDecoderUtilization(asked.handle)[0]
    yield Sample(names.HW_GPU_UTILIZATION, percent / 100, {names.HW_GPU_TASK: "decoder"})


def _memory(asked: Asked) -> Iterator[Sample]:
    memory = asked.nvml.nvmlDeviceGetMemoryInfo(asked.handle)
    if memory.total:  # a device that shares the host's memory has none of its own: zeros, or not supported
        yield Sample(names.HW_GPU_MEMORY_USAGE, memory.used)
        yield Sample(names.HW_GPU_MEMORY_LIMIT, memory.total)
        yield Sample(names.HW_GPU_MEMORY_UTILIZATION, memory.used / memory.total)


def _power(asked: Asked) -> Iterator[Sample]:
    yield Sample(names.HW_POWER, asked.nvml.nvmlDeviceGetPowerUsage(asked.handle) / 1000)


def _energy(asked: Asked) -> Iterator[Sample]:
    millijoules = asked.nvml.nvmlDeviceGetTotalEnergyConsumption(asked.handle)
    yield Sample(names.HW_ENERGY, asked.risen(millijoules, "energy") / 1000)


def _temperature(asked: Asked) -> Iterator[Sample]:
    nvml = asked.nvml
    degrees = nvml.nvmlDeviceGetTemperature(asked.handle, nvml.NVML_TEMPERATURE_GPU)
    yield Sample(names.HW_TEMPERATURE, degrees, {names.HW_SENSOR_LOCATION: "gpu"})


def _temperature_from_cuda_14(asked: Asked) -> Iterator[Sample]:
    nvml = asked.nvml
    degrees = nvml.nvmlDeviceGetTemperatureV(asked.handle, nvml.NVML_TEMPERATURE_GPU)
    yield Sample(names.HW_TEMPERATURE, degrees, {names.HW_SENSOR_LOCATION: "gpu"})


def _sm_clock(asked: Asked) -> Iterator[Sample]:
    megahertz = asked.nvml.nvmlDeviceGetClockInfo(asked.handle, asked.nvml.NVML_CLOCK_SM)
    yield Sample(names.HW_GPU_SPEED, megahertz * 1e6, {names.HW_GPU_CLOCK: "sm"})


def _memory_clock(asked: Asked) -> Iterator[Sample]:
    megahertz = asked.nvml.nvmlDeviceGetClockInfo(asked.handle, asked.nvml.NVML_CLOCK_MEM)
    yield Sample(names.HW_GPU_SPEED, megahertz * 1e6, {names.HW_GPU_CLOCK: "memory"})


def _throttle_reasons(asked: Asked) -> Iterator[Sample]:
    yield from _throttled(asked, asked.nvml.nvmlDeviceGetCurrentClocksEventReasons(asked.handle))


def _throttle_reasons_before_535(asked: Asked) -> Iterator[Sample]:
    yield from _throttled(asked, asked.nvml.nvmlDeviceGetCurrentClocksThrottleReasons(asked.handle))


def _throttled(asked: Asked, reasons: int) -> Iterator[Sample]:
    for reason, name in _THROTTLE_REASONS.items():
        holds = bool(reasons & getattr(asked.nvml, f"nvmlClocksEventReason{name}"))
        yield Sample(names.HW_GPU_THROTTLED, int(holds), {names.HW_GPU_THROTTLE_REASON: reason})


def _corrected(asked: Asked) -> Iterator[Sample]:
    nvml = asked.nvml
    count = nvml.nvmlDeviceGetTotalEccErrors(
        asked.handle, nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, nvml.NVML_VOLATILE_ECC
    )
    yield Sample(names.HW_ERRORS, asked.risen(count, "errors", "corrected"), {names.ERROR_TYPE: "corrected"})


def _uncorrected(asked: Asked) -> Iterator[Sample]:
    nvml = asked.nvml
    count = nvml.nvmlDeviceGetTotalEccErrors(
        asked.handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
    )
    yield Sample(names.HW_ERRORS, asked.risen(count, "errors", "uncorrected"), {names.ERROR_TYPE: "uncorrected"})


def _fields(asked: Asked) -> Iterator[Sample]:
    fields = asked.nvml.nvmlDeviceGetFieldValues(asked.handle, ASKED_FIELDS)
    temperature, *counts = [_value_of(field) for field in fields]
    if temperature:  # a device without the sensor says 0
        yield Sample(names.HW_TEMPERATURE, temperature, {names.HW_SENSOR_LOCATION: "memory"})
    for place, direction in enumerate(("transmit", "receive")):
        pcie, nvlink_kib, nvlink_bytes = counts[place::2]
        nvlink = _bytes_in(nvlink_kib) if nvlink_bytes is None else nvlink_bytes
        for link, count in (("pcie", pcie if (pcie or 0) >= _SHORT else None), ("nvlink", nvlink)):
            if count is not None:
                risen = asked.risen(count, "io", link, direction)
                yield Sample(names.HW_GPU_IO, risen, {names.HW_GPU_LINK: link, names.IO_DIRECTION: direction})


def _bytes_in(kib: float | None) -> float | None:
    return None if kib is None else kib * 1024


def _value_of(field: Any) -> float | None:
    if field.nvmlReturn or not 0 <= field.valueType < len(_VALUE_FIELDS):
        return None
    value: float = getattr(field.value, _VALUE_FIELDS[field.valueType])
    return value


QUANTITIES: Final = (
    Quantity("utilization", _utilization),
    Quantity("encoder", _encoder),
    Quantity("decoder", _decoder),
    Quantity("memory", _memory, of_instances=True),
    Quantity("power", _power),
    Quantity("energy", _energy),
    Quantity("temperature", _temperature),
    Quantity("sm clock", _sm_clock),
    Quantity("memory clock", _memory_clock),
    Quantity("throttle reasons", _throttle_reasons),
    Quantity("corrected errors", _corrected),
    Quantity("uncorrected errors", _uncorrected),
    Quantity("fields", _fields),
)

INSTEAD: Final = {
    "throttle reasons": Quantity("throttle reasons", _throttle_reasons_before_535),
    "temperature": Quantity("temperature", _temperature_from_cuda_14),
}
"""What is asked of a driver that does not know a call."""
