"""What a rank's steps worked through: samples, tokens, and the FLOPs that follow from them where somebody knows how.

Samples and tokens are those of the batches, unless the user counts them: then the user's totals stand. FLOPs are, by
the first of these that can be had:

    tokens x TRAINSPAN_FLOPS_PER_TOKEN, or what `trainspan.configure` was told
    samples x TRAINSPAN_FLOPS_PER_SAMPLE, the same
    what torch counted in one step (TRAINSPAN_COUNT_FLOPS), by its samples or, where they are not known, by steps

MFU as in `trainspan goodput`: FLOPs of the newest steps over what the device could have done in their time.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from trainspan import names
from trainspan.relay.timeline.records import RankStep

RECENT_STEPS: Final = 1024
"""Over which the MFU is taken, as the mean step of `trainspan goodput`."""

_MOST: Final = 1 << 62
_REMEMBERED: Final = 64
_NS: Final = 1e-9


class FlopsKnown(NamedTuple):
    """What the settings say. `peak_per_s`: of one device."""

    per_token: float | None = None
    per_sample: float | None = None
    peak_per_s: float | None = None


class Work(NamedTuple):
    """What has been done since the process began; None: not known. `mfu`: of the newest steps."""

    samples: int | None = None
    tokens: int | None = None
    flops: float | None = None
    mfu: float | None = None


NOTHING_DONE: Final = Work()


class _Milestone(NamedTuple):
    steps: int
    time_ns: int
    flops: float


class Throughput:
    """The work of one rank.

    Args:
        known: what the settings say of FLOPs.
        done: what this process has worked through before, to go on from; `steps`: in so many steps, not counted again.
    """

    def __init__(self, known: FlopsKnown, done: Work = NOTHING_DONE, steps: int = 0):
        self._known = known
        self._samples = done.samples
        self._tokens = done.tokens
        self._given: dict[str, int] = {}
        self._steps = steps
        self._went_on = steps > 0
        self._time_ns = 0  # of the steps, all together
        self._counted: tuple[int, float] | None = None  # a step, and the FLOPs that torch counted in it
        self._newest: deque[tuple[int, int | None]] = deque(maxlen=_REMEMBERED)  # (number, samples)
        self._milestones: deque[_Milestone] = deque()
        # The step in which torch counted may not come again.
        self._per_sample = done.flops / done.samples if done.flops and done.samples else None
        self._per_step = done.flops / steps if done.flops is not None and steps else None
        self._measure_anew()

    def configure(self, told: Mapping[str, Any]) -> None:
        """Take over the FLOPs that the script itself has told; they stand in place of those of the settings."""
        per_token, per_sample = (_flops_in(told, name) for name in (names.FLOPS_PER_TOKEN, names.FLOPS_PER_SAMPLE))
        if per_token is not None or per_sample is not None:
            self._known = FlopsKnown(per_token, per_sample, self._known.peak_per_s)
            self._measure_anew()

    def take(self, event: Mapping[str, Any]) -> None:
        """Take over an event `work` or `flops`, read with distrust; of others nothing."""
        if event["event"] == "work":
            for name in ("samples", "tokens"):
                total = event.get(name)
                if type(total) is int and self._given.get(name, 0) <= total < _MOST:
                    self._given[name] = total
        elif event["event"] == "flops":
            step, flops = event.get("step"), event.get("flops")
            if type(step) is int and type(flops) is int and 0 < flops < _MOST:
                self._counted = step, float(flops)
                self._settle()

    def count(self, steps: Sequence[RankStep]) -> None:
        """Count completed steps, in order."""
        for step in steps:
            self._steps += 1
            self._time_ns += step.end_ns - step.start_ns
            if step.samples is not None:
                self._samples = (self._samples or 0) + step.samples
            if step.tokens is not None:
                self._tokens = (self._tokens or 0) + step.tokens
            self._newest.append((step.number, step.samples))
            if self._counted is not None and step.number == self._counted[0]:
                self._settle()
        flops = self._flops()
        if steps and flops is not None:
            self._milestones.append(_Milestone(self._steps, self._time_ns, flops))
            while len(self._milestones) > 2 and self._milestones[1].steps <= self._steps - RECENT_STEPS:
                self._milestones.popleft()

    def work(self) -> Work:
        """All of it so far."""
        return Work(self._total("samples", self._samples), self._total("tokens", self._tokens), self._flops(), self.mfu)

    @property
    def mfu(self) -> float | None:
        """Of the newest steps, or of all while there are few; None where the FLOPs or the peak are not known."""
        peak = self._known.peak_per_s
        if peak is None or len(self._milestones) < 2:
            return None
        first, last = self._milestones[0], self._milestones[-1]
        time_s = (last.time_ns - first.time_ns) * _NS
        return (last.flops - first.flops) / (time_s * peak) if time_s > 0 else None

    def _total(self, name: str, of_batches: int | None) -> int | None:
        return self._given.get(name, of_batches)

    def _flops(self) -> float | None:
        tokens, samples = self._total("tokens", self._tokens), self._total("samples", self._samples)
        if self._known.per_token is not None and tokens is not None:
            return tokens * self._known.per_token
        per_sample = self._known.per_sample if self._known.per_sample is not None else self._per_sample
        if per_sample is not None and samples is not None:
            return samples * per_sample
        return None if self._per_step is None else self._steps * self._per_step

    def _settle(self) -> None:
        """Work out what the FLOPs of the step that torch counted are for: its samples, or itself."""
        if self._counted is None:
            return
        number, flops = self._counted
        for known, samples in self._newest:
            if known == number:
                self._per_step = flops
                self._per_sample = flops / samples if samples else None
                self._measure_anew()

    def _measure_anew(self) -> None:
        """Forget how many FLOPs there were when; from the beginning, or from where another relay left it."""
        self._milestones.clear()
        flops = self._flops() if self._went_on else 0.0
        if flops is not None:
            steps, time_ns = (self._steps, self._time_ns) if self._went_on else (0, 0)
            self._milestones.append(_Milestone(steps, time_ns, flops))


def _flops_in(told: Mapping[str, Any], name: str) -> float | None:
    value = told.get(name)
    return float(value) if isinstance(value, int | float) and 0 < value < _MOST else None
