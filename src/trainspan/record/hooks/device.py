"""Which device the rank uses, told at the end of its first step, and again when the script turns to another one.

Not earlier: CUDA is often initialised by the very call that chooses the device, before the choice.

Event `device`:

    index         among those CUDA shows it: torch's number
    uuid, pci     as torch tells them; null on a torch that does not (PCI from 2.6 on, UUID from 2.5)
    model         what torch calls it
    visible       what CUDA_VISIBLE_DEVICES shows, or ROCm's variables do, entry by entry; null: everything
    in_pci_order  whether CUDA_DEVICE_ORDER asks for the driver's order

No call of it reaches the device: the number of the current one is a variable of the CUDA runtime.

Cost on a step: 0.1 µs; a look every ten seconds.
"""

from collections.abc import Callable, Mapping
from time import monotonic_ns
from typing import Any, Final

import torch

from trainspan.guard import warn_once
from trainspan.placement import visible_devices

INTERVAL_NS: Final = 10_000_000_000


def install(
    environ: Mapping[str, str],
    tell: Callable[..., None],
    used: Callable[[], int | None],
    is_ready: Callable[[], bool] = torch.cuda.is_initialized,
    properties: Callable[[int], Any] = torch.cuda.get_device_properties,
    now: Callable[[], int] = monotonic_ns,
) -> Callable[[], None]:
    """What is to be called at the end of every step of training.

    Args:
        environ: the environment, of which what CUDA shows is read.
        tell: `tell("device", **fields)` appends an event.
        used: number of the device that trains; None: none does.
        is_ready: whether CUDA is in use.
        properties: of the device of that number.
        now: monotonic ns.
    """
    next_ns = 0
    known: int | None = None

    def step_ended() -> None:
        nonlocal next_ns, known
        now_ns = now()
        if now_ns < next_ns or not is_ready():
            return
        next_ns = now_ns + INTERVAL_NS
        try:
            number = used()
            if number is not None and number != known:
                known = number
                tell("device", **fields_of(number, properties(number), environ))
        except Exception as error:
            next_ns = 1 << 62
            warn_once("device.identity", f"which GPU this is cannot be told ({type(error).__name__}: {error})")

    return step_ended


def fields_of(number: int, properties: Any, environ: Mapping[str, str]) -> dict[str, Any]:
    """The fields of the event for a device of these properties."""
    visible = visible_devices(environ, hip=bool(torch.version.hip))
    # ROCm fills the UUID with something of its own, which its driver does not know.
    uuid = None if torch.version.hip else getattr(properties, "uuid", None)
    return {
        "index": number,
        "uuid": None if uuid is None else str(uuid).lower(),
        "pci": _pci_of(properties),
        "model": str(getattr(properties, "name", ""))[:128],
        "visible": visible.entries,
        "in_pci_order": visible.in_pci_order,
    }


def _pci_of(properties: Any) -> str | None:
    domain, bus, device = (getattr(properties, f"pci_{part}_id", None) for part in ("domain", "bus", "device"))
    if domain is None or bus is None or device is None:
        return None
    return f"{domain:04x}:{bus:02x}:{device:02x}.0"
