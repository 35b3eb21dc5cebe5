"""The energy of one GPU, charged to the ranks that train on it and to the phases they were in.

A window lies between two readings of the GPU's energy counter. What was drawn in it counts as drawn evenly, and each
rank is charged with its share of the window, by phase in proportion to the time it was in each. So:

* What was drawn before a rank's first step, after its end, or in a window no rank trained in, is charged to nobody.
* Of ranks that share the GPU each has its part of what one alone would have been charged with: never twice.

Error. The counter is refreshed about every 100 ms, so a window is off by up to 0.1 s at either end; neighbouring
windows share that end, and over n windows only the first and last remain: 0.3 % of a minute. The split by phase takes
the power for even within a window: a phase that draws less than another is charged with too much of it. So a phase's
energy says where the time of an expensive device goes, and single steps are not measured at all.

Source: https://ml.energy/blog/energy/measurement/measuring-gpu-energy-best-practices/ (the 100 ms).
"""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from trainspan.names import AnyPhase
from trainspan.relay.timeline.records import Interval, RankStep

PATIENCE_NS: Final = 900_000_000_000
"""How long a window waits for the step in which it ends: longer than the longest step there is."""

_MOST_WINDOWS: Final = 1024
_MOST_INTERVALS: Final = 100_000


class Charge(NamedTuple):
    """What a rank is charged with. `joules`: by phase. `time_ns`: that it trained while they were drawn."""

    joules: dict[AnyPhase, float]
    time_ns: int


Charges: TypeAlias = dict[str, Charge]
"""By rank."""


class _Window(NamedTuple):
    start_ns: int
    end_ns: int
    energy_j: float


class _Rank:
    """A rank on the GPU: the intervals of its steps that windows may still ask for."""

    def __init__(self) -> None:
        self.intervals: deque[Interval] = deque()
        self.start_ns: int | None = None  # of its first step
        self.known_ns = 0  # everything it did until then is known
        self.over = False

    def times_in(self, window: _Window) -> dict[AnyPhase, int]:
        """Ns in the window by phase."""
        times: dict[AnyPhase, int] = {}
        for phase, start_ns, end_ns, _ in self.intervals:
            if start_ns >= window.end_ns:
                break
            inside_ns = min(end_ns, window.end_ns) - max(start_ns, window.start_ns)
            if inside_ns > 0:
                times[phase] = times.get(phase, 0) + inside_ns
        return times

    def forget_until(self, end_ns: int) -> None:
        while self.intervals and self.intervals[0].end_ns <= end_ns:
            self.intervals.popleft()


class GpuEnergy:
    """One GPU and the ranks on it. All times are monotonic ns of their host."""

    def __init__(self) -> None:
        self._ranks: dict[str, _Rank] = {}
        self._windows: deque[_Window] = deque()
        self._last: tuple[int, float] | None = None
        self._has_counter = False
        self._last_power: tuple[int, float] | None = None
        self._integral_j = 0.0

    def join(self, rank: str) -> None:
        """That rank uses this GPU from now on."""
        self._ranks.setdefault(rank, _Rank())

    def add_steps(self, rank: str, steps: Sequence[RankStep]) -> None:
        """Take over steps of a rank that has joined, also the one it ended in."""
        known = self._ranks[rank]
        for step in steps:
            known.intervals.extend(step.intervals)
            if known.start_ns is None:
                known.start_ns = step.start_ns
            known.known_ns = step.end_ns
        while len(known.intervals) > _MOST_INTERVALS:
            known.intervals.popleft()

    def leave(self, rank: str) -> None:
        """That rank has ended: it has no more steps."""
        self._ranks[rank].over = True

    def read(self, at_ns: int, energy_j: float | None, power_w: float | None) -> None:
        """Take over a reading; a GPU without an energy counter is measured by its power, from reading to reading.

        A counter that does not answer for once goes on counting: the window reaches to its next answer.

        Args:
            at_ns: when it was read.
            energy_j: drawn since some beginning; None: there is no counter.
            power_w: at that moment; None: not known.
        """
        if energy_j is not None and not self._has_counter:
            self._has_counter, self._last = True, None  # what was integrated until now is another number
        total_j = energy_j if self._has_counter else self._integrated(at_ns, power_w)
        if total_j is None:
            return
        if self._last is None or total_j < self._last[1]:
            self._last = (at_ns, total_j)
        elif total_j > self._last[1] and at_ns > self._last[0]:
            self._windows.append(_Window(self._last[0], at_ns, total_j - self._last[1]))
            self._last = (at_ns, total_j)
        if len(self._windows) > _MOST_WINDOWS:
            self._windows.popleft()

    def rest(self) -> None:
        """Somebody else charges what is drawn from here on; the next reading is a first one again."""
        self._last = self._last_power = None
        if not self._windows:
            for rank in self._ranks.values():
                rank.intervals.clear()

    def settle(self, now_ns: int) -> Charges:
        """What can be charged now; a window waits until every rank has told what it did in it."""
        charges: Charges = {}
        while self._windows and self._is_due(self._windows[0], now_ns):
            window = self._windows.popleft()
            self._charge(window, charges)
            for rank in self._ranks.values():
                rank.forget_until(window.end_ns)
        for name in [name for name, rank in self._ranks.items() if rank.over and not rank.intervals]:
            if not self._windows:
                del self._ranks[name]
        return charges

    @property
    def in_use(self) -> bool:
        """Whether a rank uses it that has not ended."""
        return any(not rank.over for rank in self._ranks.values())

    def _integrated(self, at_ns: int, power_w: float | None) -> float | None:
        if power_w is None:
            return None
        if self._last_power is not None:
            before_ns, before_w = self._last_power
            self._integral_j += (power_w + before_w) / 2 * (at_ns - before_ns) * 1e-9
        self._last_power = (at_ns, power_w)
        return self._integral_j

    def _is_due(self, window: _Window, now_ns: int) -> bool:
        if now_ns - window.end_ns > PATIENCE_NS:
            return True
        return all(rank.over or rank.known_ns >= window.end_ns for rank in self._ranks.values())

    def _charge(self, window: _Window, charges: Charges) -> None:
        times = {name: rank.times_in(window) for name, rank in self._ranks.items()}
        trained_ns = sum(sum(by_phase.values()) for by_phase in times.values())
        if not trained_ns:
            return
        covered_ns = self._covered_ns(window, times)
        joules_per_ns = window.energy_j * covered_ns / (window.end_ns - window.start_ns) / trained_ns
        for name, by_phase in times.items():
            if by_phase:
                joules, charged_ns = charges.get(name, Charge({}, 0))
                for phase, time_ns in by_phase.items():
                    joules[phase] = joules.get(phase, 0.0) + time_ns * joules_per_ns
                charges[name] = Charge(joules, charged_ns + sum(by_phase.values()))

    def _covered_ns(self, window: _Window, times: Mapping[str, Mapping[AnyPhase, int]]) -> int:
        """How much of the window at least one rank trained in."""
        stretches = sorted(
            (max(rank.start_ns or 0, window.start_ns), min(rank.known_ns, window.end_ns), sum(times[name].values()))
            for name, rank in self._ranks.items()
            if times[name]
        )
        covered_ns, reached_ns = 0, window.start_ns
        for start_ns, end_ns, known_ns in stretches:
            covered_ns += min(max(0, end_ns - max(start_ns, reached_ns)), known_ns)
            reached_ns = max(reached_ns, end_ns)
        return covered_ns
