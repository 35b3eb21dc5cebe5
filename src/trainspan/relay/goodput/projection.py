"""How often to save: the checkpoint interval that would lose the least time, from what the run has measured.

With failures at rate r, a save that blocks for w, a recovery of u and an interval t of training between two saves,
a failure costs the recovery and half an interval of work, and each interval costs a save:

    E[ETTR](t) = (1 - r (u + t/2)) / (1 + w/t)

Source: Kokolis et al., "Revisiting Reliability in Large-Scale Machine Learning Research Clusters", HPCA 2025
(arXiv 2410.21680), which reports it within about 5 % of simulation. Its t* = sqrt(2 w / r), Young's formula of 1974, is
the maximum where r u and w/t are small; the maximum of the expression itself, which is used here, is

    t* = sqrt(w^2 + 2 w (1 - r u) / r) - w

What the program does between failures and saves (waiting for input, validation) is outside this model.
"""

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from trainspan.relay.goodput.history import Disruption, RunHistory
from trainspan.relay.goodput.queries import NS, WHOLE, Scope, Window, account_ns, disruptions_in, report

DAY_S = 86_400.0


class Measured(NamedTuple):
    """What a run has shown. None: it has not happened yet, so nobody knows.

    `failures`: attempts that followed a failure, in `elapsed_s` of the job.
    `save_s`: blocking time of one save.
    `recovery_s`: from the last sign of life to the first step, and the compilation in the first steps.
    `interval_s`: training between two saves, the median.
    """

    failures: int
    elapsed_s: float
    save_s: float | None
    recovery_s: float | None
    interval_s: float | None


@dataclass(frozen=True, slots=True)
class Projection:
    """What the interval in use costs, and which one would cost least. ETTR as in `queries`, as the model expects it.

    Attributes:
        failures_per_day: measured.
        save_s: measured.
        recovery_s: measured.
        interval_s: measured.
        best_interval_s: training between two saves that loses the least time; 0 when saving costs nothing.
        expected_ettr: with the interval in use.
        best_ettr: with the best one.
        cost_s_per_day: time a day that the interval in use loses against the best one.
    """

    failures_per_day: float
    save_s: float
    recovery_s: float
    interval_s: float
    best_interval_s: float
    expected_ettr: float
    best_ettr: float
    cost_s_per_day: float

    def to_json(self) -> dict[str, float]:
        """The projection as JSON holds it; the keys are the attributes."""
        return asdict(self)


def expected_ettr(rate_per_s: float, save_s: float, recovery_s: float, interval_s: float) -> float:
    """The module's E[ETTR]; 0 where failures come faster than the run can recover."""
    kept = max(1 - rate_per_s * (recovery_s + interval_s / 2), 0.0)
    return kept * interval_s / (interval_s + save_s) if save_s > 0 else kept


def best_interval_s(rate_per_s: float, save_s: float, recovery_s: float) -> float:
    """The module's t*. `rate_per_s` must be above zero."""
    kept = max(1 - rate_per_s * recovery_s, 0.0)
    return math.sqrt(save_s * save_s + 2 * save_s * kept / rate_per_s) - save_s


def measure(history: RunHistory, window: Window = WHOLE) -> Measured:
    """What the run has shown in the window. Cost: a report, and below 1 us for each save and each disruption in it.

    Of the whole time, what attempts that are over have shown is kept.
    """
    answer = report(history, window)
    saves, disruptions = history.saves(), history.disruptions(window.now_ns)
    if window.is_whole:
        newest = bisect_left(saves, (history.newest,))
        over = history.once("shown", lambda: _shown(history, saves[:newest], disruptions[:-1]))
        shown = over.and_then(_shown(history, saves[newest:], disruptions[-1:]))
    else:
        stretches = window.stretches()
        saves = [save for save in saves if any(first_ns <= save[2] < end_ns for first_ns, end_ns in stretches)]
        shown = _shown(history, saves, disruptions_in(history, window))
    save_s = answer.badput_s.get("checkpoint_save", 0.0) / len(saves) if saves else None
    return Measured(
        failures=answer.disruptions,
        elapsed_s=answer.total_s,
        save_s=save_s,
        recovery_s=shown.recovery_ns / shown.recoveries / NS if shown.recoveries else None,
        interval_s=max(median(shown.spans_ns) / NS - (save_s or 0.0), 0.0) if shown.spans_ns else None,
    )


class _Shown(NamedTuple):
    """What some attempts have shown. `spans_ns`: between two saves, in order of length. `recovery_ns`: of all."""

    spans_ns: list[int]
    recoveries: int
    recovery_ns: int

    def and_then(self, more: "_Shown") -> "_Shown":
        """And what others have."""
        spans_ns = sorted([*self.spans_ns, *more.spans_ns])
        return _Shown(spans_ns, self.recoveries + more.recoveries, self.recovery_ns + more.recovery_ns)


def _shown(history: RunHistory, saves: Sequence[tuple[int, int, int]], disruptions: Iterable[Disruption]) -> _Shown:
    lengths_ns = [
        disruption.first_step_ns - disruption.failed_ns + _compile_ns(history, disruption.attempt)
        for disruption in disruptions
        if disruption.first_step_ns is not None and not disruption.planned
    ]
    spans_ns = sorted(after[2] - before[2] for before, after in pairwise(saves) if before[0] == after[0])
    return _Shown(spans_ns, len(lengths_ns), sum(lengths_ns))


def _compile_ns(history: RunHistory, attempt: int) -> int:
    return account_ns(history, scope=Scope(attempt=attempt)).get("compile", 0)


def project(measured: Measured) -> Projection | None:
    """What another interval would bring; None while failures, recoveries or two saves have not been seen."""
    _, elapsed_s, save_s, recovery_s, interval_s = measured
    if not measured.failures or elapsed_s <= 0 or save_s is None or recovery_s is None or interval_s is None:
        return None
    rate_per_s = measured.failures / elapsed_s
    best_s = best_interval_s(rate_per_s, save_s, recovery_s)
    now = expected_ettr(rate_per_s, save_s, recovery_s, interval_s)
    best = expected_ettr(rate_per_s, save_s, recovery_s, best_s)
    return Projection(
        failures_per_day=rate_per_s * DAY_S,
        save_s=save_s,
        recovery_s=recovery_s,
        interval_s=interval_s,
        best_interval_s=best_s,
        expected_ettr=now,
        best_ettr=best,
        cost_s_per_day=(best - now) * DAY_S,
    )
