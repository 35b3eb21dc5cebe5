"""NVIDIA's GPUs, read through NVML (the module `pynvml` of nvidia-ml-py, which is pure Python).

Nothing is asked that a device has refused for good, and a device that has fallen off the bus is left alone. Once a
minute the driver is opened anew where it was not there or has lost a device. What is said of it is said once.

Cost: see `scripts/bench gpu_probe`; 14 calls a device.
"""

import contextlib
import ctypes
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from time import monotonic_ns
from typing import Any, Final

from trainspan import guard, names
from trainspan.relay.probes.nvml_quantities import INSTEAD, QUANTITIES, Asked, Quantity
from trainspan.relay.probes.probe import (
    REST_SHARE,
    RETRY_NS,
    SLOW_NS,
    Complain,
    Gpu,
    Reading,
    Rising,
    Sample,
    said_of_slow,
)

_MOST_EVENTS: Final = 64
"""Events taken from the driver at one look."""

_UNKNOWN: Final = ("FUNCTION_NOT_FOUND", "DEPRECATED")
"""Of a driver before that call, or after it: from 590 on one says so of what CUDA 13.0 deprecated."""
_REFUSED: Final = ("NOT_SUPPORTED", "NO_PERMISSION", "INVALID_ARGUMENT", "VGPU_ECC_NOT_SUPPORTED", *_UNKNOWN)
_LOST: Final = ("GPU_IS_LOST", "RESET_REQUIRED")
_GONE: Final = ("UNINITIALIZED", "DRIVER_NOT_LOADED", "LIBRARY_NOT_FOUND", "LIB_RM_VERSION_MISMATCH")


@dataclass(slots=True)
class _Device:
    """A device and what it answers.

    `handle`: None: it is lost. `tells_rows`: which rows of its memory were replaced. `state`: as of its last answer.
    """

    gpu: Gpu
    handle: Any
    quantities: list[Quantity]
    unsupported: list[str] = field(default_factory=list)
    tells_rows: bool = True
    state: str = "ok"


