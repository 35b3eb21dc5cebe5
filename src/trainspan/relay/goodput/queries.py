"""What can be asked of a history; one engine answers all of it: `Clock.sums` over the stretches asked for.

Definitions, beside each other because they are often confused (N: the time in the window):

    goodput    productive / N: useful, new, undisturbed work over elapsed time. As DLRover and Google's runtime goodput.
    ETTR       (productive + data_wait + straggler_wait + validation + custom) / (N + queued): the share of time in
               which the program ran and what it did was kept. Waiting in the queue counts against it; slow steps do
               not. Source: Kokolis et al., "Revisiting Reliability in Large-Scale Machine Learning Research Clusters",
               HPCA 2025. ByteRobust (SOSP 2025) leaves the queue out: `queued_s` = 0.
    MFU        FLOPs of the model in a step / (duration of a step x peak FLOP/s of all devices): how fast steps are, not
               how many are lost. Source: Chowdhery et al., "PaLM: Scaling Language Modeling with Pathways", 2022.

Do not multiply them and call the product goodput.

    ideal step   mean of the newest 1024 step durations in the window, without those above median + 3 x median absolute
                 deviation. The peer's rule, but for its floor of one second below which no step has an ideal.
    deviation    median of the newest 100 durations less the ideal step. Stragglers hide in the productive time of every
                 definition above; here they show.
"""

import statistics
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from trainspan.relay.goodput.clock import Clock
from trainspan.relay.goodput.history import JOB, Disruption, RunHistory
from trainspan.relay.goodput.life import NEVER
from trainspan.relay.goodput.track import Sums, add

NS = 1_000_000_000
RECENT_STEPS = 1024
NEWEST_STEPS = 100
SPREADS = 3

Axis = Literal["attempt", "rank", "node"]
Stretch = tuple[int, int]


class Window(NamedTuple):
    """A stretch of time, [since_ns, until_ns) in Unix ns, less `exclude`. None: from the beginning, to the end.

    `now_ns`: until when a process that has not ended is taken to run; None: until its last sign of life.
    """

    since_ns: int | None = None
    until_ns: int | None = None
    exclude: tuple[Stretch, ...] = ()
    now_ns: int | None = None

    @property
    def is_whole(self) -> bool:
        """Whether all time is asked for."""
        return self[:3] == (None, None, ())

    def stretches(self) -> list[Stretch]:
        """What is asked for, in order, without overlap."""
        at_ns = -NEVER if self.since_ns is None else self.since_ns
        until_ns = NEVER if self.until_ns is None else self.until_ns
        stretches = []
        for start_ns, end_ns in sorted(stretch for stretch in self.exclude if stretch[0] < stretch[1]):
            if at_ns < min(start_ns, until_ns):
                stretches.append((at_ns, min(start_ns, until_ns)))
            at_ns = max(at_ns, end_ns)
        return [*stretches, (at_ns, until_ns)] if at_ns < until_ns else stretches

    def overlap_ns(self, start_ns: int, end_ns: int) -> int:
        """How much of [start_ns, end_ns) is asked for."""
        return sum(max(min(end_ns, last) - max(start_ns, first), 0) for first, last in self.stretches())


class Scope(NamedTuple):
    """Whose time: the job's, one rank's, or that of all ranks of a node added up; in one attempt, or in all.

    A rank, node or attempt that the run does not have has no time.
    """

    rank: int | None = None
    node: str | None = None
    attempt: int | None = None


WHOLE = Window()
THE_JOB = Scope()


def rolling(length_ns: int, now_ns: int) -> Window:
    """The last `length_ns` before `now_ns`."""
    return Window(now_ns - length_ns, now_ns, now_ns=now_ns)


@dataclass(frozen=True, slots=True)
class GoodputReport:
    """Where the time of a window went. `total_s` is `productive_s` plus all of `badput_s`.

    Attributes:
        goodput: productive share of `total_s`, 0..1; None when the window holds no time.
        total_s: time in the window; of a node, added up over its ranks.
        productive_s: work in steps that were kept.
        badput_s: seconds by state, without states that got nothing.
        unaccounted_s: what of it nobody can explain.
        excluded_s: time left out because it was excluded.
        overlap_s: time left out because a later attempt had begun: two ran at once, or a clock was set back.
        disruptions: attempts that began in the window after one that had failed.
        planned_stops: attempts that began in the window after one that had closed in good order.
        planned_stop_s: time between those and the ones before; it is part of `badput_s["restart"]`.
        steps: kept steps that ended in the window.
        steps_lost: steps that ended in the window and were done again later.
        last_step: number in the run of the last kept step at the end of the window; None before the first.
        began_unix_s: beginning of the time in the window; None when it holds none.
        ended_unix_s: its end.
        window: what was asked for.
    """

    goodput: float | None
    total_s: float
    productive_s: float
    badput_s: dict[str, float]
    unaccounted_s: float
    excluded_s: float
    overlap_s: float
    disruptions: int
    planned_stops: int
    planned_stop_s: float
    steps: int
    steps_lost: int
    last_step: int | None
    began_unix_s: float | None
    ended_unix_s: float | None
    window: Window

    def to_json(self) -> dict[str, Any]:
        """The report as JSON holds it: its attributes under their names, `window` as seconds. The keys stay."""
        window = {
            "since": _seconds(self.window.since_ns),
            "until": _seconds(self.window.until_ns),
            "exclude": [[start_ns / NS, end_ns / NS] for start_ns, end_ns in self.window.exclude],
        }
        return {name: getattr(self, name) for name in self.__slots__} | {"window": window}


