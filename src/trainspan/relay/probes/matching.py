"""Which physical GPU a rank means: torch numbers what CUDA shows it, and the driver what is in the machine."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from trainspan.relay.probes.probe import Gpu, card_of

_UUID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_PCI: Final = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]")
_MOST_VISIBLE: Final = 64


class ToldDevice(NamedTuple):
    """The device a rank says it uses.

    `number`: among those CUDA shows it.
    `uuid`: without `GPU-` or `MIG-`; `pci`: `0000:18:00.0`; None: its torch does not tell.
    `model`: what torch calls it.
    `visible`: what CUDA shows it: numbers or UUIDs, as its environment says; None: everything.
    `in_pci_order`: whether CUDA was told to number by PCI address, as the driver does, and not the fastest first.
    """

    number: int
    uuid: str | None
    pci: str | None
    model: str
    visible: tuple[str, ...] | None
    in_pci_order: bool

    @property
    def likely_id(self) -> str | None:
        """What its driver calls it, as far as the rank alone can tell."""
        entry = self._entry()
        if entry is not None and re.match(r"(GPU|MIG)-.{36}", entry):
            return entry
        return None if self.uuid is None else f"GPU-{self.uuid}"

    def _entry(self) -> str | None:
        if self.visible is None or not 0 <= self.number < len(self.visible):
            return None
        return self.visible[self.number]


def told_device_of(event: Mapping[str, Any]) -> ToldDevice | None:
    """What an event `device` tells, read with distrust; None: it makes no sense, or is another one."""
    if event.get("event") != "device":
        return None
    index, model = event.get("index"), event.get("model")
    if type(index) is not int or not 0 <= index < 1 << 16:
        return None
    visible = event.get("visible")
    listed = isinstance(visible, list) and all(isinstance(entry, str) for entry in visible)
    return ToldDevice(
        index,
        _told(event, "uuid", _UUID),
        _told(event, "pci", _PCI),
        model[:128] if isinstance(model, str) else "",
        tuple(entry[:80] for entry in visible[:_MOST_VISIBLE]) if listed and visible is not None else None,
        event.get("in_pci_order") is True,
    )


def gpu_of(told: ToldDevice, gpus: Sequence[Gpu], *, same_host: bool) -> Gpu | None:
    """The one of `gpus` a rank means; None where that is not certain: no GPU is better than the wrong one.

    A UUID is enough. PCI addresses and numbers repeat on every host, so they count for ranks of this one.

    Args:
        told: what the rank says.
        gpus: of this host, in the order of the driver.
        same_host: whether the rank runs on this host.
    """
    by_id = {gpu.id.lower(): gpu for gpu in gpus}
    if told.uuid is not None:
        named = by_id.get(f"gpu-{told.uuid}") or by_id.get(f"mig-{told.uuid}")
        if named is not None:
            return _part_of(named, told, gpus)
        return _by_place(told, gpus) if same_host else None
    if not same_host:
        return None
    return _by_place(told, gpus) or _by_number(told, gpus, by_id)


def _part_of(named: Gpu, told: ToldDevice, gpus: Sequence[Gpu]) -> Gpu | None:
    """The part that is meant: a rank never has the whole of a GPU that is in parts, whatever its torch says."""
    parts = [gpu for gpu in gpus if gpu.parent == named.id]
    if not parts:
        return named
    # A container is shown the parts that are its own, so the only one there is certain.
    return parts[0] if len(parts) == 1 else next((gpu for gpu in parts if gpu.id == told.likely_id), None)


def _by_place(told: ToldDevice, gpus: Sequence[Gpu]) -> Gpu | None:
    """By the PCI address, which a GPU shares with its MIG instances: they have no place of their own.

    Partitions of AMD's differ in its function, which torch does not tell: any of them may be meant, the first included.
    """
    if told.pci is None:
        return None
    whole = [gpu for gpu in gpus if gpu.pci == told.pci and gpu.parent is None]
    places = {gpu.pci for gpu in gpus if gpu.pci is not None and card_of(gpu.pci) == card_of(told.pci)}
    return _part_of(whole[0], told, gpus) if len(whole) == len(places) == 1 else None


def _by_number(told: ToldDevice, gpus: Sequence[Gpu], by_id: Mapping[str, Gpu]) -> Gpu | None:
    whole = [gpu for gpu in gpus if gpu.parent is None]
    if told.visible is None:
        entry = str(told.number)
    elif told.number < len(told.visible):
        entry = told.visible[told.number].strip()
    else:
        return None
    if entry.isdecimal():
        # CUDA numbers the fastest first unless it is told otherwise: among equals that is the driver's order too.
        # MIG instances have numbers of their own.
        equal = told.in_pci_order or len({gpu.model for gpu in whole}) == 1
        certain = equal and len(whole) == len(gpus)
        return next((gpu for gpu in whole if certain and gpu.number == int(entry)), None)
    # An abbreviated UUID is allowed where only one begins with it.
    fitting = [gpu for identity, gpu in by_id.items() if entry and identity.startswith(entry.lower())]
    return fitting[0] if len(fitting) == 1 else None


def _told(event: Mapping[str, Any], name: str, form: re.Pattern[str]) -> str | None:
    value = event.get(name)
    if not isinstance(value, str):
        return None
    return value.lower() if form.fullmatch(value.lower()) else None
