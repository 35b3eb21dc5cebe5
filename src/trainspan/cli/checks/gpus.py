"""Which GPUs a relay would read here, and what of them their drivers do not tell."""

from collections.abc import Iterator, Sequence
from time import monotonic_ns
from typing import Final, Protocol

from trainspan import names
from trainspan.cli.checks.finding import Finding
from trainspan.relay.probes.amd import AmdSmiProbe
from trainspan.relay.probes.nvml import NvmlProbe
from trainspan.relay.probes.probe import Gpu, Probe, Reading

AREA: Final = "gpus"


class Telling(Probe, Protocol):
    """A probe that also knows what it was refused."""

    def unsupported(self, gpu: Gpu) -> Sequence[str]:
        """What that device does not tell, in words."""


def probes() -> Sequence[Telling]:
    """One for each maker."""

    def remember(cause: str, message: str) -> None:
        """What is wrong is among the findings."""

    return NvmlProbe(remember), AmdSmiProbe(remember)


def check(asked: Sequence[Telling]) -> Iterator[Finding]:
    """What the drivers say; nothing on a host without one."""
    for probe in asked:
        now_ns = monotonic_ns()
        found = list(probe.gpus(now_ns))
        for gpu in found:
            yield _gpu_finding(gpu, probe.read(gpu, now_ns), probe)
        why = probe.why_none()
        if why and not found:
            yield Finding(AREA, "note", f"GPUs cannot be read: {why}", facts={"why": why})
        probe.close()


def _gpu_finding(gpu: Gpu, reading: Reading | None, probe: Telling) -> Finding:
    missing = list(probe.unsupported(gpu))
    facts = {**gpu._asdict(), "unsupported": missing}
    kind = "part of it" if gpu.parent else f"GPU {gpu.number}"
    text = f"{kind}: {gpu.model}, {gpu.id}, driver {gpu.driver or 'unknown'}"
    if reading is None or not reading.samples:
        return Finding(AREA, "note", f"{text}; it cannot be read", facts=facts)
    if any(
        s.metric is names.HW_STATUS and s.attributes[names.HW_STATE] == "failed" and s.value for s in reading.samples
    ):
        advice = "reset it, or drain the node: nvidia-smi -q says more"
        return Finding(AREA, "note", f"{text}; it has failed", advice, facts=facts)
    if gpu.parent is None and reading.energy_j is None:
        way = "its power is integrated instead" if reading.power_w is not None else "there is no energy of it"
        return Finding(AREA, "note", f"{text}; it has no energy counter: {way}", facts=facts)
    return Finding(AREA, "ok", f"{text}; not told: {', '.join(missing)}" if missing else text, facts=facts)
