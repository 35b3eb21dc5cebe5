"""What the compiler took of a step, whoever called it there."""

from trainspan.relay.timeline.records import RankStep
from trainspan.relay.timeline.told import Told


class Compilations:
    """Those of one rank, until their steps have come."""

    def __init__(self) -> None:
        self._told: list[Told] = []

    def take(self, told: Told) -> None:
        """Take over what the rank tells; only what the compiler took counts."""
        if told.state == "compile":
            self._told.append(told)

    def time_in(self, step: RankStep) -> int:
        """Ns of `step` that the compiler took; what it took before its end is forgotten."""
        if not self._told:
            return 0
        until_ns, time_ns = step.start_ns, 0
        for told in sorted(self._told, key=lambda told: (told.start_ns, told.end_ns)):
            reach_ns = min(told.end_ns, step.end_ns)
            time_ns += max(reach_ns - max(told.start_ns, until_ns), 0)
            until_ns = max(reach_ns, until_ns)
        self._told = [told for told in self._told if told.end_ns > step.end_ns]
        return time_ns
