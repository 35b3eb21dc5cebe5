"""The current span of a training thread: the running step, under the ids that the relay will export it with.

    before the first step     training.process, in the trace of the attempt
    from then on              training.rank_step, in the trace of the step

One span is attached, once for each training thread, and it answers for whatever runs when it is asked. So nothing is
done at the boundary of a step, and there is no token that could be given back too late: what a script attaches around
its loop stays until the script takes it away, and a generator or a task that took its copy of the context in one step
still sees the next one.

The ids are hashes (law 5), so nothing has to be told to anybody. Whether a step is sampled is decided as the relay
decides it.
"""

import os
from typing import TYPE_CHECKING, Final

from opentelemetry import context, trace
from opentelemetry.trace import INVALID_SPAN_CONTEXT, NonRecordingSpan, SpanContext, TraceFlags

from trainspan import settings, startup
from trainspan.guard import warn_once
from trainspan.identity import Identity, identify, is_named, span_id_of, trace_id_of
from trainspan.recording import attempts
from trainspan.role import Role
from trainspan.sampling import sampling_from

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainspan.record.recorder import Recorder

# "Random trace id" (W3C Trace Context, level 2): the hash spreads evenly, which is what the flag promises to samplers.
SAMPLED: Final = TraceFlags(0x03)
NOT_SAMPLED: Final = TraceFlags(0x02)


class CurrentStep:
    """What the training of this process is at, as OpenTelemetry names it.

    Args:
        named: who this process is before it records, if that is certain; None otherwise.
    """

    def __init__(self, named: Identity | None = None):
        self.named = named
        self.sampling = sampling_from(os.environ)[0]
        self._recorder: Recorder | None = None
        self._step: tuple[tuple[Identity, int | None], SpanContext] | None = None
        self._process: tuple[Identity, SpanContext] | None = None

    def follow(self, recorder: "Recorder") -> None:
        """Follow a recorder, on each thread that it finds to train. Never raises."""
        self._recorder = recorder
        recorder.on_begin(self.attach)
        recorder.on_adopt(self.attach)
        if recorder.recording:
            self.attach()

    def attach(self) -> None:
        """Become the current span of the calling thread, unless it has one. Never raises."""
        try:
            if trace.get_current_span() is trace.INVALID_SPAN:
                context.attach(trace.set_span_in_context(StepSpan(self.context)))
        except Exception as error:
            warn_once("follow", f"spans of the script do not follow its steps ({type(error).__name__}: {error})")

    @property
    def identity(self) -> Identity | None:
        """Who this process is in the run; None if it is not known to train."""
        recorded = self._recorder.identity if self._recorder is not None else None
        return recorded or self.named

    @property
    def number(self) -> int | None:
        """Number of the running step; None before the first one, and where nothing is recorded."""
        recorder = self._recorder
        if recorder is None or recorder.identity is None or not recorder.marker.started():
            return None
        return recorder.marker.steps()

    def context(self) -> SpanContext:
        """The context of the running step, or of the process; invalid where it is not known to train.

        Cost: 0.9 µs; 12 µs once in a step.
        """
        identity, number = self.identity, self.number
        if identity is None:
            return INVALID_SPAN_CONTEXT
        if number is None:
            return self.process_of(identity)
        known = self._step
        if known is None or known[0] != (identity, number):
            known = self._step = (identity, number), self._context_of(identity, number)
        return known[1]

    def process_of(self, identity: Identity) -> SpanContext:
        """The context of the process of a rank."""
        known = self._process
        if known is None or known[0] != identity:
            known = self._process = identity, self._context_of(identity, None)
        return known[1]

    def _context_of(self, identity: Identity, number: int | None) -> SpanContext:
        what = ("attempt",) if number is None else ("step", number)
        trace_id = trace_id_of(identity.run, identity.attempt, *what)
        span_id = span_id_of(identity.run, identity.attempt, *what, "rank", identity.rank)
        if number is None:
            sampled = not self.sampling.off
        else:
            sampled = self.sampling.reason_for_step(number, trace_id) is not None
        return SpanContext(trace_id, span_id, is_remote=True, trace_flags=SAMPLED if sampled else NOT_SAMPLED)


class StepSpan(NonRecordingSpan):
    """Stands for a span that the relay makes; whoever starts a span below it is told where it is now."""

    def __init__(self, now: "Callable[[], SpanContext]"):
        super().__init__(INVALID_SPAN_CONTEXT)
        self._now = now

    def get_span_context(self) -> SpanContext:
        """The context of what is running."""
        return self._now()

    def __repr__(self) -> str:
        return f"StepSpan({self.get_span_context()!r})"


_following: CurrentStep | None = None


def current_step(*, named: bool = False) -> CurrentStep:
    """The one of this process; the first call makes it.

    Args:
        named: this process is a rank from its beginning, if the environment says of which run.
    """
    global _following  # noqa: PLW0603 - a process has one training, and hooks that cannot be taken out again
    if _following is None:
        _following = CurrentStep(identity_by_environment() if named else None)
        startup.on_recorder(_following.follow)
    return _following


def identity_by_environment() -> Identity | None:
    """Who this process is, if a launcher, a scheduler or the user names the run; None if that is known later."""
    values = settings.load(os.environ)[0]
    found = identify(values, os.environ, Role.RANK)
    return attempts.numbered(found, values, os.environ, begins=False) if is_named(found, os.environ) else None


def follow_steps() -> None:
    """Make the spans of this script children of the step they happen in, whatever TracerProvider it uses.

    Call it once, before the training loop, on the thread that trains; `opentelemetry-instrument` does it by itself. A
    span started below one of the script's own stays where it is. Without a recording it changes nothing.

    The provider's sampler decides for root spans only, if it is parent-based, as the default is: it then follows the
    step, so that a trace is exported whole or not at all.
    """
    current_step().attach()
