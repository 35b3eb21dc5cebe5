"""NVML without a GPU: `FakeNvml` answers like the module `pynvml`, from the recording of a machine.

A recording is JSON. Values are as in `trainspan.testing.replay`, in the units of NVML:

    {
      "driver_version": "550.90.07",
      "init": ...,                            null, or the error of nvmlInit
      "devices": [{
        "uuid": "GPU-...", "name": "NVIDIA H100 80GB HBM3", "pci_bus_id": "00000000:18:00.0",
        "whole": [[12, {"error": "GPU_IS_LOST"}]],    an error here is that of every call on the device
        "answers": {
          "nvmlDeviceGetPowerUsage": 640000,          by function; what is not there is NOT_SUPPORTED
          "nvmlDeviceGetUtilizationRates": {"gpu": 97, "memory": 41},
          "nvmlDeviceGetClockInfo": {"1": 1755},      by its arguments after the handle, with commas between them
          "nvmlDeviceGetFieldValues": {"82": 71}      by field, or "138:4294967295" where a scope is asked for
        },
        "mig": [{"uuid": "MIG-...", "name": "...", "answers": {...}}]
      }],
      "events": [{"at_s": 12, "device": 1, "type": 8, "value": 79}]
    }

In a real relay it takes the place of the module: a folder on PYTHONPATH with a `pynvml.py` of

    import os, sys, trainspan.testing.fake_nvml as fake
    sys.modules[__name__] = fake.FakeNvml.from_file(os.environ["MACHINE"])
"""

import ctypes
import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from trainspan.testing import replay

CONSTANTS: Final = {
    "NVML_TEMPERATURE_GPU": 0,
    "NVML_CLOCK_SM": 1,
    "NVML_CLOCK_MEM": 2,
    "NVML_MEMORY_ERROR_TYPE_CORRECTED": 0,
    "NVML_MEMORY_ERROR_TYPE_UNCORRECTED": 1,
    "NVML_VOLATILE_ECC": 0,
    "NVML_DEVICE_MIG_ENABLE": 1,
    "NVML_VALUE_TYPE_DOUBLE": 0,
    "NVML_VALUE_TYPE_UNSIGNED_INT": 1,
    "NVML_VALUE_TYPE_UNSIGNED_LONG": 2,
    "NVML_VALUE_TYPE_UNSIGNED_LONG_LONG": 3,
    "NVML_VALUE_TYPE_SIGNED_LONG_LONG": 4,
    "nvmlEventTypeXidCriticalError": 8,
    "nvmlClocksEventReasonSwPowerCap": 0x04,
    "nvmlClocksEventReasonHwSlowdown": 0x08,
    "nvmlClocksEventReasonSyncBoost": 0x10,
    "nvmlClocksEventReasonSwThermalSlowdown": 0x20,
    "nvmlClocksEventReasonHwThermalSlowdown": 0x40,
    "nvmlClocksEventReasonHwPowerBrakeSlowdown": 0x80,
}
"""Those of nvidia-ml-py that are asked for."""

ERRORS: Final = {
    "UNINITIALIZED": 1,
    "INVALID_ARGUMENT": 2,
    "NOT_SUPPORTED": 3,
    "NO_PERMISSION": 4,
    "ALREADY_INITIALIZED": 5,
    "NOT_FOUND": 6,
    "INSUFFICIENT_SIZE": 7,
    "INSUFFICIENT_POWER": 8,
    "DRIVER_NOT_LOADED": 9,
    "TIMEOUT": 10,
    "IRQ_ISSUE": 11,
    "LIBRARY_NOT_FOUND": 12,
    "FUNCTION_NOT_FOUND": 13,
    "CORRUPTED_INFOROM": 14,
    "GPU_IS_LOST": 15,
    "RESET_REQUIRED": 16,
    "OPERATING_SYSTEM": 17,
    "LIB_RM_VERSION_MISMATCH": 18,
    "IN_USE": 19,
    "MEMORY": 20,
    "NO_DATA": 21,
    "VGPU_ECC_NOT_SUPPORTED": 22,
    "INSUFFICIENT_RESOURCES": 23,
    "FREQ_NOT_SUPPORTED": 24,
    "ARGUMENT_VERSION_MISMATCH": 25,
    "DEPRECATED": 26,
    "NOT_READY": 27,
    "GPU_NOT_FOUND": 28,
    "INVALID_STATE": 29,
    "UNKNOWN": 999,
}
"""NVML's errors, without `NVML_ERROR_`."""


class NVMLError(Exception):
    """As pynvml's: `NVMLError(15)` is an `NVMLError_GpuIsLost`, and its `value` is 15."""

    value: int

    def __new__(cls, value: int | None = None) -> "NVMLError":
        made = super().__new__(_CLASSES.get(value, cls) if cls is NVMLError else cls)
        if value is not None:
            made.value = value
        return made

    def __init__(self, *_: Any):
        super().__init__()

    def __str__(self) -> str:
        return next((name for name, code in ERRORS.items() if code == self.value), f"error {self.value}")


