"""AMD SMI without a GPU: `FakeAmdSmi` answers like the module `amdsmi`, from the recording of a machine.

A recording is JSON. Values are as in `trainspan.testing.replay`, and an error is the name of a status without
`AMDSMI_STATUS_`:

    {
      "init": ...,                       null, or the error of amdsmi_init
      "devices": [{
        "uuid": "abff74a1-...", "bdf": "0000:0c:00.0",
        "answers": {
          "amdsmi_get_energy_count": {"energy_accumulator": ..., "counter_resolution": 15.3, "timestamp": ...},
          "amdsmi_get_temp_metric": {"HOTSPOT": 71, "VRAM": 64},
          "amdsmi_get_clock_info": {"GFX": {"clk": 2107}, "MEM": {"clk": 1300}}
        }
      }]
    }
"""

import json
import time
from collections import Counter
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path
from typing import Any, Final

from trainspan.testing import replay

ERRORS: Final = {
    "NOT_SUPPORTED": 2,
    "NOT_YET_IMPLEMENTED": 3,
    "TIMEOUT": 8,
    "NO_PERM": 10,
    "IO": 12,
    "BUSY": 30,
    "NOT_FOUND": 31,
    "DRIVER_NOT_LOADED": 34,
    "NO_DATA": 40,
}


class AmdSmiLibraryException(Exception):
    """As amdsmi's: its text has the name of the status."""

    def __init__(self, err_code: int):
        super().__init__(err_code)
        self.err_code = err_code

    def __str__(self) -> str:
        name = next((name for name, code in ERRORS.items() if code == self.err_code), "UNKNOWN_ERROR")
        return f"Error code:\n\t{self.err_code} | AMDSMI_STATUS_{name}"


class FakeAmdSmi:
    """A recorded machine, asked by the functions of `amdsmi`.

    Args:
        machine: the recording.
        seconds: the time; the recording begins at its first reading.
        fails: `fails("amdsmi_get_power_info")` is an error code that call raises, or None.
        sleep: returns after so many seconds, for the calls that take their time.

    Attributes:
        calls: how often each function was called.
    """

    AmdSmiLibraryException = AmdSmiLibraryException
    AmdSmiTemperatureType = IntEnum("AmdSmiTemperatureType", {"EDGE": 0, "HOTSPOT": 1, "VRAM": 2})
    AmdSmiTemperatureMetric = IntEnum("AmdSmiTemperatureMetric", {"CURRENT": 0})
    AmdSmiClkType = IntEnum("AmdSmiClkType", {"GFX": 0, "MEM": 4})

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
        self._open = False

    @classmethod
    def from_file(cls, path: str | Path, **options: Any) -> "FakeAmdSmi":
        """The machine that was recorded into `path`."""
        return cls(json.loads(Path(path).read_text()), **options)

    def amdsmi_init(self) -> None:
        self._call("amdsmi_init", is_open=True)
        self._answer(self._machine.get("init"))
        self._open = True

    def amdsmi_shut_down(self) -> None:
        self._call("amdsmi_shut_down")
        self._open = False

    def amdsmi_get_processor_handles(self) -> list[dict[str, Any]]:
        self._call("amdsmi_get_processor_handles")
        return list(self._machine["devices"])

    def amdsmi_get_gpu_device_uuid(self, processor_handle: dict[str, Any]) -> Any:
        self._call("amdsmi_get_gpu_device_uuid")
        return processor_handle["uuid"]

    def amdsmi_get_gpu_device_bdf(self, processor_handle: dict[str, Any]) -> Any:
        self._call("amdsmi_get_gpu_device_bdf")
        return processor_handle["bdf"]

    def amdsmi_get_gpu_asic_info(self, processor_handle: dict[str, Any]) -> Any:
        return self._recorded("amdsmi_get_gpu_asic_info", processor_handle)

    def amdsmi_get_gpu_driver_info(self, processor_handle: dict[str, Any]) -> Any:
        return self._recorded("amdsmi_get_gpu_driver_info", processor_handle)

    def amdsmi_get_gpu_activity(self, processor_handle: dict[str, Any]) -> Any:
        return self._recorded("amdsmi_get_gpu_activity", processor_handle)

    def amdsmi_get_gpu_vram_usage(self, processor_handle: dict[str, Any]) -> Any:
        return self._recorded("amdsmi_get_gpu_vram_usage", processor_handle)

    def amdsmi_get_power_info(self, processor_handle: dict[str, Any]) -> Any:
        return self._recorded("amdsmi_get_power_info", processor_handle)

    def amdsmi_get_energy_count(self, processor_handle: dict[str, Any]) -> Any:
        return self._recorded("amdsmi_get_energy_count", processor_handle)

    def amdsmi_get_temp_metric(self, processor_handle: dict[str, Any], sensor_type: IntEnum, metric: IntEnum) -> Any:
        return self._recorded("amdsmi_get_temp_metric", processor_handle, sensor_type.name)

    def amdsmi_get_clock_info(self, processor_handle: dict[str, Any], clock_type: IntEnum) -> Any:
        return self._recorded("amdsmi_get_clock_info", processor_handle, clock_type.name)

    def amdsmi_get_gpu_total_ecc_count(self, processor_handle: dict[str, Any]) -> Any:
        return self._recorded("amdsmi_get_gpu_total_ecc_count", processor_handle)

    def _call(self, function: str, *, is_open: bool | None = None) -> None:
        self.calls[function] += 1
        code = self._fails(function)
        if code is None and not (self._open if is_open is None else is_open):
            code = 32  # AMDSMI_STATUS_NOT_INIT
        if code is not None:
            raise AmdSmiLibraryException(code)

    def _recorded(self, function: str, device: dict[str, Any], *arguments: str) -> Any:
        self._call(function)
        found = self._answer(device["answers"].get(function, {"error": "NOT_SUPPORTED"}))
        for argument in arguments:
            found = self._answer(found.get(argument, {"error": "NOT_SUPPORTED"}))
        if isinstance(found, dict):
            return {name: self._answer(value) for name, value in found.items()}
        return found

    def _answer(self, value: Any) -> Any:
        try:
            return replay.at(value, self._seconds() - self._begun)
        except replay.Refusal as refusal:
            if refusal.after_s:
                self._sleep(refusal.after_s)
            raise AmdSmiLibraryException(ERRORS[str(refusal)]) from None
