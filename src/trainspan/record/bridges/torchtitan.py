"""torchtitan, by its structured logger: a handler of Python's own logging that listens to it.

It tells of the global step, of scalars (`log_trace_scalar`), and of what lies outside of the steps: building, the
process group, parallelization, teardown. Of what lies inside, which the hooks of torch see, it tells only of what they
do not: collecting garbage and evaluating. Checkpoints are those of DCP.
"""

import logging
from time import monotonic_ns, time_ns
from types import ModuleType
from typing import Any, Final

from trainspan.guard import warn_once
from trainspan.record.bridges.channel import Channel
from trainspan.record.patches import Patches

LOGGER: Final = "torchtitan.structured_logger"
TOLD_OF_A_STEP: Final = ("gc_collect", "eval")
CHECKPOINTS: Final = ("checkpoint_save", "checkpoint_load")

_NS_PER_MS: Final = 1e6


def install(module: ModuleType, patches: Patches, channel: Channel) -> None:
    """Listen to the structured logger.

    Raises:
        AttributeError: this version has no such logger.
    """
    logger = module._structured_logger
    handler = _Listener(channel)
    logger.addHandler(handler)
    patches.on_undo(lambda: logger.removeHandler(handler))


class _Listener(logging.Handler):
    """Hears every record; some versions hand them over from a thread of their own, a moment later."""

    def __init__(self, channel: Channel):
        super().__init__(logging.INFO)
        self._channel = channel
        self._in_step = False
        self._failed: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._take(record, getattr(record, "log_type_name", ""))
        except Exception as error:
            warn_once("torchtitan", f"not all that torchtitan logs is taken over: {type(error).__name__}: {error}")

    def _take(self, record: Any, what: str) -> None:
        if what == "metric_value":
            self._channel.scalars.log(record.event_name, record.value)
        elif what == "step_start":
            self._in_step = True
        elif what == "step_end":
            self._in_step = False
            self._channel.course.note(record.step, None)
        elif what.endswith("_error"):
            self._failed.add(what.removesuffix("_error"))
        elif what.endswith("_end"):
            self._end(what.removesuffix("_end"), record)

    def _end(self, name: str, record: Any) -> None:
        ok = name not in self._failed
        self._failed.discard(name)
        if name in CHECKPOINTS or (self._in_step and name not in TOLD_OF_A_STEP):
            return
        since_ns = max(0, time_ns() - int(record.created * 1e9))
        end_ns = monotonic_ns() - since_ns
        self._channel.spans.span(f"torchtitan.{name}", end_ns - int(record.value * _NS_PER_MS), end_ns, ok=ok)
