"""Which of many ranks stand out, and how a quantity spreads over them."""

from collections.abc import Sequence
from statistics import median
from typing import Final, NamedTuple

from trainspan.report.model import RankReport

SHOWN: Final = 10
LEAST_DEVIATION: Final = 0.1
"""A rank stands out only if it is this far from the median, relatively ..."""
LEAST_MADS: Final = 6.0
"""... and this many median absolute deviations; 6 are 4 standard deviations of normal noise."""
LEAST_OF_STEP: Final = 0.02
"""... and this share of a step: twice of nothing is nothing."""


class Outlier(NamedTuple):
    """A rank whose median time in one phase is far from that of the others, in either direction.

    Where ranks wait for each other the late one waits least: too long in one phase, too short in another.
    """

    rank: int
    host: str
    phase: str
    p50_s: float
    median_s: float


def find(ranks: Sequence[RankReport]) -> list[Outlier]:
    """The ranks that stand out, by the time they are off, the most first."""
    found: list[Outlier] = []
    step_s = median(rank.step.p50_s for rank in ranks if rank.step)
    for name in phases_of(ranks):
        phases = [(rank, phase) for rank in ranks for phase in rank.phases if phase.phase == name]
        middle_s = median(phase.spread.p50_s for _, phase in phases)
        mad_s = median(abs(phase.spread.p50_s - middle_s) for _, phase in phases)
        limit_s = max(LEAST_DEVIATION * middle_s, LEAST_MADS * mad_s, LEAST_OF_STEP * step_s)
        found += [
            Outlier(rank.rank, rank.host, name, phase.spread.p50_s, middle_s)
            for rank, phase in phases
            if abs(phase.spread.p50_s - middle_s) > limit_s
        ]
    return sorted(found, key=lambda one: abs(one.p50_s - one.median_s), reverse=True)


def phases_of(ranks: Sequence[RankReport]) -> list[str]:
    """Every phase that some rank has, in the order of the ranks' own lists."""
    longest = max((rank.phases for rank in ranks), key=len, default=())
    names = [phase.phase for phase in longest]
    rest = {phase.phase for rank in ranks for phase in rank.phases} - set(names)
    return names + sorted(rest)


def three(values: Sequence[float]) -> tuple[float, float, float]:
    """(least, median, greatest) of `values`, which are not empty."""
    return min(values), median(values), max(values)
