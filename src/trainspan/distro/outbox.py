"""Where the spans of a training script wait until it is clear what they belong to, and from where they go.

A span that ends in the running step is held until that step has ended: what follows the last step is no step, and goes
into the trace of the attempt, below the process. Where an exception ends the process, the step it happened in has a
trace, and what was held goes there, sampled before or not.

They go where the relay's spans go, in the same way: into a journal in the run folder, and from there to the endpoint.
So a collector that is down costs the rank nothing, and `trainspan replay` delivers what is left. The way there is made
when the first span needs it, on a thread of its own. Before the process records, spans wait; if it never does, they are
delivered at its end as what they then are, spans of an ordinary script.
"""

import atexit
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanContext
from opentelemetry.util.types import Attributes

from trainspan import names, settings
from trainspan.distro.steps import SAMPLED, CurrentStep
from trainspan.guard import warn_once
from trainspan.identity import Identity
from trainspan.recording import places
from trainspan.relay.otlp.destinations import destination
from trainspan.relay.otlp.outlet import Outlet
from trainspan.relay.otlp.resource import rank_resource

if TYPE_CHECKING:
    from trainspan.record.recorder import Recorder

MOST_SPANS: Final = 2000
"""Spans of scripts in one trace of ours, over all ranks; held in one step; waiting to be handed over."""

FLUSH_S: Final = 1.0
CLOSE_S: Final = 2.0
"""How long the end of the process waits for the endpoint; what is left is on disk."""