class NvmlProbe:
    """A `Probe` of NVIDIA's driver.

    Args:
        complain: told what keeps something from being read.
        load: gives the module `pynvml`.
        clock: monotonic ns, for how long a call takes.
    """

    def __init__(
        self,
        complain: Complain = guard.warn_once,
        load: Callable[[], Any] = lambda: import_module("pynvml"),
        clock: Callable[[], int] = monotonic_ns,
    ):
        self._complain = complain
        self._load = load
        self._clock = clock
        self._nvml: Any = None  # None: not open
        self._why: str | None = None
        self._retry_ns = 0
        self._devices: dict[str, _Device] = {}
        self._unlisted = False  # whether there is one that has not answered yet
        self._events: Any = None
        self._rising = Rising()

    def gpus(self, now_ns: int) -> Sequence[Gpu]:
        """The GPUs of this host, each before its MIG instances; none while the driver is not there."""
        missing = self._unlisted or any(device.handle is None for device in self._devices.values())
        if now_ns >= self._retry_ns and (self._nvml is None or missing):
            begun_ns = self._clock()
            self._guarded(self._open)
            self._retry_ns = now_ns + max(RETRY_NS, REST_SHARE * (self._clock() - begun_ns))
        self._guarded(self._take_events)
        return [] if self._nvml is None else [device.gpu for device in self._devices.values()]

    def read(self, gpu: Gpu, now_ns: int, *, asks: bool = True) -> Reading | None:
        """What that device says now; a lost one says only that it has failed."""
        device = self._devices.get(gpu.id)
        if device is None or self._nvml is None:
            return None
        samples = self._asked(device, now_ns) if asks else []
        if self._nvml is None:
            return None
        if gpu.parent is None:
            samples += self._xids(gpu)
            samples += _status(device.state)
        values = {sample.metric: sample.value for sample in samples}
        return Reading(gpu, now_ns, tuple(samples), values.get(names.HW_ENERGY), values.get(names.HW_POWER))

    def unsupported(self, gpu: Gpu) -> Sequence[str]:
        """What that device has refused to tell, in words."""
        return tuple(self._devices[gpu.id].unsupported) if gpu.id in self._devices else ()

    def why_none(self) -> str | None:
        return self._why

    def close(self) -> None:
        if self._nvml is not None:
            self._guarded(self._shut_down)
        self._nvml = None

    def _open(self) -> None:
        if self._nvml is not None:
            self._shut_down()
        try:
            self._nvml = self._load()
        except ImportError:
            self._why = "the module pynvml is not installed: pip install nvidia-ml-py"
            return
        self._why = None
        self._nvml.nvmlInit()
        self._list()

    def _shut_down(self) -> None:
        nvml, self._nvml = self._nvml, None
        events, self._events = self._events, None
        if events is not None:
            nvml.nvmlEventSetFree(events)
        nvml.nvmlShutdown()

    def _list(self) -> None:
        nvml = self._nvml
        known, self._devices = self._devices, {}
        self._unlisted = False
        driver = _text(nvml.nvmlSystemGetDriverVersion())
        for index in range(nvml.nvmlDeviceGetCount()):
            try:
                found = list(self._found(nvml.nvmlDeviceGetHandleByIndex(index), index, driver))
                self._devices.update({device.gpu.id: device for device in found})
            except nvml.NVMLError as error:
                self._why = str(error)
                self._unlisted |= not self._is(error.value, _REFUSED)
                self._complain(f"nvml.gpu.{index}", f"GPU {index} cannot be read ({error}); the others are")
        for identity in self._devices.keys() & known.keys():
            self._devices[identity].state = known[identity].state  # it may rest, and is not asked yet
        self._keep_lost(known.values())
        self._listen()

    def _keep_lost(self, known: Iterable[_Device]) -> None:
        """One that was there goes on to be told of, as failed: not answering, or not listed any more."""
        for device in known:
            if device.gpu.parent is None and device.gpu.id not in self._devices:
                self._devices[device.gpu.id] = _Device(device.gpu, None, [], device.unsupported, state="failed")
                self._complain(f"nvml.lost.{device.gpu.id}", f"GPU {device.gpu.number} ({device.gpu.id}) is not there")

    def _found(self, handle: Any, index: int, driver: str) -> Iterator[_Device]:
        """The device and its MIG instances."""
        nvml = self._nvml
        pci = _pci_of(_text(nvml.nvmlDeviceGetPciInfo(handle).busId))
        identity = _text(nvml.nvmlDeviceGetUUID(handle))
        gpu = Gpu(identity, index, _text(nvml.nvmlDeviceGetName(handle)), "NVIDIA", pci, driver=driver)
        yield _Device(gpu, handle, list(QUANTITIES))
        own = [quantity for quantity in QUANTITIES if quantity.of_instances]
        for instance in self._instances(handle):
            part = gpu._replace(
                id=_text(nvml.nvmlDeviceGetUUID(instance)), model=_text(nvml.nvmlDeviceGetName(instance)), parent=gpu.id
            )
            yield _Device(part, instance, list(own))

    def _instances(self, handle: Any) -> list[Any]:
        nvml = self._nvml
        try:
            if nvml.nvmlDeviceGetMigMode(handle)[0] != nvml.NVML_DEVICE_MIG_ENABLE:
                return []
            most = nvml.nvmlDeviceGetMaxMigDeviceCount(handle)
        except nvml.NVMLError:
            return []  # a card without MIG
        found = []
        for place in range(most):
            try:
                found.append(nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, place))
            except nvml.NVMLError:
                continue  # there are fewer than there might be
        return found

    def _asked(self, device: _Device, now_ns: int) -> list[Sample]:
        """What it answers.

        A call that takes long is the last one: the others would wait for the same, each for itself. Where the GPU's
        firmware hangs that is 45 s a call (XID 119).

        Source: https://github.com/NVIDIA/open-gpu-kernel-modules/issues/446
        """
        samples: list[Sample] = []
        for quantity in tuple(device.quantities):
            if device.handle is None or self._nvml is None:
                break
            begun_ns = self._clock()
            found = self._samples(device, quantity, begun_ns)
            samples += found
            if (took_ns := self._clock() - begun_ns) > SLOW_NS:
                device.state = "ok" if found else "failed"
                self._spare(device, quantity, took_ns, now_ns)
                return samples
        lost = device.handle is None or self._nvml is None
        device.state = "failed" if lost else "degraded" if self._awaits_repair(device) else "ok"
        return samples

    def _spare(self, device: _Device, quantity: Quantity, took_ns: int, now_ns: int) -> None:
        """Say that it kept us waiting; a lost one that is looked for would do so again."""
        if device.handle is None:
            self._retry_ns = max(self._retry_ns, now_ns + REST_SHARE * took_ns)
        else:
            self._complain(f"nvml.slow.{device.gpu.id}", said_of_slow(device.gpu, quantity.name, took_ns))

    def _samples(self, device: _Device, quantity: Quantity, begun_ns: int) -> list[Sample]:
        try:
            return list(quantity.read(Asked(self._nvml, device.handle, self._rising, device.gpu.id)))
        except AttributeError:  # this pynvml does not know the call
            self._leave_out(device, quantity, unknown=True)
        except Exception as error:  # noqa: BLE001 - a broken driver is no reason to lose the run's telemetry
            self._refused(device, quantity, error, begun_ns)
        return []

    def _refused(self, device: _Device, quantity: Quantity, error: Exception, begun_ns: int) -> None:
        code = getattr(error, "value", None)
        what = f"{quantity.name} of GPU {device.gpu.number}"
        if self._is(code, _REFUSED):
            if self._is(code, ("NO_PERMISSION",)):
                self._complain(f"nvml.permission.{quantity.name}", f"{what} may not be read ({error}); it is left out")
            self._leave_out(device, quantity, unknown=self._is(code, _UNKNOWN))
        elif self._is(code, _LOST):
            device.handle = None
            self._complain(f"nvml.lost.{device.gpu.id}", f"GPU {device.gpu.number} ({device.gpu.id}) is lost: {error}")
        elif self._is(code, _GONE):
            self._give_up(error)
        elif self._clock() - begun_ns <= SLOW_NS:  # else how long it took is what is said
            self._complain(f"nvml.{quantity.name}", f"{what} was not read ({type(error).__name__}: {error})")

    def _leave_out(self, device: _Device, quantity: Quantity, *, unknown: bool) -> None:
        device.quantities.remove(quantity)
        instead = INSTEAD.get(quantity.name)
        if unknown and instead not in (None, quantity):
            device.quantities.append(instead)
        else:
            device.unsupported.append(quantity.name)

    def _give_up(self, error: Exception) -> None:
        """The driver has gone, or was never there: none of its devices is read until it can be opened again."""
        nvml, self._nvml = self._nvml, None
        self._events = None
        # Most machines have no such driver, and need not be told.
        absent = nvml is not None and getattr(error, "value", None) == nvml.NVML_ERROR_LIBRARY_NOT_FOUND
        self._why = None if absent else str(error)
        if not absent:
            self._complain("nvml", f"NVIDIA's driver cannot be asked ({error}); it is tried again every minute")
        with contextlib.suppress(Exception):  # it was open, or was not
            nvml.nvmlShutdown()

    def _guarded(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:  # noqa: BLE001 - as above
            self._give_up(error)

    def _is(self, code: object, kinds: Sequence[str]) -> bool:
        return code is not None and any(code == getattr(self._nvml, f"NVML_ERROR_{kind}", None) for kind in kinds)

    def _listen(self) -> None:
        """Ask to be told of XIDs, where that is allowed."""
        nvml = self._nvml
        try:
            self._events = nvml.nvmlEventSetCreate()
        except nvml.NVMLError:
            return
        for device in self._devices.values():
            if device.gpu.parent is None and device.handle is not None:
                try:
                    nvml.nvmlDeviceRegisterEvents(device.handle, nvml.nvmlEventTypeXidCriticalError, self._events)
                except nvml.NVMLError:
                    device.unsupported.append("xid events")

    def _take_events(self) -> None:
        nvml = self._nvml
        if nvml is None or self._events is None:
            return
        handles = {_address_of(d.handle): d.gpu.id for d in self._devices.values() if d.handle is not None}
        for _ in range(_MOST_EVENTS):
            try:
                event = nvml.nvmlEventSetWait_v2(self._events, 0)
            except nvml.NVMLError as error:
                # With a lost GPU in the set every wait ends so; its status says it already.
                if error.value != nvml.NVML_ERROR_TIMEOUT and not self._is(error.value, _LOST):
                    self._events = None
                    self._complain("nvml.events", f"no more XIDs are counted ({error})")
                return
            identity = handles.get(_address_of(event.device))
            if identity is not None:
                self._rising.add((identity, "errors", f"xid_{event.eventData}"), 1)

    def _xids(self, gpu: Gpu) -> Iterator[Sample]:
        for (_, _, error), count in self._rising.totals(gpu.id, "errors").items():
            if error.startswith("xid_"):
                yield Sample(names.HW_ERRORS, count, {names.ERROR_TYPE: error})

    def _awaits_repair(self, device: _Device) -> bool:
        """Whether rows of its memory failed, and are not replaced or cannot be."""
        if not device.tells_rows:
            return False
        try:
            _corrected, _uncorrected, pending, failed = self._nvml.nvmlDeviceGetRemappedRows(device.handle)
        except Exception as error:  # noqa: BLE001 - what else there is the other calls say
            # Cards before Ampere replace none, a GPU in parts does not tell.
            if isinstance(error, AttributeError) or self._is(getattr(error, "value", None), _REFUSED):
                device.tells_rows = False
                device.unsupported.append("replaced memory rows")
            return False
        return bool(pending or failed)


def _status(state: str) -> Iterator[Sample]:
    for each in ("ok", "degraded", "failed"):
        yield Sample(names.HW_STATUS, int(each == state), {names.HW_STATE: each})


def _address_of(handle: Any) -> int:
    """Where a handle points to, which is what tells one from another; 0: nowhere."""
    return ctypes.addressof(handle.contents) if handle else 0


def _pci_of(bus: str) -> str:
    """`0000:18:00.0`: NVML writes the domain with eight digits."""
    domain, _, rest = bus.lower().partition(":")
    return f"{domain[-4:]}:{rest}"


def _text(told: str | bytes) -> str:
    return told.decode(errors="replace") if isinstance(told, bytes) else told