class Pace(NamedTuple):
    """How fast the newest steps were, in seconds; see the module for what the words mean."""

    ideal_s: float
    mean_s: float
    deviation_s: float


def account_ns(history: RunHistory, window: Window = WHOLE, scope: Scope = THE_JOB) -> dict[str, int]:
    """ns by state; they add up to the time in the window, exactly.

    Cost: two bisections and two chunks for each clock and edge; less for the whole.
    """
    return _by_state(history, _sums(_clocks(history, scope, window), window.stretches()))


def report(history: RunHistory, window: Window = WHOLE, scope: Scope = THE_JOB) -> GoodputReport:
    """Where the time went."""
    clocks, stretches = _clocks(history, scope, window), window.stretches()
    states = _by_state(history, _sums(clocks, stretches))
    total_ns, productive_ns = sum(states.values()), states.pop("productive", 0)
    everything_ns = sum(_sums(clocks, window._replace(exclude=()).stretches()).values()) if window.exclude else total_ns
    begun = disruptions_in(history, window, scope.attempt)
    stops = [stop for stop in begun if stop.planned]
    counts = [clocks[0].steps(*stretch) for stretch in stretches] if clocks else []
    began_ns, ended_ns = _extent(clocks, stretches)
    return GoodputReport(
        goodput=productive_ns / total_ns if total_ns else None,
        total_s=total_ns / NS,
        productive_s=productive_ns / NS,
        badput_s={state: length_ns / NS for state, length_ns in sorted(states.items())},
        unaccounted_s=states.get("unaccounted", 0) / NS,
        excluded_s=(everything_ns - total_ns) / NS,
        overlap_s=sum(clock.overlap_ns(*stretch) for clock in clocks for stretch in stretches) / NS,
        disruptions=len(begun) - len(stops),
        planned_stops=len(stops),
        planned_stop_s=sum(window.overlap_ns(stop.failed_ns, stop.begun_ns) for stop in stops) / NS,
        steps=sum(kept for kept, _ in counts),
        steps_lost=sum(lost for _, lost in counts),
        last_step=clocks[0].last_step(stretches[-1][1]) if clocks and stretches else None,
        began_unix_s=_seconds(began_ns),
        ended_unix_s=_seconds(ended_ns),
        window=window,
    )


def reports(history: RunHistory, by: Axis, window: Window = WHOLE) -> dict[int | str, GoodputReport]:
    """One report for each attempt (the job's), rank or node. An attempt begins with the recovery that leads to it.

    Cost: a report for each; of the whole time, those of attempts that are over are kept.
    """
    if by == "attempt":
        return _by_attempt(history, window)
    if by == "rank":
        return {rank: report(history, window, Scope(rank=rank)) for rank in history.ranks}
    return {node: report(history, window, Scope(node=node)) for node in history.nodes}


def _by_attempt(history: RunHistory, window: Window) -> dict[int | str, GoodputReport]:
    def told(attempts: Iterable[int], window: Window) -> dict[int | str, GoodputReport]:
        return {attempt: report(history, window, Scope(attempt=attempt)) for attempt in attempts}

    attempts = history.attempts
    if not window.is_whole:
        return told(attempts, window)
    over = history.once("reports", lambda: told(attempts[:-1], WHOLE))
    if window != WHOLE:
        over = {attempt: replace(found, window=window) for attempt, found in over.items()}
    return {**over, **told(attempts[-1:], window)}


def disruptions_in(history: RunHistory, window: Window = WHOLE, attempt: int | None = None) -> list[Disruption]:
    """Those whose attempt, or that attempt, began in the window. Cost: two bisections."""
    disruptions = history.disruptions(window.now_ns)
    if attempt is not None:
        place = bisect_left(disruptions, attempt, key=_attempt_of)
        disruptions = [one for one in disruptions[place : place + 1] if one.attempt == attempt]
    return _begun_in(disruptions, window.stretches())


