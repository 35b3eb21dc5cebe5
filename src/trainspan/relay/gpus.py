"""The GPUs of this node: what they say, which of them the ranks of one run use, and what their energy was used for."""

import os
from collections.abc import Callable, Mapping, Sequence
from time import monotonic_ns
from typing import Final

from trainspan.relay.otlp.complaints import Complaints
from trainspan.relay.probes.amd import AmdSmiProbe
from trainspan.relay.probes.matching import ToldDevice, gpu_of
from trainspan.relay.probes.nvml import NvmlProbe
from trainspan.relay.probes.ownership import Ownership, lock_dir
from trainspan.relay.probes.probe import REST_SHARE, SLOW_NS, Gpu, Probe, Reading
from trainspan.relay.timeline.energy import Charges, GpuEnergy
from trainspan.relay.timeline.records import RankStep
from trainspan.settings import load, state_dir

LEAST_INTERVAL_NS: Final = 1_000_000_000
"""Time between two readings at least: each takes the driver's lock, for which the ranks' launches wait."""


class NodeGpus:
    """The GPUs of this node, as the relay of one run sees them.

    Args:
        probes: one for each maker; none: nothing is read.
        ownership: of this relay.
        complain: `complain(cause, message)`.
        clock: monotonic ns, for how long the drivers take.

    Attributes:
        readings: the newest of each GPU this relay speaks for, and of its parts.
        awaits_reading: whether another one is to come soon: a rank has ended right after the last, or that ended at a
            GPU that hangs.
    """

    def __init__(
        self,
        probes: Sequence[Probe],
        ownership: Ownership,
        complain: Callable[[str, str], None],
        clock: Callable[[], int] = monotonic_ns,
    ):
        self.readings: list[Reading] = []
        self.awaits_reading = False
        self._probes = probes
        self._ownership = ownership
        self._complain = complain
        self._clock = clock
        self._next_ns = 0
        self._gone: list[str] = []  # ranks that have ended since the last `settle`
        self._resting: dict[str, int] = {}  # GPUs that hang, by id: until when they are not asked
        self._gpus: dict[Gpu, Probe] = {}
        self._looked_ns: int | None = None
        self._told: dict[str, ToldDevice] = {}
        self._waiting: dict[str, tuple[ToldDevice, bool]] = {}  # ranks whose GPU has not been found yet
        self._used: dict[str, Gpu] = {}  # by rank
        self._energy: dict[str, GpuEnergy] = {}  # by id of the GPU

    def use(self, rank: str, told: ToldDevice, now_ns: int, *, same_host: bool) -> str | None:
        """Take over that a rank uses a device; the id of that GPU, as far as it is known."""
        if self._told.get(rank) != told:
            self._told[rank] = told
            self._leave(rank)
            self._waiting[rank] = (told, same_host)
            self.look(now_ns)
            self._find(rank)
            if same_host and self._probes and not self._gpus:
                why = " ".join(why for probe in self._probes if (why := probe.why_none())) or "no driver"
                self._complain("gpu", f"a rank uses {told.model or 'a GPU'}, which cannot be read here: {why}")
        return self._used[rank].id if rank in self._used else told.likely_id

    def look(self, now_ns: int) -> None:
        """Read every GPU this relay speaks for, unless the last time is too recent."""
        if now_ns < self._next_ns:
            return
        self._looked_ns = now_ns
        self.awaits_reading = False
        begun_ns = self._clock()
        self._gpus = {gpu: probe for probe in self._probes for gpu in probe.gpus(now_ns)}
        for rank in tuple(self._waiting):
            self._find(rank)
        whole = [gpu.id for gpu in self._gpus if gpu.parent is None]
        ours = self._ownership.settle(whole, {gpu.physical for gpu in self._used.values()})
        spent_ns = self._read([gpu for gpu in self._gpus if gpu.physical in ours], now_ns + self._clock() - begun_ns)
        resumed_ns = now_ns + self._clock() - begun_ns if self.awaits_reading else now_ns
        self._next_ns = resumed_ns + max(LEAST_INTERVAL_NS, REST_SHARE * spent_ns)
        self._read_energy()
        for gpu, energy in self._energy.items():
            if gpu not in ours:
                energy.rest()

    def count(self, rank: str, steps: Sequence[RankStep]) -> None:
        """Take over steps of a rank, in order; also the one it ended in."""
        energy = self._energy_of(rank)
        if energy is not None:
            energy.add_steps(rank, steps)

    def end(self, rank: str) -> None:
        """Take over that a rank has ended, and all its steps are counted."""
        self._gone.append(rank)

    def settle(self, now_ns: int) -> None:
        """Read them where a rank has ended, or the last reading was cut short.

        To be called once what there is to tell is told: a GPU that hangs keeps the relay for 45 s, and its rank ends of
        that.
        """
        gone, self._gone = self._gone, []
        for rank in gone:
            self._end(rank, now_ns)
        if self.awaits_reading:
            self.look(now_ns)

    def _end(self, rank: str, now_ns: int) -> None:
        self.look(now_ns)
        soon = self._looked_ns != now_ns and self._next_ns - now_ns <= LEAST_INTERVAL_NS
        self.awaits_reading |= rank in self._used and soon
        self._leave(rank)
        self._waiting.pop(rank, None)

    def charges(self, now_ns: int) -> Charges:
        """Joules by rank and phase that have become known since the last call."""
        charges: Charges = {}
        for energy in self._energy.values():
            charges.update(energy.settle(now_ns))
        return charges

    def close(self) -> None:
        """Let go of the drivers, and let another relay speak for the GPUs."""
        for probe in self._probes:
            probe.close()
        self._ownership.close()

    def _read(self, gpus: Sequence[Gpu], now_ns: int) -> int:
        """Read those; how long that took, but for one that hangs.

        That one rests alone, and ends the reading: one at a time keeps the relay waiting, and where it has done so
        before, after the others were asked. Those behind it keep their last reading until the next, which comes soon.
        """
        newest: dict[Gpu, Reading | None] = {reading.gpu: reading for reading in self.readings}
        inquired = sorted(gpus, key=lambda gpu: gpu.physical in self._resting)
        spent_ns = 0
        for gpu in inquired:
            asks = now_ns >= self._resting.get(gpu.physical, 0)
            begun_ns = self._clock()
            newest[gpu] = self._gpus[gpu].read(gpu, now_ns, asks=asks)
            took_ns = self._clock() - begun_ns
            now_ns += took_ns
            if took_ns > SLOW_NS:
                self._resting[gpu.physical] = now_ns + REST_SHARE * took_ns
                self.awaits_reading = True
                break
            if asks:
                self._resting.pop(gpu.physical, None)
            spent_ns += took_ns
        self.readings = [reading for gpu in inquired if (reading := newest.get(gpu)) is not None]
        return spent_ns

    def _find(self, rank: str) -> None:
        waiting = self._waiting.get(rank)
        gpu = gpu_of(waiting[0], tuple(self._gpus), same_host=waiting[1]) if waiting else None
        if gpu is None:
            return
        del self._waiting[rank]
        self._used[rank] = gpu
        # Of a MIG instance's energy nothing is told: the counter is that of the whole GPU, which others use too.
        if gpu.id not in self._energy:
            self._energy[gpu.id] = GpuEnergy()
            self._read_energy()
        self._energy[gpu.id].join(rank)

    def _leave(self, rank: str) -> None:
        energy = self._energy_of(rank)
        if energy is not None:
            energy.leave(rank)
        self._used.pop(rank, None)

    def _read_energy(self) -> None:
        for reading in self.readings:
            energy = self._energy.get(reading.gpu.id)
            if energy is not None:
                energy.read(reading.at_ns, reading.energy_j, reading.power_w)

    def _energy_of(self, rank: str) -> GpuEnergy | None:
        gpu = self._used.get(rank)
        return None if gpu is None else self._energy.get(gpu.id)


def node_gpus(environ: Mapping[str, str], log: Callable[[str], None]) -> NodeGpus:
    """The GPUs of this host; `log` is told what is wrong with them, once for each cause."""
    complain = Complaints(log)
    state = state_dir(load(environ)[0], environ)
    return NodeGpus(
        (NvmlProbe(complain), AmdSmiProbe(complain)), Ownership(lambda: lock_dir(state), complain), complain
    )


def no_gpus() -> NodeGpus:
    """None: for recordings that were made in another place or at another time."""
    return NodeGpus((), Ownership(None, lambda *_: None), lambda *_: None)


def is_here(host: str) -> bool:
    """Whether a rank on `host` runs on this host."""
    return host == os.uname().nodename
