"""A run that was launched again under the same number of attempt: each launch becomes an attempt of its own.

Attempts are numbered by what starts the ranks (torchrun, SLURM, TRAINSPAN_ATTEMPT). Who starts a run again by hand with
nothing but its id tells of a second process of rank 0 in attempt 0. A process begins once, so a rank that begins again
is in the next launch; what is told of a time belongs to the launch that was the last to begin by then.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator

from trainspan.relay.goodput.facts import Begun, Fact, StepRun, start_of

SAME_NS = 1_000_000_000
"""Two beginnings of a rank within it are one, read from two clocks."""


class Launches:
    """When the launches of each attempt began."""

    def __init__(self) -> None:
        self._begun: dict[int, set[tuple[int, int]]] = {}
        self._shift: dict[int, int] = {}
        self._again_ns: dict[int, list[int]] = {}

    def watch(self, facts: Iterable[Fact]) -> Iterator[Fact]:
        """The same facts; those who begin are noted."""
        for fact in facts:
            if isinstance(fact, Begun):
                self._begun.setdefault(fact.attempt, set()).add((fact.at_ns, fact.rank))
            yield fact

    def repeated(self) -> bool:
        """Whether an attempt has been launched more than once, as far as was watched."""
        shift = 0
        for attempt, begun in sorted(self._begun.items()):
            self._shift[attempt], self._again_ns[attempt] = shift, _again_ns(begun)
            shift += len(self._again_ns[attempt])
        return shift > 0

    def number(self, facts: Iterable[Fact]) -> Iterator[Fact]:
        """The facts, each with the number of its launch; ask `repeated` before."""
        for fact in facts:
            again_ns = self._again_ns.get(fact.attempt, [])
            spans = isinstance(fact, StepRun) and any(fact.starts_ns[0] < at <= fact.starts_ns[-1] for at in again_ns)
            for one in fact.told() if isinstance(fact, StepRun) and spans else (fact,):
                launch = fact.attempt + self._shift.get(fact.attempt, 0) + bisect_right(again_ns, start_of(one))
                yield one._replace(attempt=launch)


def _again_ns(begun: Iterable[tuple[int, int]]) -> list[int]:
    """When the second launch began, and each one after it."""
    again_ns: list[int] = []
    seen: dict[int, int] = {}
    for at_ns, rank in sorted(begun):
        if rank in seen and at_ns - seen[rank] >= SAME_NS:
            again_ns.append(at_ns)
            seen = {}
        seen.setdefault(rank, at_ns)
    return again_ns
