"""Which steps get a trace whatever comes of them: decided by number and trace id alone, so everybody decides alike.

`OTEL_TRACES_SAMPLER` and `OTEL_TRACES_SAMPLER_ARG` decide as the OpenTelemetry specification says. While the variable
is not set, the first steps of an attempt are sampled, and a fixed share by trace id. What only the outcome tells (slow,
straggling, failed, last) is the relay's to add.

Source: OpenTelemetry specification, "General SDK configuration" and "TraceIdRatioBased".
"""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Final, NamedTuple

from trainspan import names
from trainspan.settings import Problem, Settings, load

VARIABLE: Final = "OTEL_TRACES_SAMPLER"
ARGUMENT: Final = "OTEL_TRACES_SAMPLER_ARG"

FIRST_STEPS: Final = 5
SHARE: Final = 0.01

_RATIO: Final = ("traceidratio", "parentbased_traceidratio")
_OFF: Final = ("always_off", "parentbased_always_off")
_NAMES: Final = (
    "always_on",
    "always_off",
    "traceidratio",
    "parentbased_always_on",
    "parentbased_always_off",
    "parentbased_traceidratio",
)
_LOW_BITS: Final = 64
"""Of a trace id, that the decision is made on: those the SDK's own sampler reads."""


class Sampling(NamedTuple):
    """What was configured.

    `name`: the value of OTEL_TRACES_SAMPLER; None when it is not set. `ratio`: share of the trace ids, from 0 to 1.
    `every`: take each step whose number it divides, in place of the first ones and the share; None: do not.
    """

    name: str | None
    ratio: float
    every: int | None = None

    @property
    def off(self) -> bool:
        """Whether nothing is sampled, not even what failed, nor the trace of the attempt."""
        return self.name in _OFF

    def takes(self, trace_id: int) -> bool:
        """Whether the trace is one of the share. Cost: 0.2 µs."""
        return trace_id % (1 << _LOW_BITS) < round(self.ratio * (1 << _LOW_BITS))

    def reason_for_step(self, number: int, trace_id: int, first_number: int = 0) -> str | None:
        """Why a step gets a trace whatever comes of it; None if only its outcome can give it one.

        Args:
            number: of the step.
            trace_id: of the step.
            first_number: of the attempt's first step.
        """
        if self.off:
            return None
        if self.every is not None and self.name is None:
            return "every" if number % self.every == 0 else None
        if self.name is None and number - first_number < FIRST_STEPS:
            return "first"
        return (self.name or "share") if self.takes(trace_id) else None


def sampling_from(environ: Mapping[str, str]) -> tuple[Sampling, list[Problem]]:
    """The sampling that `environ` asks for. What is not understood is a problem, and counts as not set."""
    name = environ.get(VARIABLE, "").strip().lower()
    if not name:
        # What is wrong with it is said where all settings are loaded.
        return Sampling(None, SHARE, load(environ)[0].spans_every), []
    if name not in _NAMES:
        accepted = f"use {', '.join(_NAMES)}; going on as if it were not set"
        return Sampling(None, SHARE), [Problem(VARIABLE, environ[VARIABLE], accepted)]
    if name in _OFF:
        return Sampling(name, 0.0), []
    argument = environ.get(ARGUMENT, "").strip() if name in _RATIO else ""
    ratio = _ratio_of(argument or "1")
    if ratio is None:
        return Sampling(name, 1.0), [Problem(ARGUMENT, argument, "use a number from 0 to 1; going on with 1")]
    return Sampling(name, ratio), []


HOLDING: Final = frozenset(
    (
        names.SPAN_ATTEMPT,
        names.SPAN_LAUNCHER,
        names.SPAN_PROCESS,
        names.SPAN_INIT,
        names.SPAN_STEP,
        names.SPAN_RANK_STEP,
    )
)
"""Spans that hold others: without them those would hang below nothing."""


class SpanNames:
    """Which spans are exported, by their names: what is allowed (None: all), without what is denied."""

    def __init__(self, allow: tuple[str, ...] | None = None, deny: tuple[str, ...] | None = None):
        self._allow = ("*",) if allow is None else allow
        self._deny = deny or ()
        self._known: dict[str, bool] = {}

    @classmethod
    def of(cls, settings: Settings) -> "SpanNames":
        """Those of the settings in force."""
        return cls(settings.spans_allow, settings.spans_deny)

    def takes(self, name: str) -> bool:
        """Whether a span of that name is exported. Cost: 0.1 µs, the first time 2 µs a pattern."""
        known = self._known.get(name)
        if known is None:
            known = name in HOLDING or (_matches(name, self._allow) and not _matches(name, self._deny))
            if len(self._known) < _NAMES_KNOWN:
                self._known[name] = known
        return known


_NAMES_KNOWN: Final = 1024


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _ratio_of(text: str) -> float | None:
    try:
        ratio = float(text)
    except ValueError:
        return None
    return ratio if 0 <= ratio <= 1 else None
