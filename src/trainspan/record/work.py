"""What the user says the steps work through, where the shapes of batches do not tell: padding, packing, own loaders.

The event `work`: samples and tokens, totals of this process so far; null: the user counts none. What the user counts
stands in place of what the batches show. Told at the end of a step, at most once a second. Cost: 0.3 µs a call.
"""

from collections.abc import Callable
from time import monotonic_ns
from typing import Any, Final

from trainspan.record.arguments import whole_of
from trainspan.record.pace import Pace
from trainspan.record.recorder import Recorder

_PORTION_BYTES: Final = 1 << 18
_EVENT_BYTES: Final = 80


class WorkCount:
    """The totals of this process. `tell("work", **fields)` appends an event."""

    def __init__(self, tell: Callable[..., None], now_ns: Callable[[], int] = monotonic_ns):
        self._tell = tell
        self._now_ns = now_ns
        self.forget()

    def forget(self) -> None:
        """Begin anew: in a forked child, what was counted is the parent's."""
        self._totals: dict[str, int | None] = {"samples": None, "tokens": None}
        self._is_new = False
        self._pace = Pace(_PORTION_BYTES)

    def add(self, samples: Any, tokens: Any) -> list[str]:
        """Add to the totals what is a whole number from 0, or None; the names of what is neither. Never raises."""
        refused = []
        for name, given in (("samples", samples), ("tokens", tokens)):
            if given is not None:
                amount = whole_of(given)
                if amount is None:
                    refused.append(name)
                else:
                    self._totals[name] = (self._totals[name] or 0) + amount
                    self._is_new = True
        return refused

    def step_ended(self) -> None:
        """Tell the totals, if they are new and it is time."""
        if self._is_new:
            now_ns = self._now_ns()
            if self._pace.is_due(now_ns):
                self.close()
                self._pace.told(now_ns, _EVENT_BYTES)

    def close(self) -> None:
        """Tell the totals, if they are new."""
        if self._is_new:
            self._is_new = False
            self._tell("work", **self._totals)


def work_of(recorder: Recorder) -> WorkCount:
    """The count of this process."""
    return recorder.teller(WorkCount, lambda: WorkCount(recorder.event))
