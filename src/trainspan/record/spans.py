"""Stretches of time that are no phases of a step, told once they are over: the relay makes a span of each.

The event `span`: name, start_ns and end_ns, ok (False: an exception left it), attributes, and state: what the time is
charged to if it lies before the first step. Cost: 20 µs an event.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final

EARLY_TOLD: Final = 64
"""Spans before the recording is open: a process that never trains must not collect them."""

TOLD: Final = 10_000
"""Spans of one process: the event log has a bound, and the trace a smaller one."""


class SpanTeller:
    """Writes the events, and knows when to stop.

    Args:
        tell: `tell("span", **fields)` appends an event.
        is_recording: whether it goes to a recording, or is kept until there is one.

    Attributes:
        dropped: spans that were not told.
        said: names of spans that the script tells itself, now: what the hooks see of them is a part of that.
    """

    def __init__(self, tell: Callable[..., None], is_recording: Callable[[], bool]):
        self._tell = tell
        self._is_recording = is_recording
        self._early = 0
        self._told = 0
        self.dropped = 0
        self.said: Counter[str] = Counter()

    def span(
        self,
        name: str,
        start_ns: int,
        end_ns: int,
        *,
        ok: bool = True,
        state: str | None = None,
        attributes: Mapping[str, Any] | None = None,
    ) -> None:
        """Tell of one stretch that has ended.

        Args:
            name: of the span: `training.init.model`.
            start_ns, end_ns: monotonic.
            ok: False: an exception left it.
            state: what it is charged to before the first step; one of `names.STATES`.
            attributes: texts, numbers and truth values by their names.
        """
        early = not self._is_recording()
        if self._told >= TOLD or (early and self._early >= EARLY_TOLD):
            self.dropped += 1
            return
        self._told += 1
        self._early += early
        fields: dict[str, Any] = {"name": name, "start_ns": start_ns, "end_ns": end_ns, "ok": ok}
        if state is not None:
            fields["state"] = state
        if attributes:
            fields["attributes"] = dict(attributes)
        self._tell("span", **fields)
