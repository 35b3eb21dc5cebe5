"""Which steps get a trace.

`OTEL_TRACES_SAMPLER` and `OTEL_TRACES_SAMPLER_ARG` decide as the OpenTelemetry specification says, on the trace id
alone, so every node samples the same steps without a message. While the variable is not set, these are sampled: the
first steps of an attempt, a fixed share by trace id, a step that turned out slow, and the last one. Slow is what a node
finds slow: one whose ranks kept pace leaves its part out. A step that failed is always sampled, unless sampling is off.

Source: OpenTelemetry specification, "General SDK configuration".
"""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from opentelemetry.sdk.trace.sampling import (
    ALWAYS_OFF,
    ALWAYS_ON,
    Decision,
    ParentBased,
    ParentBasedTraceIdRatio,
    Sampler,
    TraceIdRatioBased,
)

from trainspan import names
from trainspan.identity import trace_id_of
from trainspan.settings import Problem

VARIABLE: Final = "OTEL_TRACES_SAMPLER"
ARGUMENT: Final = "OTEL_TRACES_SAMPLER_ARG"

FIRST_STEPS: Final = 5
SHARE: Final = 0.01

SLOW_FACTOR: Final = 2
"""A step is slow when it takes longer than this many times the median of the steps before it."""
SLOW_AFTER: Final = 20
"""Steps before a median counts."""
SLOW_WINDOW: Final = 101
"""Steps the median is taken over."""
SLOW_BURST: Final = 5
"""Slow steps sampled one after the other; after that one a minute."""
SLOW_EVERY_NS: Final = 60_000_000_000
SLOW_MOST: Final = 500
"""Slow steps sampled in one attempt."""

_SAMPLERS: Final[Mapping[str, Callable[[float], Sampler]]] = {
    "always_on": lambda _ratio: ALWAYS_ON,
    "always_off": lambda _ratio: ALWAYS_OFF,
    "traceidratio": TraceIdRatioBased,
    "parentbased_always_on": lambda _ratio: ParentBased(ALWAYS_ON),
    "parentbased_always_off": lambda _ratio: ParentBased(ALWAYS_OFF),
    "parentbased_traceidratio": ParentBasedTraceIdRatio,
}
_OFF: Final = ("always_off", "parentbased_always_off")


class Sampling(NamedTuple):
    """What was configured. `name`: the value of OTEL_TRACES_SAMPLER; None when it is not set."""

    sampler: Sampler
    name: str | None

    @property
    def off(self) -> bool:
        """Whether nothing is sampled, not even what failed, nor the trace of the attempt."""
        return self.name in _OFF


def sampling_from(environ: Mapping[str, str]) -> tuple[Sampling, list[Problem]]:
    """The sampling that `environ` asks for. What is not understood is a problem, and counts as not set."""
    name = environ.get(VARIABLE, "").strip().lower()
    if not name:
        return Sampling(TraceIdRatioBased(SHARE), None), []
    if name not in _SAMPLERS:
        accepted = f"use {', '.join(_SAMPLERS)}; going on as if it were not set"
        return Sampling(TraceIdRatioBased(SHARE), None), [Problem(VARIABLE, environ[VARIABLE], accepted)]
    argument = environ.get(ARGUMENT, "").strip() if name.endswith("ratio") else ""
    try:
        return Sampling(_SAMPLERS[name](float(argument or 1)), name), []
    except ValueError:
        accepted = "use a number from 0 to 1; going on with 1"
        return Sampling(_SAMPLERS[name](1.0), name), [Problem(ARGUMENT, argument, accepted)]


class StepSampler:
    """Decides for the steps of one attempt, asked once for each step, in order."""

    def __init__(self, sampling: Sampling, run: str, attempt: int):
        self.sampling = sampling
        self._run = run
        self._attempt = attempt
        self._first_number: int | None = None
        self._pace = _Pace()

    def reason_for(self, number: int, duration_ns: int, end_ns: int, *, failed: bool = False) -> str | None:
        """Why step `number` gets a trace; None if it gets none.

        Args:
            number: of the step.
            duration_ns: of the local rank that took longest.
            end_ns: when that rank ended it, on any clock of this node that does not go back.
            failed: whether a phase of it was left by an exception, or a process ended in it.

        Cost: 4 µs.
        """
        if self._first_number is None:
            self._first_number = number
        unset = self.sampling.name is None
        # Asked first, because it must see every step.
        slow = unset and self._pace.is_slow(duration_ns)
        if self.sampling.off:
            return None
        if failed:
            return "failed"
        if unset and number - self._first_number < FIRST_STEPS:
            return "first"
        trace_id = trace_id_of(self._run, self._attempt, "step", number)
        decision = self.sampling.sampler.should_sample(None, trace_id, names.SPAN_STEP).decision
        if decision is Decision.RECORD_AND_SAMPLE:
            return self.sampling.name or "share"
        return "slow" if slow and self._pace.admit(end_ns) else None

    def reason_for_last(self) -> str | None:
        """Why the last step of the attempt gets a trace though `reason_for` gave it none; None if it gets none."""
        return "last" if self.sampling.name is None else None


class _Pace:
    """The median step time of late, and how many slow steps may still be sampled."""

    def __init__(self) -> None:
        self._recent: deque[int] = deque()
        self._sorted: list[int] = []
        self._admitted = 0
        self._tokens = SLOW_BURST
        self._refilled_ns: int | None = None

    def is_slow(self, duration_ns: int) -> bool:
        """Whether a step takes far longer than those before it; it counts for those after it."""
        slow = len(self._sorted) >= SLOW_AFTER and duration_ns > SLOW_FACTOR * self._sorted[len(self._sorted) // 2]
        if len(self._recent) == SLOW_WINDOW:
            del self._sorted[bisect_left(self._sorted, self._recent.popleft())]
        self._recent.append(duration_ns)
        insort(self._sorted, duration_ns)
        return slow

    def admit(self, now_ns: int) -> bool:
        """Whether one more slow step may be sampled at `now_ns`; if so it is counted."""
        if self._refilled_ns is None:
            self._refilled_ns = now_ns
        refill = max(0, (now_ns - self._refilled_ns) // SLOW_EVERY_NS)
        self._tokens = min(SLOW_BURST, self._tokens + refill)
        self._refilled_ns += refill * SLOW_EVERY_NS
        if not self._tokens or self._admitted == SLOW_MOST:
            return False
        self._tokens -= 1
        self._admitted += 1
        return True
