"""The goodput engine fed live: what this node knows of the run, all attempts before this relay included.

Kept within bounds: what lies back is told in ever longer pieces (`RunHistory.thin`), by the count of facts and not by
a clock, so that a replay and a loop of fast steps are bounded too. What cannot be seen from one node, the job over all
of them, is `trainspan goodput`'s to say, from the ledgers of all nodes.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from trainspan.relay.goodput import ledger
from trainspan.relay.goodput.facts import Fact, StepRun
from trainspan.relay.goodput.history import RunHistory
from trainspan.relay.goodput.queries import WHOLE, Scope, Window, pace, report, rolling

_S: Final = 1_000_000_000
ROLLING_NS: Final[Mapping[str, int]] = {"1h": 3600 * _S, "24h": 86400 * _S}
THIN_EVERY: Final = 16_384
"""Facts of a rank, on average, between two looks for what can be told in less detail."""


class Resumption(NamedTuple):
    """What an attempt begins with: how long nothing ran before it, and how many steps it does again.

    `known`: whether the number of steps is final; before the first step it may not be.
    """

    gap_ns: int
    steps_again: int
    known: bool


class RankGoodput(NamedTuple):
    """What the engine says of a rank now.

    `goodput`: by window (`run`, `attempt`, `1h`, `24h`), without those that hold no time.
    `deviation_s`: of the newest steps from the ideal one; None without steps.
    """

    goodput: Mapping[str, float]
    deviation_s: float | None


class LiveHistory:
    """Facts as they come, and answers for the metrics.

    Args:
        past: the files of the ledger to be read before the first fact is taken in; asked then.
    """

    def __init__(self, past: Callable[[], Iterable[Path]]):
        self._past = past
        self._read: RunHistory | None = None
        self._since_thinned = 0

    def add(self, facts: Iterable[Fact]) -> None:
        """Take facts in; any order, any number of times."""
        self._take(self._history, facts)

    @property
    def places(self) -> int:
        """How much detail is kept: stretches that steps are told in, over all ranks and attempts."""
        return sum(len(life.steps) for attempt in self._history.attempts for life in self._history.lives_in(attempt))

    def resumption(self, attempt: int) -> Resumption:
        """What the attempt begins with."""
        for disruption in self._history.disruptions():
            if disruption.attempt == attempt:
                gap_ns = max(disruption.begun_ns - disruption.failed_ns, 0)
                return Resumption(gap_ns, disruption.lost_steps, bool(disruption.known_by))
        return Resumption(0, 0, known=True)

    def restarts(self, told: Mapping[int, str] = {}) -> dict[str, int]:
        """Attempts after another, by why: after a `failure`, or `planned`: all ranks had closed in good order.

        Args:
            told: why an attempt was begun, as its launcher has said it; it knows better than how the last one ended.
        """
        reasons = Counter({"failure": 0, "planned": 0})
        for disruption in self._history.disruptions():
            seen = "planned" if disruption.planned else "failure"
            reasons[told.get(disruption.attempt, seen)] += 1
        return dict(reasons)

    def of_rank(self, rank: int, attempt: int, now_unix_ns: int) -> RankGoodput:
        """What the engine says of a rank. Cost: 2 ms."""
        until_now = Window(now_ns=now_unix_ns)  # a rank that lives and is silent loses time meanwhile
        asked: dict[str, tuple[Window, Scope]] = {
            "run": (until_now, Scope(rank=rank)),
            "attempt": (until_now, Scope(rank=rank, attempt=attempt)),
            **{name: (rolling(length_ns, now_unix_ns), Scope(rank=rank)) for name, length_ns in ROLLING_NS.items()},
        }
        said = {name: report(self._history, *question).goodput for name, question in asked.items()}
        found = pace(self._history, WHOLE, Scope(rank=rank))
        return RankGoodput(
            {name: goodput for name, goodput in said.items() if goodput is not None},
            None if found is None else found.deviation_s,
        )

    def _take(self, history: RunHistory, facts: Iterable[Fact]) -> None:
        for fact in facts:
            history.add(fact)
            self._since_thinned += len(fact.numbers) if isinstance(fact, StepRun) else 1
        if self._since_thinned >= THIN_EVERY * max(len(history.ranks), 1):
            self._since_thinned = 0
            if history.last_sign_ns is not None:
                history.thin(history.last_sign_ns)

    @property
    def _history(self) -> RunHistory:
        if self._read is None:
            self._read = RunHistory()
            for path in self._past():
                self._take(self._read, ledger.read_file(path, ledger.Reading()))
        return self._read
