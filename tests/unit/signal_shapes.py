"""What the tests of the signals share: ranks without a process, and spans as plain values to compare whole."""

from typing import Any

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanContext, SpanKind

from trainspan.clock import Anchor
from trainspan.relay.signals.contexts import SCOPE, RankSource
from trainspan.testing.builders import identity_of

UNIX_NS = 1_700_000_000_000_000_000
"""Unix time of monotonic 1000 ns."""


def source_of(rank: int, world_size: int = 2, attempt: int = 0, ranks_per_node: int = 8) -> RankSource:
    """A rank whose monotonic clock showed 1000 at UNIX_NS."""
    identity = identity_of(rank, world_size=world_size, ranks_per_node=ranks_per_node, attempt=attempt)
    return RankSource(identity, Anchor(1000, UNIX_NS), Resource({"training.rank": rank}))


def context_of(context: SpanContext | None) -> tuple[int, int] | None:
    """(trace id, span id)."""
    return None if context is None else (context.trace_id, context.span_id)


def shown(span: ReadableSpan) -> dict[str, Any]:
    """A span, whole."""
    assert span.kind is SpanKind.INTERNAL
    assert span.instrumentation_scope == SCOPE
    assert span.context is not None
    assert span.context.trace_flags == 3
    return {
        "name": span.name,
        "context": context_of(span.context),
        "parent": context_of(span.parent),
        "resource": dict(span.resource.attributes),
        "attributes": dict(span.attributes or {}),
        "links": [context_of(link.context) for link in span.links],
        "status": (span.status.status_code, span.status.description),
        "times_ns": ((span.start_time or 0) - UNIX_NS, (span.end_time or 0) - UNIX_NS),
    }