def _class_of(name: str, code: int) -> type[NVMLError]:
    words = "".join(word.capitalize() for word in name.split("_"))
    return type(f"NVMLError_{words}", (NVMLError,), {"value": code})


_CLASSES: dict[int | None, type[NVMLError]] = {}
_CLASSES.update({code: _class_of(name, code) for name, code in ERRORS.items()})


class FakeDevice:
    """What the fake hands out for a handle."""

    def __init__(self, recorded: dict[str, Any], parent: "FakeDevice | None" = None):
        self.recorded = recorded
        self.parent = parent
        self.contents = ctypes.c_int()  # a handle of the real one is a pointer, which is told from others by this
        self.instances = [FakeDevice(instance, self) for instance in recorded.get("mig", ())]


class FakeNvml:
    """A recorded machine, asked by the functions of `pynvml`.

    Args:
        machine: the recording.
        seconds: the time; the recording begins at its first reading.
        fails: `fails("nvmlDeviceGetPowerUsage")` is an error code that call raises, or None.
        sleep: returns after so many seconds, for the calls that take their time.

    Attributes:
        calls: how often each function was called.
    """

    NVMLError = NVMLError

    def __init__(
        self,
        machine: dict[str, Any],
        seconds: Callable[[], float] = time.monotonic,
        fails: Callable[[str], int | None] = lambda _: None,
        sleep: Callable[[float], None] = time.sleep,
    ):
        self.calls: Counter[str] = Counter()
        self._machine = machine
        self._seconds = seconds
        self._begun = seconds()
        self._fails = fails
        self._sleep = sleep
        self._references = 0
        self._devices = [FakeDevice(device) for device in machine["devices"]]
        self._told = 0  # events that were handed out

    @classmethod
    def from_file(cls, path: str | Path, **options: Any) -> "FakeNvml":
        """The machine that was recorded into `path`."""
        return cls(json.loads(Path(path).read_text()), **options)

    def __getattr__(self, name: str) -> Any:
        if name in CONSTANTS:
            return CONSTANTS[name]
        if name.startswith("NVML_ERROR_") and name[11:] in ERRORS:
            return ERRORS[name[11:]]
        if name.startswith("NVMLError_"):
            return next(kind for kind in _CLASSES.values() if kind.__name__ == name)
        raise AttributeError(name)

    def nvmlInit(self) -> None:
        self._call("nvmlInit", initialized=False)
        self._answer(self._machine.get("init"))
        self._references += 1

    def nvmlShutdown(self) -> None:
        self._call("nvmlShutdown")
        self._references -= 1

    def nvmlSystemGetDriverVersion(self) -> Any:
        self._call("nvmlSystemGetDriverVersion")
        return self._answer(self._machine["driver_version"])

    def nvmlDeviceGetCount(self) -> int:
        self._call("nvmlDeviceGetCount")
        return len(self._devices)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeDevice:
        self._call("nvmlDeviceGetHandleByIndex")
        if not 0 <= index < len(self._devices):
            raise NVMLError(ERRORS["INVALID_ARGUMENT"])
        self._answer(self._devices[index].recorded.get("whole"))
        return self._devices[index]

    def nvmlDeviceGetUUID(self, handle: FakeDevice) -> Any:
        self._ask("nvmlDeviceGetUUID", handle)
        return handle.recorded["uuid"]

    def nvmlDeviceGetName(self, handle: FakeDevice) -> Any:
        self._ask("nvmlDeviceGetName", handle)
        return handle.recorded["name"]

    def nvmlDeviceGetPciInfo(self, handle: FakeDevice) -> Any:
        self._ask("nvmlDeviceGetPciInfo", handle)
        return SimpleNamespace(busId=(handle.parent or handle).recorded["pci_bus_id"])

    def nvmlDeviceGetMigMode(self, device: FakeDevice) -> Any:
        return self._recorded("nvmlDeviceGetMigMode", device)

    def nvmlDeviceGetMaxMigDeviceCount(self, device: FakeDevice) -> int:
        self._ask("nvmlDeviceGetMaxMigDeviceCount", device)
        return 7 if device.instances else 0

    def nvmlDeviceGetMigDeviceHandleByIndex(self, device: FakeDevice, index: int) -> FakeDevice:
        self._ask("nvmlDeviceGetMigDeviceHandleByIndex", device)
        if index >= len(device.instances):
            raise NVMLError(ERRORS["NOT_FOUND"])
        return device.instances[index]

    def nvmlDeviceGetUtilizationRates(self, handle: FakeDevice) -> Any:
        return SimpleNamespace(**self._recorded("nvmlDeviceGetUtilizationRates", handle))

    def nvmlDeviceGetEncoderUtilization(self, handle: FakeDevice) -> Any:
        return self._recorded("nvmlDeviceGetEncoderUtilization", handle)

    def nvmlDeviceGetDecoderUtilization(self, handle: FakeDevice) -> Any:
        return self._recorded("nvmlDeviceGetDecoderUtilization", handle)

    def nvmlDeviceGetMemoryInfo(self, handle: FakeDevice, version: int | None = None) -> Any:
        return SimpleNamespace(**self._recorded("nvmlDeviceGetMemoryInfo", handle))

    def nvmlDeviceGetPowerUsage(self, handle: FakeDevice) -> Any:
        return self._recorded("nvmlDeviceGetPowerUsage", handle)

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: FakeDevice) -> Any:
        return self._recorded("nvmlDeviceGetTotalEnergyConsumption", handle)

    def nvmlDeviceGetTemperature(self, handle: FakeDevice, sensor: int) -> Any:
        return self._recorded("nvmlDeviceGetTemperature", handle, sensor)

    def nvmlDeviceGetTemperatureV(self, handle: FakeDevice, sensor: int, version: int = 0) -> Any:
        return self._recorded("nvmlDeviceGetTemperatureV", handle, sensor)

    def nvmlDeviceGetClockInfo(self, handle: FakeDevice, type: int) -> Any:
        return self._recorded("nvmlDeviceGetClockInfo", handle, type)

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: FakeDevice) -> Any:
        return self._recorded("nvmlDeviceGetCurrentClocksEventReasons", handle)

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: FakeDevice) -> Any:
        return self._recorded("nvmlDeviceGetCurrentClocksThrottleReasons", handle)

    def nvmlDeviceGetTotalEccErrors(self, handle: FakeDevice, errorType: int, counterType: int) -> Any:
        return self._recorded("nvmlDeviceGetTotalEccErrors", handle, errorType, counterType)

    def nvmlDeviceGetRemappedRows(self, device: FakeDevice) -> Any:
        return self._recorded("nvmlDeviceGetRemappedRows", device)

    def nvmlDeviceGetFieldValues(self, handle: FakeDevice, fieldIds: Sequence[Any]) -> Any:
        answers = self._recorded("nvmlDeviceGetFieldValues", handle)
        return [self._field(answers, field) for field in fieldIds]

    def nvmlEventSetCreate(self) -> list[FakeDevice]:
        self._call("nvmlEventSetCreate")
        return []

    def nvmlDeviceRegisterEvents(self, handle: FakeDevice, eventTypes: int, eventSet: list[FakeDevice]) -> None:
        self._ask("nvmlDeviceRegisterEvents", handle)
        eventSet.append(handle)

    def nvmlEventSetWait_v2(self, eventSet: list[FakeDevice], timeoutms: int) -> Any:
        self._call("nvmlEventSetWait_v2")
        events = self._machine.get("events", ())
        if self._told < len(events) and events[self._told]["at_s"] <= self._seconds() - self._begun:
            event = events[self._told]
            self._told += 1
            device = self._devices[event["device"]]
            if device in eventSet:
                return SimpleNamespace(device=device, eventType=event["type"], eventData=event["value"])
        raise NVMLError(ERRORS["TIMEOUT"])

    def nvmlEventSetFree(self, eventSet: list[FakeDevice]) -> None:
        self._call("nvmlEventSetFree")
        eventSet.clear()

    def _call(self, function: str, *, initialized: bool = True) -> None:
        self.calls[function] += 1
        code = self._fails(function)
        if code is not None:
            raise NVMLError(code)
        if initialized and not self._references:
            raise NVMLError(ERRORS["UNINITIALIZED"])

    def _ask(self, function: str, device: FakeDevice) -> None:
        self._call(function)
        self._answer((device.parent or device).recorded.get("whole"))

    def _recorded(self, function: str, device: FakeDevice, *arguments: int) -> Any:
        self._ask(function, device)
        found = self._answer(device.recorded["answers"].get(function, {"error": "NOT_SUPPORTED"}))
        if not arguments:
            return found
        return self._answer(found.get(",".join(map(str, arguments)), {"error": "NOT_SUPPORTED"}))

    def _field(self, answers: dict[str, Any], field: Any) -> SimpleNamespace:
        number, scope = field if isinstance(field, tuple) else (field, None)
        key = str(number) if scope is None else f"{number}:{scope}"
        found = SimpleNamespace(fieldId=number, nvmlReturn=0, valueType=CONSTANTS["NVML_VALUE_TYPE_UNSIGNED_LONG_LONG"])
        try:
            found.value = SimpleNamespace(ullVal=self._answer(answers.get(key, {"error": "NOT_SUPPORTED"})))
        except NVMLError as error:
            found.nvmlReturn = error.value
        return found

    def _answer(self, value: Any) -> Any:
        try:
            return replay.at(value, self._seconds() - self._begun)
        except replay.Refusal as refusal:
            if refusal.after_s:
                self._sleep(refusal.after_s)
            raise NVMLError(ERRORS[str(refusal)]) from None
