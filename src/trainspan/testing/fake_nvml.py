"""NVML without a GPU: the module `pynvml` itself, and below it, in the place of NVIDIA's library, a recorded machine.

A recording is JSON. Values are as in `trainspan.testing.replay`, in the units of NVML:

    {
      "driver_version": "550.90.07",
      "init": ...,                            null, or the error of nvmlInitWithFlags
      "devices": [{
        "uuid": "GPU-...", "name": "NVIDIA H100 80GB HBM3", "pci_bus_id": "00000000:18:00.0",
        "whole": [[12, {"error": "GPU_IS_LOST"}]],    an error here is that of every call on the device
        "answers": {
          "nvmlDeviceGetPowerUsage": 640000,          by function; what is not there is NOT_SUPPORTED
          "nvmlDeviceGetUtilizationRates": {"gpu": 97, "memory": 41},
          "nvmlDeviceGetClockInfo": {"1": 1755},      by its arguments after the handle, with commas between them
          "nvmlDeviceGetFieldValues": {"82": 71}      by field, or "138:4294967295" where a scope is asked for
        },
        "mig": [{"uuid": "MIG-...", "name": "...", "answers": {...}}, null]      null: that place is free
      }],
      "events": [{"at_s": 12, "device": 1, "type": 8, "value": 79}]
    }

In a real relay it takes the place of the module: a folder on PYTHONPATH with a `pynvml.py` of

    import os, sys, trainspan.testing.fake_nvml as fake
    sys.modules[__name__] = fake.FakeNvml.from_file(os.environ["MACHINE"])
"""

import ctypes
import json
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import cache, partial
from importlib.machinery import SourceFileLoader
from importlib.metadata import distribution
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from trainspan.testing import replay

_MOST_INSTANCES: Final = 7
_UNSIGNED_LONG_LONG: Final = 3
"""NVML_VALUE_TYPE_UNSIGNED_LONG_LONG."""


class FakeDevice:
    """A device, or a MIG instance of one; a handle points to its `place`."""

    def __init__(self, recorded: dict[str, Any], parent: "FakeDevice | None" = None):
        self.recorded = recorded
        self.parent = parent
        self.place = ctypes.c_uint64()
        parts: list[dict[str, Any] | None] = recorded.get("mig", [])
        self.instances = [None if part is None else FakeDevice(part, self) for part in parts]

    def point(self, handle: Any) -> None:
        """Let `handle`, a pointer to what only the driver knows, point here."""
        handle.contents = type(handle)._type_.from_buffer(self.place)


