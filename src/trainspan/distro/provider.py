"""The TracerProvider of a rank that runs under `opentelemetry-instrument`: traces alone, and as little as that takes.

It draws its ids from the system and none from the user's random streams. It starts no thread before the first span has
ended, and it sends nothing by itself: `outbox.py` puts the spans where the relay puts its own.
"""

import os
from collections.abc import Sequence

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import Decision, Sampler, SamplingResult
from opentelemetry.trace import Link, SpanKind, TraceState
from opentelemetry.util.types import Attributes

from trainspan import names, startup
from trainspan.distro.outbox import MOST_SPANS, Outbox
from trainspan.distro.steps import CurrentStep
from trainspan.guard import warn_once
from trainspan.relay.otlp.resource import rank_resource


def set_up(step: CurrentStep) -> None:
    """Make the script's spans go where the relay's go, unless it has a provider already. Cost: 150 ms, of imports."""
    if not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return
    identity = step.identity
    # Who this process is in the run is only known once it records; the outbox then says it of every span.
    resource = rank_resource(identity, os.environ) if identity else Resource.create()
    provider = TracerProvider(
        sampler=FollowingSampler(step), resource=resource, shutdown_on_exit=False, id_generator=SystemIds()
    )
    outbox = Outbox(step, os.environ)
    provider.add_span_processor(UserSpans(step, outbox))
    startup.on_recorder(outbox.follow)
    trace.set_tracer_provider(provider)


class SystemIds(IdGenerator):
    """Ids from the system's entropy: no seed makes two ranks agree, and nobody's random stream moves. Cost: 0.6 µs."""

    def generate_span_id(self) -> int:
        return int.from_bytes(os.urandom(8), "big") or 1

    def generate_trace_id(self) -> int:
        return int.from_bytes(os.urandom(16), "big") or 1

    def is_trace_id_random(self) -> bool:
        """Whether samplers behind us may rely on the lower bits."""
        return True


class FollowingSampler(Sampler):
    """What is below a step or a process is sampled as that is; a root as `OTEL_TRACES_SAMPLER` says.

    What happens in a step that is not sampled is recorded all the same, because the step may be the last one: then
    it belongs to the process. And no rank adds more to a trace of ours than its share.
    """

    def __init__(self, step: CurrentStep):
        self._step = step
        self._sampling = step.sampling
        self._in_attempt = 0
        self._in_step = (0, 0)  # trace id, spans

    def should_sample(
        self,
        parent_context: Context | None,
        trace_id: int,
        name: str,
        kind: SpanKind | None = None,
        attributes: Attributes = None,
        links: Sequence[Link] | None = None,
        trace_state: TraceState | None = None,
    ) -> SamplingResult:
        parent = trace.get_current_span(parent_context).get_span_context()
        decision = self._decide(parent, trace_id)
        if decision is Decision.DROP:
            attributes = None
        return SamplingResult(decision, attributes, parent.trace_state if parent.is_valid else None)

    def get_description(self) -> str:
        return f"trainspan({self._sampling.name or 'unset'})"

    def _decide(self, parent: trace.SpanContext, trace_id: int) -> Decision:
        if self._sampling.off:
            return Decision.DROP
        if not parent.is_valid:
            taken = self._sampling.name is None or self._sampling.takes(trace_id)
        elif parent.trace_flags.sampled:
            taken = self._has_room(trace_id)
        elif trace_id == self._step.context().trace_id:
            return Decision.RECORD_ONLY
        else:
            taken = False
        return Decision.RECORD_AND_SAMPLE if taken else Decision.DROP

    def _has_room(self, trace_id: int) -> bool:
        """Whether one more span may join a trace; a trace that is not ours has no bound of ours."""
        identity = self._step.identity
        if identity is None:
            return True
        process = self._step.process_of(identity)
        if trace_id == process.trace_id:
            self._in_attempt += 1
            added = self._in_attempt
        elif trace_id == self._step.context().trace_id:
            self._in_step = trace_id, (self._in_step[1] + 1 if self._in_step[0] == trace_id else 1)
            added = self._in_step[1]
        else:
            return True
        share = MOST_SPANS // max(identity.world_size, 1)
        if added > share:
            warn_once("spans", f"a rank adds {share} spans to the trace of a step or of the attempt; more are dropped")
        return added <= share


class UserSpans(SpanProcessor):
    """Tells every span of the script its rank and step, and hands it over when it has ended. Never raises."""

    def __init__(self, step: CurrentStep, outbox: Outbox):
        self._step = step
        self._outbox = outbox

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        identity, number = self._step.identity, self._step.number
        if identity is not None:
            span.set_attribute(names.RANK, identity.rank)
        if number is not None:
            span.set_attribute(names.STEP, number)

    def on_end(self, span: ReadableSpan) -> None:
        self._outbox.put(span)

    def shutdown(self) -> None:
        self._outbox.close()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Hand over what may be handed over; it is on disk then, and the network is not waited for."""
        self._outbox.flush()
        return True
