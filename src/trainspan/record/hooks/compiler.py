"""Compilations: what Dynamo notes of each, read at the end of the step in which they happened.

Dynamo keeps the newest of them, with times and reasons, whoever asks; nothing is called back, nothing is registered,
and what is compiled is not touched. Each is a span `training.compile`; the event `compiled` has `compilations`,
`recompilations` and `graph_breaks` so far. Cost: 0.1 µs a step without one.

It keeps 64. Of more in one step the oldest are gone: Dynamo's own number of each frame's compilations tells how many.
They are in `compilations`, but have no span, and it is not known which of them were recompilations.
"""

import sys
from collections.abc import Callable
from time import monotonic_ns, time_ns
from types import ModuleType
from typing import Any, Final

from trainspan import names
from trainspan.guard import warn_once
from trainspan.record.spans import SpanTeller

METRICS_MODULE: Final = "torch._dynamo.utils"
_FRAMES_MODULE: Final = "torch._dynamo.convert_frame"
_REASON_CHARACTERS: Final = 512


class Compilations:
    """Reads on from where it was.

    Args:
        spans: tells of each compilation.
        tell: `tell("compiled", **fields)` appends an event.

    Attributes:
        count: compilations so far.
    """

    def __init__(self, spans: SpanTeller, tell: Callable[..., None]):
        self.count = 0
        self._spans = spans
        self._tell = tell
        self._recompilations = 0
        self._graph_breaks = 0
        self._breaks_seen = 0
        self._counter: Any = None
        self._package: ModuleType | None = None
        self._newest: Any = None
        self._begun = 0  # compilations, as Dynamo itself counts them

    def follow(self, package: ModuleType) -> None:
        """Read `torch._dynamo.utils` from now on; somebody has imported it."""
        self._package = package

    def step_ended(self) -> None:
        """Tell of the compilations since the last time."""
        package = self._package
        if package is None:
            return
        try:
            kept = package._compilation_metrics
            if kept and kept[-1] is not self._newest:
                self._read(package, kept)
        except Exception as error:
            self._package = None
            warn_once("compilations", f"compilations are not seen in this torch ({type(error).__name__}: {error})")

    def _read(self, package: ModuleType, kept: Any) -> None:
        fresh: list[Any] = []
        for noted in reversed(kept):
            if noted is self._newest:
                break
            fresh.append(noted)
        self._count_lost(fresh, is_gap=len(fresh) == kept.maxlen)
        self._newest = kept[-1]
        since_boot_ns = monotonic_ns() - time_ns()
        for noted in reversed(fresh):
            self._take(noted, since_boot_ns)
        counter = package.counters["graph_break"]
        breaks = sum(counter.values())
        # Whoever sets the counters back begins another one.
        self._graph_breaks += breaks - (self._breaks_seen if counter is self._counter else 0)
        self._breaks_seen, self._counter = breaks, counter
        self._tell(
            "compiled",
            compilations=self.count,
            recompilations=self._recompilations,
            graph_breaks=self._graph_breaks,
        )

    def _count_lost(self, fresh: list[Any], *, is_gap: bool) -> None:
        """Take over what Dynamo has begun to compile since the last time and does not keep any more.

        Args:
            fresh: what it keeps since then. A backward is no frame: it is not among those that are counted.
            is_gap: whether there may have been more.
        """
        frames = getattr(sys.modules.get(_FRAMES_MODULE), "FRAME_COMPILE_COUNTER", None)
        if frames is None:
            return
        begun, seen = sum(frames.values()), self._begun
        self._begun = begun
        since = begun - seen if begun >= seen else begun  # `torch._dynamo.reset` begins anew
        lost = since - sum(getattr(noted, "is_forward", True) is not False for noted in fresh)
        if is_gap and lost > 0:
            self.count += lost
            warn_once("compilations.lost", f"{lost} compilations of one step are counted, but have no span")

    def _take(self, noted: Any, since_boot_ns: int) -> None:
        start_ns, end_ns = _times_of(noted)
        if start_ns is None or end_ns is None or end_ns < start_ns:
            return
        reason = getattr(noted, "recompile_reason", None)
        self.count += 1
        # Before torch 2.6 no reason is kept, only how often the function had been compiled before.
        self._recompilations += bool(reason or getattr(noted, "cache_size", None))
        attributes = {
            names.COMPILE_FUNCTION: getattr(noted, "co_name", None),
            names.COMPILE_REASON: reason[:_REASON_CHARACTERS] if isinstance(reason, str) else None,
            names.COMPILE_DIRECTION: "backward" if getattr(noted, "is_forward", True) is False else "forward",
            names.COMPILE_OPS: getattr(noted, "graph_op_count", None),
        }
        self._spans.span(
            names.SPAN_COMPILE,
            start_ns + since_boot_ns,
            end_ns + since_boot_ns,
            ok=getattr(noted, "fail_type", None) is None,
            state="compile",
            attributes={name: value for name, value in attributes.items() if value is not None},
        )


def _times_of(noted: Any) -> tuple[int | None, int | None]:
    """Unix ns at which a compilation began and ended."""
    start_us, end_us = getattr(noted, "start_time_us", None), getattr(noted, "end_time_us", None)
    if start_us is not None and end_us is not None:
        return int(start_us * 1000), int(end_us * 1000)
    start_s, took_s = getattr(noted, "start_time", None), getattr(noted, "entire_frame_compile_time_s", None)
    if start_s is None or took_s is None:
        return None, None
    return int(start_s * 1e9), int((start_s + took_s) * 1e9)