class Outbox:
    """The finished spans of this process. No call raises, and none waits for the network but `close`."""

    _outlet: Outlet | None
    _resource: Resource | None
    _thread: threading.Thread | None
    _closed: threading.Event

    def __init__(self, step: CurrentStep, environ: Mapping[str, str]):
        self._step = step
        self._environ = {**environ, "OTEL_METRICS_EXPORTER": "none", "OTEL_LOGS_EXPORTER": "none"}
        self._recorder: Recorder | None = None
        self._asleep = False
        self._begin_anew()
        os.register_at_fork(after_in_child=self._forget)
        # Registered before everything that the script registers, so run after it.
        atexit.register(self.close)

    def follow(self, recorder: "Recorder") -> None:
        """Follow a recorder: what has waited may go once it records, and must go when it ends."""
        self._recorder = recorder
        recorder.on_begin(self._wake)
        recorder.on_close(self.close)

    def put(self, span: ReadableSpan) -> None:
        """Take over a span that has ended. Cost: 4 µs."""
        if self._closed.is_set() or span.context is None:
            return
        with self._quietly(), self._lock:
            self._settle()
            if span.context.trace_id == self._running_trace():
                self._held_trace = span.context.trace_id
                _add(self._held, span)
            elif span.context.trace_flags.sampled:
                _add(self._ready, span)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="trainspan-spans", daemon=True)
                self._thread.start()

    def flush(self) -> None:
        """Hand over what belongs to steps that have ended, if there is a place for it by now."""
        identity = self._recorded()
        if identity is None or self._closed.is_set():
            return
        spans: list[ReadableSpan] = []
        with self._quietly(), self._lock:
            self._settle()
            spans = self._drain()
        with self._quietly(), self._handing_over:
            self._hand_over(spans, identity)

    def close(self) -> None:
        """Hand over everything and wait for its delivery, CLOSE_S at most."""
        if self._closed.is_set():
            return
        self._closed.set()
        spans: list[ReadableSpan] = []
        with self._quietly(), self._lock:
            self._settle()
            self._end_step()
            spans = self._drain()
        with self._quietly(), self._handing_over:
            identity = self._recorded()
            if identity is not None:
                self._hand_over(spans, identity)
            elif spans:
                self._deliver_unrecorded(spans)
            if self._outlet is not None:
                self._outlet.close(CLOSE_S)

    def _begin_anew(self) -> None:
        # Reentrant: a signal's handler may end a span while its thread is in here.
        self._lock = threading.RLock()
        self._handing_over = threading.RLock()
        self._ready: list[ReadableSpan] = []
        self._held: list[ReadableSpan] = []  # all of the trace `_held_trace`
        self._held_trace = 0
        self._outlet = None
        self._resource = None
        self._thread = None
        self._closed = threading.Event()

    def _forget(self) -> None:
        """In a forked child: the spans are the parent's. A child that records has its own."""
        self._begin_anew()
        self._closed.set()
        self._asleep = True

    def _wake(self) -> None:
        if self._asleep:
            self._asleep = False
            self._closed.clear()

    def _run(self) -> None:
        while not self._closed.wait(FLUSH_S):
            self.flush()

    def _recorded(self) -> Identity | None:
        return self._recorder.identity if self._recorder is not None else None

    def _running_trace(self) -> int | None:
        return self._step.context().trace_id if self._step.number is not None else None

    def _settle(self) -> None:
        """Let go of what was held for a step that has ended since."""
        if self._held and self._held_trace != self._running_trace():
            for span in self._held:
                if span.context and span.context.trace_flags.sampled:
                    _add(self._ready, span)
            self._held.clear()

    def _end_step(self) -> None:
        """Decide what becomes of what is held, now that the running step will not end."""
        identity = self._recorded()
        if identity is None or self._recorder is None:
            return
        step, process = self._step.context(), self._step.process_of(identity)
        goal = step if self._recorder.left_by_exception else process
        self._ready.extend(_moved(span, step, goal) for span in self._held)
        self._held.clear()

    def _drain(self) -> list[ReadableSpan]:
        spans, self._ready = self._ready, []
        return spans

    def _hand_over(self, spans: list[ReadableSpan], identity: Identity) -> None:
        if not spans:
            return
        resource = self._resource or rank_resource(identity, self._environ)
        if self._outlet is None:
            values = settings.load(self._environ)[0]
            folder = places.make_private(places.run_folder(settings.state_dir(values, self._environ), identity.run))
            self._outlet = Outlet(folder, None, self._environ, values.spool_bytes, _say)
            self._resource = resource
        owned = [s if s.resource == resource else _copy(s, s.context, s.parent, resource) for s in spans]
        self._outlet.put_spans(owned)

    def _deliver_unrecorded(self, spans: list[ReadableSpan]) -> None:
        """Deliver the spans of a process that has not trained: there is no run, and no process to be below of."""
        if destination("traces", self._environ).kind not in ("otlp", "console"):
            return
        named = self._step.identity
        process = self._step.process_of(named).span_id if named is not None else None
        folder = Path(tempfile.mkdtemp(prefix="trainspan-"))
        try:
            self._outlet = Outlet(folder, None, self._environ, settings.load(self._environ)[0].spool_bytes, _say)
            self._outlet.put_spans([_copy(s, s.context, None, s.resource) if _below(s, process) else s for s in spans])
            self._outlet.close(CLOSE_S)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    @contextmanager
    def _quietly(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            _say(f"spans of the script are lost ({type(error).__name__}: {error})")


def _add(queue: list[ReadableSpan], span: ReadableSpan) -> None:
    if len(queue) < MOST_SPANS:
        queue.append(span)
    else:
        warn_once("spans waiting", f"{MOST_SPANS} spans of the script are waiting; more are dropped")


def _say(text: str) -> None:
    warn_once(f"spans {text:.40}", text)


def _below(span: ReadableSpan, span_id: int | None) -> bool:
    return span.parent is not None and span.parent.span_id == span_id


def _moved(span: ReadableSpan, step: SpanContext, goal: SpanContext) -> ReadableSpan:
    """A span of the running step, as one of `goal` and its trace."""
    parent = goal if _below(span, step.span_id) else _in_trace(span.parent, goal.trace_id)
    attributes = dict(span.attributes or {})
    if goal is not step:
        attributes.pop(names.STEP, None)
    return _copy(span, _in_trace(span.context, goal.trace_id), parent, span.resource, attributes)


def _in_trace(found: SpanContext | None, trace_id: int) -> SpanContext | None:
    if found is None:
        return None
    return SpanContext(trace_id, found.span_id, found.is_remote, SAMPLED, found.trace_state)


def _copy(
    span: ReadableSpan,
    context: SpanContext | None,
    parent: SpanContext | None,
    resource: Resource,
    attributes: Attributes = None,
) -> ReadableSpan:
    return ReadableSpan(
        span.name,
        context,
        parent,
        resource,
        span.attributes if attributes is None else attributes,
        span.events,
        span.links,
        span.kind,
        status=span.status,
        start_time=span.start_time,
        end_time=span.end_time,
        instrumentation_scope=span.instrumentation_scope,
    )
