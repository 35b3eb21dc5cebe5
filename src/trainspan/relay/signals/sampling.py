"""Which steps get a trace, by what came of them.

What number and trace id decide alone is in `trainspan.sampling`. While `OTEL_TRACES_SAMPLER` is not set, a step that
turned out slow is sampled too, one in which a rank held the others up (`straggler`), and the last one. Slow is what a
node finds slow: one whose ranks kept pace leaves its part out. A straggler is known to its own node, by the ranks
beside it: the trace holds these, and those of other nodes where it is one of the share. A step that failed is always
sampled, unless sampling is off.

So of some steps every node makes its part of the trace, and of others only the nodes whose own outcome says so.
"""

from bisect import bisect_left, insort
from collections import deque
from typing import Final

from trainspan.identity import trace_id_of
from trainspan.sampling import Sampling

LAST: Final = "last"

SLOW_FACTOR: Final = 2
"""A step is slow when it takes longer than this many times the median of the steps before it."""
SLOW_AFTER: Final = 20
"""Steps before a median counts."""
SLOW_WINDOW: Final = 101
"""Steps the median is taken over."""
STRAGGLER_SHARE: Final = 0.25
"""Of a step: a rank is a straggler in it when it held the others up for longer. They take a third longer with it."""
SLOW_BURST: Final = 5
"""Slow steps sampled one after the other; after that one a minute. The same for those with a straggler."""
SLOW_EVERY_NS: Final = 60_000_000_000
SLOW_MOST: Final = 500
"""Slow steps sampled in one attempt, and as many with a straggler."""


class StepSampler:
    """Decides for the steps of one attempt, asked once for each step, in order."""

    def __init__(self, sampling: Sampling, run: str, attempt: int):
        self.sampling = sampling
        self._run = run
        self._attempt = attempt
        self._first_number: int | None = None
        self._pace = _Pace()
        self._slow = _Allowance()
        # One of its own: a rank that is late in every step must not use up what is there for slow ones.
        self._straggling = _Allowance()

    def reason_for(
        self, number: int, duration_ns: int, end_ns: int, *, failed: bool = False, held_up_ns: int = 0
    ) -> str | None:
        """Why step `number` gets a trace; None if it gets none.

        Args:
            number: of the step.
            duration_ns: of the local rank that took longest.
            end_ns: when that rank ended it, on any clock of this node that does not go back.
            failed: whether a phase of it was left by an exception, or a process ended in it.
            held_up_ns: for how long one rank held the others of this node up in it.

        Cost: 4 µs.
        """
        if self._first_number is None:
            self._first_number = number
        unset = self.sampling.name is None
        # Asked first, because it must see every step.
        slow = unset and self._pace.is_slow(duration_ns)
        straggling = unset and self._pace.is_known and held_up_ns > STRAGGLER_SHARE * duration_ns
        if self.sampling.off:
            return None
        if failed:
            return "failed"
        trace_id = trace_id_of(self._run, self._attempt, "step", number)
        reason = self.sampling.reason_for_step(number, trace_id, self._first_number)
        # What is traced anyhow takes nothing from the bound of slow steps, and says that it was slow all the same.
        if slow and (reason is not None or self._slow.admit(end_ns)):
            return "slow"
        if straggling and (reason is not None or self._straggling.admit(end_ns)):
            return "straggler"
        return reason

    def reason_for_last(self) -> str | None:
        """Why the last step of the attempt gets a trace though `reason_for` gave it none; None if it gets none."""
        return LAST if self.sampling.name is None else None

    def everywhere(self, number: int, reason: str) -> bool:
        """Whether every node makes its part of the trace of step `number`, which has one here for `reason`."""
        if reason == LAST:
            return True  # ranks that come to their end come to the same one
        trace_id = trace_id_of(self._run, self._attempt, "step", number)
        return self.sampling.reason_for_step(number, trace_id, self._first_number or 0) is not None


class _Pace:
    """The median step time of late."""

    def __init__(self) -> None:
        self._recent: deque[int] = deque()
        self._sorted: list[int] = []

    @property
    def is_known(self) -> bool:
        """Whether the job has found its pace: before that, ranks differ for reasons everybody knows."""
        return len(self._sorted) > SLOW_AFTER

    def is_slow(self, duration_ns: int) -> bool:
        """Whether a step takes far longer than those before it; it counts for those after it."""
        slow = len(self._sorted) >= SLOW_AFTER and duration_ns > SLOW_FACTOR * self._sorted[len(self._sorted) // 2]
        if len(self._recent) == SLOW_WINDOW:
            del self._sorted[bisect_left(self._sorted, self._recent.popleft())]
        self._recent.append(duration_ns)
        insort(self._sorted, duration_ns)
        return slow


class _Allowance:
    """How many steps may still be sampled for one reason."""

    def __init__(self) -> None:
        self._admitted = 0
        self._tokens = SLOW_BURST
        self._refilled_ns: int | None = None

    def admit(self, now_ns: int) -> bool:
        """Whether one more may be at `now_ns`; if so it is counted."""
        if self._refilled_ns is None:
            self._refilled_ns = now_ns
        refill = max(0, (now_ns - self._refilled_ns) // SLOW_EVERY_NS)
        self._tokens = min(SLOW_BURST, self._tokens + refill)
        self._refilled_ns += refill * SLOW_EVERY_NS
        if not self._tokens or self._admitted == SLOW_MOST:
            return False
        self._tokens -= 1
        self._admitted += 1
        return True