class FakeDriver:
    """NVIDIA's library on a recorded machine: its functions as C has them, by `getattr`.

    Attributes:
        calls: how often each function was called.
        machine: the recording; it may be changed as one goes.
        devices: those it has.
        fails: `fails("nvmlDeviceGetPowerUsage")` is an error code which that call answers with, or None.
    """

    def __init__(
        self,
        machine: dict[str, Any],
        seconds: Callable[[], float],
        fails: Callable[[str], int | None],
        sleep: Callable[[float], None],
    ):
        self.calls: Counter[str] = Counter()
        self.machine = machine
        self.devices = [FakeDevice(device) for device in machine["devices"]]
        self.fails = fails
        self._seconds = seconds
        self._begun = seconds()
        self._sleep = sleep
        self._references = 0
        self._listening: list[FakeDevice] = []
        self._told = 0  # events that were handed out
        self._own: dict[str, Callable[..., None]] = {
            "nvmlInitWithFlags": self._init,
            "nvmlShutdown": self._shut_down,
            "nvmlErrorString": self._no_text,
            "nvmlSystemGetDriverVersion": self._driver_version,
            "nvmlDeviceGetCount_v2": self._count,
            "nvmlDeviceGetHandleByIndex_v2": self._handle,
            "nvmlDeviceGetUUID": partial(self._text, "uuid"),
            "nvmlDeviceGetName": partial(self._text, "name"),
            "nvmlDeviceGetPciInfo_v3": self._pci_info,
            "nvmlDeviceGetMaxMigDeviceCount": self._most_instances,
            "nvmlDeviceGetMigDeviceHandleByIndex": self._instance,
            "nvmlDeviceGetTemperatureV": self._temperature,
            "nvmlDeviceGetFieldValues": self._field_values,
            "nvmlEventSetCreate": self._listen_to_none,
            "nvmlDeviceRegisterEvents": self._listen,
            "nvmlEventSetWait_v2": self._next_event,
            "nvmlEventSetFree": self._listen_to_none,
        }

    def __getattr__(self, function: str) -> Callable[..., int | None]:
        if not function.startswith("nvml"):
            raise AttributeError(function)
        return partial(self._called, function)

    def _called(self, function: str, *arguments: Any) -> int | None:
        """The error code, and the answer in what `arguments` point to."""
        self.calls[function] += 1
        code = self.fails(function)
        if code is not None:
            return code
        try:
            if not self._references and function not in ("nvmlInitWithFlags", "nvmlErrorString"):
                _refuse("UNINITIALIZED")
            self._own.get(function, partial(self._recorded, function))(*arguments)
        except replay.Refusal as refusal:
            if refusal.after_s:
                self._sleep(refusal.after_s)
            return None if function == "nvmlErrorString" else error_code(str(refusal))
        return 0

    def _init(self, _flags: int) -> None:
        self._now(self.machine.get("init"))
        self._references += 1

    def _shut_down(self) -> None:
        self._references -= 1

    def _no_text(self, _code: int) -> None:
        _refuse("NOT_SUPPORTED")

    def _driver_version(self, text: Any, _size: Any) -> None:
        text.value = self._now(self.machine["driver_version"]).encode()

    def _count(self, count: Any) -> None:
        count._obj.value = len(self.devices)

    def _handle(self, index: Any, handle: Any) -> None:
        if not 0 <= index.value < len(self.devices):
            _refuse("INVALID_ARGUMENT")
        self._now(self.devices[index.value].recorded.get("whole"))
        self.devices[index.value].point(handle._obj)

    def _text(self, what: str, handle: Any, text: Any, _size: Any) -> None:
        text.value = self._asked(handle).recorded[what].encode()

    def _pci_info(self, handle: Any, info: Any) -> None:
        told = self._asked(handle).recorded.get("pci_bus_id")
        info._obj.busId = (told or _refuse("NOT_SUPPORTED")).encode()

    def _most_instances(self, handle: Any, count: Any) -> None:
        count._obj.value = _MOST_INSTANCES if self._asked(handle).instances else 0

    def _instance(self, handle: Any, index: Any, instance: Any) -> None:
        found = dict(enumerate(self._asked(handle).instances)).get(index.value)
        (found or _refuse("NOT_FOUND")).point(instance._obj)

    def _temperature(self, handle: Any, asked: Any) -> None:
        asked._obj.temperature = self._answer("nvmlDeviceGetTemperatureV", handle, (asked._obj.sensorType,))

    def _field_values(self, handle: Any, _count: Any, fields: Any) -> None:
        answers = self._answer("nvmlDeviceGetFieldValues", handle)
        for field in fields._obj:
            key = f"{field.fieldId}:{field.scopeId}" if field.scopeId else str(field.fieldId)
            try:
                told = self._now(answers.get(key, {"error": "NOT_SUPPORTED"}))
                field.valueType, field.value.ullVal = _UNSIGNED_LONG_LONG, told
            except replay.Refusal as refusal:
                field.nvmlReturn = error_code(str(refusal))

    def _listen_to_none(self, _events: Any) -> None:
        self._listening = []

    def _listen(self, handle: Any, _types: Any, _events: Any) -> None:
        self._listening.append(self._asked(handle))

    def _next_event(self, _events: Any, told: Any, _timeout: Any) -> None:
        events = self.machine.get("events", ())
        if self._told == len(events) or events[self._told]["at_s"] > self._seconds() - self._begun:
            _refuse("TIMEOUT")
        event = events[self._told]
        self._told += 1
        device = self.devices[event["device"]]
        if device not in self._listening:
            _refuse("TIMEOUT")
        device.point(told._obj.device)
        told._obj.eventType, told._obj.eventData = event["type"], event["value"]

    def _recorded(self, function: str, handle: Any, *arguments: Any) -> None:
        """Any other function: what is recorded for it, into what it was given pointers to."""
        outs = [argument._obj for argument in arguments if hasattr(argument, "_obj")]
        ins = [getattr(argument, "value", argument) for argument in arguments if not hasattr(argument, "_obj")]
        told = self._answer(function, handle, ins)
        if isinstance(told, dict):
            for name, value in told.items():
                setattr(outs[0], name, value)
        else:
            for out, value in zip(outs, told if isinstance(told, list) else [told], strict=True):
                out.value = value

    def _answer(self, function: str, handle: Any, arguments: Any = ()) -> Any:
        device = self._asked(handle)
        found = self._now(device.recorded["answers"].get(function, {"error": "NOT_SUPPORTED"}))
        if not arguments:
            return found
        return self._now(found.get(",".join(map(str, arguments)), {"error": "NOT_SUPPORTED"}))

    def _asked(self, handle: Any) -> FakeDevice:
        """The device that `handle` points to."""
        address = ctypes.addressof(handle.contents)
        every = [part for device in self.devices for part in (device, *device.instances) if part is not None]
        found = next((device for device in every if ctypes.addressof(device.place) == address), None)
        device = found or _refuse("INVALID_ARGUMENT")
        self._now((device.parent or device).recorded.get("whole"))
        return device

    def _now(self, value: Any) -> Any:
        return replay.at(value, self._seconds() - self._begun)


