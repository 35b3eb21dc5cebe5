"""Whose telemetry it is, and the computed ids under which every relay finds every span of the run (law 5)."""

from functools import lru_cache
from typing import Final, NamedTuple

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, TraceFlags

import trainspan
from trainspan import names
from trainspan.clock import Anchor
from trainspan.identity import Identity, span_id_of, trace_id_of

SCOPE: Final = InstrumentationScope(names.SCOPE, trainspan.__version__)

# Sampled, and "random trace id" (W3C Trace Context, level 2): the hash spreads evenly over the lower 56 bits, which is
# what that flag promises to the samplers behind us.
_FLAGS: Final = TraceFlags(0x03)


class RankSource(NamedTuple):
    """One recorded rank: who it is, its clock, the resource its telemetry carries, and the GPU it uses, if known."""

    identity: Identity
    anchor: Anchor
    resource: Resource
    gpu: str | None = None

    def unix_of(self, monotonic_ns: int) -> int:
        """Unix time in ns of a monotonic time of this rank."""
        return self.anchor.unix_of(monotonic_ns)


def step_context(identity: Identity, number: int, *what: str | int, is_remote: bool = False) -> SpanContext:
    """The span `what` in the trace of step `number`; without `what`, the root.

    Args:
        identity: any rank of the attempt.
        number: of the step.
        what: ("rank", 3) for a rank's part, ("rank", 3, "training.forward", 0) for the first of its forward spans.
        is_remote: whether another node's relay makes that span.
    """
    return _context(identity.run, identity.attempt, ("step", number), what, is_remote)


def attempt_context(
    identity: Identity, *what: str | int, attempt: int | None = None, is_remote: bool = False
) -> SpanContext:
    """The span `what` in the trace of the attempt; without `what`, the root.

    Args:
        identity: any rank of the attempt.
        what: ("rank", 3) for the process, ("rank", 3, "training.init") for what is below it.
        attempt: another attempt of the same run; None for the one of `identity`.
        is_remote: whether another relay makes that span.
    """
    return _context(identity.run, identity.attempt if attempt is None else attempt, ("attempt",), what, is_remote)


def launcher_context(identity: Identity, *what: str | int) -> SpanContext:
    """The span `what` in the trace of a launcher's own; without `what`, the launcher.

    Args:
        identity: of the launcher.
        what: ("rendezvous", 1500) for what it began to do at that time.
    """
    return _context(identity.run, identity.attempt, ("launcher", identity.host, identity.pid), what, is_remote=False)


def _context(
    run: str, attempt: int, trace: tuple[str | int, ...], what: tuple[str | int, ...], is_remote: bool
) -> SpanContext:
    span_id = span_id_of(run, attempt, *trace, *what)
    return SpanContext(_trace_id_of(run, attempt, trace), span_id, is_remote, trace_flags=_FLAGS)


@lru_cache(maxsize=64)
def _trace_id_of(run: str, attempt: int, trace: tuple[str | int, ...]) -> int:
    """As the identity has it; remembered, because every span of a trace asks: 2 µs each."""
    return trace_id_of(run, attempt, *trace)