def pace(history: RunHistory, window: Window = WHOLE, scope: Scope = THE_JOB) -> Pace | None:
    """How fast the newest steps in the window were; None when there are none.

    Cost: about 0.2 ms, sorting.
    """
    clocks = _clocks(history, scope, window)
    recent = _durations_ns(clocks[0], window.stretches()) if clocks else []
    if not recent:
        return None
    ordered = sorted(recent)
    middle_ns = statistics.median(ordered)
    spread_ns = statistics.median([abs(duration_ns - middle_ns) for duration_ns in ordered])
    usual = ordered[: bisect_right(ordered, middle_ns + SPREADS * spread_ns)]
    ideal_ns = sum(usual) / len(usual)
    deviation_ns = statistics.median(recent[:NEWEST_STEPS]) - ideal_ns
    return Pace(ideal_ns / NS, sum(recent) / len(recent) / NS, deviation_ns / NS)


def ettr(answer: GoodputReport, queued_s: float = 0.0) -> float | None:
    """Effective training time ratio, as the module defines it; None without time.

    Args:
        answer: the report of the window.
        queued_s: time the job was ready to run and waited for its nodes, which no process can have recorded.
    """
    ran_s = answer.productive_s + sum(
        seconds
        for state, seconds in answer.badput_s.items()
        if state in ("data_wait", "straggler_wait", "validation") or state.startswith("custom.")
    )
    return ran_s / (answer.total_s + queued_s) if answer.total_s + queued_s > 0 else None


def mfu(flops_per_step: float, step_s: float, peak_flops_per_s: float) -> float:
    """Model FLOPs utilization of steps of `step_s` (`Pace.mean_s`), over all devices of the job."""
    return flops_per_step / (step_s * peak_flops_per_s)


def _clocks(history: RunHistory, scope: Scope, window: Window) -> list[Clock]:
    if scope.rank is None:
        ranks = [JOB] if scope.node is None else history.ranks
    else:
        ranks = [scope.rank] if scope.rank in history.ranks else []
    clocks = [history.clock(rank, window.now_ns) for rank in ranks] if history.attempts else []
    if scope.node is None and scope.attempt is None:
        return clocks
    parts = [clock.part(scope.node, scope.attempt) for clock in clocks]
    return [part for part in parts if part is not None]


def _sums(clocks: Iterable[Clock], stretches: Sequence[Stretch]) -> Sums:
    sums: Sums = {}
    for clock in clocks:
        for start_ns, end_ns in stretches:
            add(sums, clock.sums(start_ns, end_ns))
    return sums


def _by_state(history: RunHistory, sums: Sums) -> dict[str, int]:
    states: dict[str, int] = {}
    for code, length_ns in sums.items():
        if length_ns:
            state = history.palette.states[code]
            states[state] = states.get(state, 0) + length_ns
    return states


def _begun_in(disruptions: list[Disruption], stretches: Sequence[Stretch]) -> list[Disruption]:
    """Those whose attempt began in the stretches. Attempts begin one after the other, whatever was recorded."""
    begun: list[Disruption] = []
    for start_ns, end_ns in stretches:
        first = bisect_left(disruptions, start_ns, key=_begun_of)
        begun += disruptions[first : bisect_left(disruptions, end_ns, key=_begun_of)]
    return begun


def _begun_of(disruption: Disruption) -> int:
    return disruption.begun_ns


def _attempt_of(disruption: Disruption) -> int:
    return disruption.attempt


def _extent(clocks: Sequence[Clock], stretches: Sequence[Stretch]) -> tuple[int | None, int | None]:
    """Beginning and end of the time that the clocks ran within the stretches."""
    found = [
        (max(first_ns, clock.periods[0].gap_ns), min(last_ns, clock.periods[-1].frame.stop_ns))
        for clock in clocks
        for first_ns, last_ns in stretches
    ]
    found = [(start_ns, end_ns) for start_ns, end_ns in found if start_ns < end_ns]
    return min((start for start, _ in found), default=None), max((end for _, end in found), default=None)


def _durations_ns(clock: Clock, stretches: Sequence[Stretch]) -> list[int]:
    """Durations of the newest steps that ended in the stretches, the newest first."""
    durations: list[int] = []
    for start_ns, end_ns in reversed(stretches):
        for period in reversed(clock.periods):
            durations += period.life.steps.durations_ns(start_ns, end_ns, RECENT_STEPS - len(durations))
            if len(durations) >= RECENT_STEPS:
                return durations
    return durations


def _seconds(time_ns: int | None) -> float | None:
    return None if time_ns is None else time_ns / NS