class FakeNvml:
    """A recorded machine, asked through the module `pynvml`: all of that is its own.

    Args:
        machine: the recording.
        seconds: the time; the recording begins at its first reading.
        fails: as `FakeDriver.fails`.
        sleep: returns after so many seconds, for the calls that take their time.

    Attributes:
        driver: what stands in the place of NVIDIA's library.
        module: the module, for this machine alone.
    """

    def __init__(
        self,
        machine: dict[str, Any],
        seconds: Callable[[], float] = time.monotonic,
        fails: Callable[[str], int | None] = lambda _: None,
        sleep: Callable[[float], None] = time.sleep,
    ):
        self.driver = FakeDriver(machine, seconds, fails, sleep)
        self.module = _another_pynvml()
        self.module.nvmlLib = self.driver

    @classmethod
    def from_file(cls, path: str | Path, **options: Any) -> "FakeNvml":
        """The machine that was recorded into `path`."""
        return cls(json.loads(Path(path).read_text()), **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.module, name)


def error_code(name: str) -> int:
    """NVML's error of that name, which is without its `NVML_ERROR_`."""
    return errors()[name]


@cache
def errors() -> dict[str, int]:
    """All of NVML's errors, by name."""
    return {name[11:]: code for name, code in vars(_another_pynvml()).items() if name.startswith("NVML_ERROR_")}


def _another_pynvml() -> Any:
    """The module as it is installed, whatever stands in its place on the path, once more: it remembers its library."""
    module = ModuleType(f"{__name__}.pynvml")
    path = str(distribution("nvidia-ml-py").locate_file("pynvml.py"))
    sys.modules[module.__name__] = module  # where it looks for itself
    try:
        SourceFileLoader(module.__name__, path).exec_module(module)
    finally:
        del sys.modules[module.__name__]
    return module


def _refuse(error: str) -> Any:
    raise replay.Refusal(error, 0)
