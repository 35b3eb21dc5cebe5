"""What every maker's probe gives: the devices of this host, and readings of them.

A probe is pulled, at the metric interval, on the relay's thread. It raises nothing: what a driver does not tell is not
in the reading.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol, TypeAlias

from trainspan import names

RETRY_NS: Final = 60_000_000_000
"""How long a driver that is not there, or a device that is lost, is left alone before it is looked for again."""

SLOW_NS: Final = 1_000_000_000
"""A device that keeps its caller waiting for longer hangs, or nearly so."""

REST_SHARE: Final = 50
"""What takes long is followed by that many times its own length without it."""

Complain: TypeAlias = Callable[[str, str], None]
"""`complain(cause, message)`: said once for each cause. `trainspan.guard.warn_once` is one."""

UNKNOWN: Final[Mapping[str, str]] = {}


class Gpu(NamedTuple):
    """A GPU, or a part of one.

    `id`: UUID as its driver writes it, unique on the host and beyond it.
    `number`: on the host, in the order of the driver.
    `pci`: `0000:18:00.0`; None: not told.
    `parent`: `id` of the GPU that a MIG instance or a partition is a part of; None: it is a whole one.
    `driver`: version; None: not told.
    """

    id: str
    number: int
    model: str
    vendor: str
    pci: str | None
    parent: str | None = None
    driver: str | None = None

    @property
    def physical(self) -> str:
        """`id` of the GPU itself."""
        return self.parent or self.id

    def attributes(self) -> dict[str, str]:
        """What identifies it on the wire."""
        optional = {names.HW_DRIVER_VERSION: self.driver, names.HW_PARENT: self.parent}
        return {
            names.HW_ID: self.id,
            names.HW_TYPE: "gpu",
            names.HW_NAME: f"GPU {self.number}",
            names.HW_MODEL: self.model,
            names.HW_VENDOR: self.vendor,
            **{name: value for name, value in optional.items() if value is not None},
        }


def card_of(pci: str) -> str:
    """Where a card is on the bus: `0000:18:00` of `0000:18:00.0`."""
    return pci.rpartition(".")[0]


def said_of_slow(gpu: Gpu, quantity: str, took_ns: int) -> str:
    """What is said of a device that kept its caller waiting for longer than `SLOW_NS`."""
    return (
        f"GPU {gpu.number} ({gpu.id}) took {took_ns / 1e9:.0f} s for its {quantity}: it is asked again after "
        f"{REST_SHARE} times as long, the others meanwhile as ever"
    )


class Sample(NamedTuple):
    """One number of a device, in the unit of `metric`. `attributes`: beside those of the device."""

    metric: names.Metric
    value: float
    attributes: Mapping[str, str] = UNKNOWN


class Reading(NamedTuple):
    """What a device said at `at_ns`, monotonic.

    `energy_j`: drawn since the first reading, which was 0; None: it has no counter.
    `power_w`: None: not told.
    """

    gpu: Gpu
    at_ns: int
    samples: tuple[Sample, ...]
    energy_j: float | None
    power_w: float | None


class Probe(Protocol):
    """One maker's devices on this host."""

    def gpus(self, now_ns: int) -> Sequence[Gpu]:
        """Those there are, whole ones before their parts. Looks for them anew where the driver was not there."""

    def read(self, gpu: Gpu, now_ns: int, *, asks: bool = True) -> Reading | None:
        """What that device says now; None: it is not one of `gpus` any more.

        Args:
            gpu: one of `gpus`.
            now_ns: monotonic time.
            asks: False: the device rests; what is known without asking it, with the state it was last seen in.
        """

    def why_none(self) -> str | None:
        """Why there are no devices, in words; None: there are, or this maker's driver is not installed here."""

    def close(self) -> None:
        """Let go of the driver."""


class Rising:
    """Counters that only ever rise, made of some that begin anew when a driver is reloaded or a register is full.

    What was counted between the last reading and such a beginning is lost: fewer, never more than there was.
    """

    def __init__(self) -> None:
        self._last: dict[tuple[str, ...], float] = {}
        self._total: dict[tuple[str, ...], float] = {}

    def advance(self, key: tuple[str, ...], count: float) -> float:
        """How much the counter `key` has risen since it was first seen, now that it stands at `count`."""
        risen = count - self._last.get(key, count)
        self._last[key] = count
        self._total[key] = self._total.get(key, 0) + max(risen, 0)
        return self._total[key]

    def add(self, key: tuple[str, ...], more: float) -> float:
        """The same of a counter of which only what is new is known."""
        self._total[key] = self._total.get(key, 0) + more
        return self._total[key]

    def totals(self, *prefix: str) -> dict[tuple[str, ...], float]:
        """What every counter whose key begins with `prefix` has risen to."""
        return {key: total for key, total in self._total.items() if key[: len(prefix)] == prefix}
