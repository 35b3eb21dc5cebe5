"""Records the GPUs of a machine, for `FakeNvml` to replay: what each call that we make answers, once."""

from collections.abc import Callable
from typing import Any, Final

from trainspan.relay.probes.nvml_quantities import ASKED_FIELDS
from trainspan.testing.fake_nvml import errors

_STRUCTS: Final = {
    "nvmlDeviceGetUtilizationRates": ("gpu", "memory"),
    "nvmlDeviceGetMemoryInfo": ("total", "free", "used"),
}
_PLAIN: Final = (
    *("nvmlDeviceGetMigMode", "nvmlDeviceGetEncoderUtilization", "nvmlDeviceGetDecoderUtilization"),
    *("nvmlDeviceGetPowerUsage", "nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetRemappedRows"),
    *("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"),
)
_WITH_ARGUMENTS: Final = {
    "nvmlDeviceGetTemperature": ((0,),),
    "nvmlDeviceGetClockInfo": ((1,), (2,)),
    "nvmlDeviceGetTotalEccErrors": ((0, 0), (1, 0)),
}
_MEMBERS: Final = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")


def recording_of(nvml: Any) -> dict[str, Any]:
    """The recording of this machine, as `FakeNvml` reads it.

    Args:
        nvml: the module `pynvml`, initialized.

    Raises:
        pynvml.NVMLError: the machine cannot be asked at all.
    """
    handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    devices = [{**_device(nvml, handle), "mig": _instances(nvml, handle)} for handle in handles]
    return {"driver_version": _text(nvml.nvmlSystemGetDriverVersion()), "devices": devices}


def _device(nvml: Any, handle: Any) -> dict[str, Any]:
    return {**_named(nvml, handle), "pci_bus_id": _text(nvml.nvmlDeviceGetPciInfo(handle).busId)}


def _named(nvml: Any, handle: Any) -> dict[str, Any]:
    names = {"uuid": _text(nvml.nvmlDeviceGetUUID(handle)), "name": _text(nvml.nvmlDeviceGetName(handle))}
    return {**names, "answers": _answers(nvml, handle)}


def _instances(nvml: Any, handle: Any) -> list[dict[str, Any]]:
    """Its MIG instances, which have no place on the bus of their own."""
    try:
        places = range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle))
    except nvml.NVMLError:
        return []  # a card without MIG
    found = []
    for place in places:
        try:
            instance = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, place)
        except nvml.NVMLError:
            continue  # there are fewer than there might be, and a place between two may be free
        found.append(_named(nvml, instance))
    return found


def _answers(nvml: Any, handle: Any) -> dict[str, Any]:
    def ask(name: str, *arguments: Any) -> Any:
        return _answer(nvml, lambda: getattr(nvml, name)(handle, *arguments))

    answers: dict[str, Any] = {name: _plain(ask(name)) for name in _PLAIN}
    for name, members in _STRUCTS.items():
        found = ask(name)
        answers[name] = found if isinstance(found, dict) else {member: getattr(found, member) for member in members}
    for name, calls in _WITH_ARGUMENTS.items():
        answers[name] = {",".join(map(str, arguments)): ask(name, *arguments) for arguments in calls}
    fields = ask("nvmlDeviceGetFieldValues", ASKED_FIELDS)
    answers["nvmlDeviceGetFieldValues"] = (
        fields if isinstance(fields, dict) else dict(map(_field, ASKED_FIELDS, fields))
    )
    return answers


def _answer(nvml: Any, call: Callable[[], Any]) -> Any:
    """What it answers, or the error it answers with."""
    try:
        return call()
    except nvml.NVMLError as error:
        return {"error": _name_of(error.value)}
    except AttributeError:
        return {"error": "FUNCTION_NOT_FOUND"}


def _field(asked: Any, found: Any) -> tuple[str, Any]:
    key = ":".join(map(str, asked)) if isinstance(asked, tuple) else str(asked)
    if found.nvmlReturn:
        return key, {"error": _name_of(found.nvmlReturn)}
    return key, getattr(found.value, _MEMBERS[found.valueType])


def _name_of(code: int) -> str:
    return next((name for name, known in errors().items() if known == code), "UNKNOWN")


def _plain(found: Any) -> Any:
    return list(found) if isinstance(found, tuple) else found


def _text(told: str | bytes) -> str:
    return told.decode() if isinstance(told, bytes) else told
