"""Summaries of a run → its report."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Final

from trainspan.errors import RunNotFound
from trainspan.names import AnyPhase, NamedPhase, Phase, place_of
from trainspan.relay.timeline.launcher_summary import LauncherSummary
from trainspan.relay.timeline.rank_summary import RankSummary
from trainspan.relay.timeline.rank_summary import SlowStep as RememberedStep
from trainspan.relay.timeline.sketch import Sketch
from trainspan.relay.timeline.summary import Summary
from trainspan.report.model import LauncherReport, PhaseReport, RankReport, RunReport, SlowStep, Spread, Unusual
from trainspan.role import Role

SLOWEST_STEPS: Final = 10
LEAST_EXCESS: Final = 0.05
"""A phase is named for a slow step only if it took that much of the step longer than usual."""

# The order in which a plain loop comes through them.
PHASE_ORDER: Final = (
    Phase.DATA_WAIT,
    Phase.H2D,
    Phase.FORWARD,
    Phase.BACKWARD,
    Phase.COLLECTIVE,
    Phase.GRAD_CLIP,
    Phase.AMP,
    Phase.OPTIMIZER,
    Phase.GRAPH_REPLAY,
    Phase.VALIDATION,
    Phase.GENERATION,
    Phase.CHECKPOINT_SAVE,
    Phase.CHECKPOINT_LOAD,
    Phase.OTHER,
)

_S_PER_NS: Final = 1e-9


def build_report(summary: Summary, folder: Path, silent_s: float | None) -> RunReport:
    """The report of what `summary` holds.

    Args:
        summary: of all nodes that have written one.
        folder: the run folder.
        silent_s: how long ago the newest of them was written, in s.

    Raises:
        RunNotFound: it names no rank yet, and no launcher.
    """
    processes = [process for process in summary.in_order() if process.identity.role != Role.AGENT]
    if not processes and not summary.launchers:
        raise RunNotFound(f"{folder} names no rank yet: no process has begun to train")
    ranks = tuple(_rank_report(process) for process in processes)
    launchers = tuple(_launcher_reports(summary, ranks))
    attempts = tuple(sorted({one.attempt for one in ranks or launchers}))
    last = [rank for rank in ranks if rank.attempt == attempts[-1]]
    world_size = max((p.identity.world_size for p in processes if p.identity.attempt == attempts[-1]), default=0)
    state = _state_of(last) if ranks else _state_of_launchers(launchers)
    states_s = _sum_of(rank.states_s for rank in ranks)
    return RunReport(
        run=_printable(summary.run),
        folder=str(folder),
        state=state,
        silent_s=silent_s if state == "running" else None,
        attempts=attempts,
        world_size=world_size,
        hosts=len({one.host for one in last or launchers}),
        elapsed_s=_elapsed_s(processes) if ranks else _launched_s(summary.launchers.values()),
        steps=sum(max((r.steps for r in ranks if r.attempt == attempt), default=0) for attempt in attempts),
        steps_per_s=_median(rank.steps_per_s for rank in last),
        goodput_ratio=_goodput_of(states_s),
        states_s=states_s,
        energy_j=_total(rank.energy_j for rank in ranks),
        energy_per_step_j=_total_if_all([rank.energy_per_step_j for rank in last]),
        ranks=ranks,
        ranks_missing=tuple(sorted(set(range(world_size)) - {rank.rank for rank in last})),
        slowest_steps=_slowest_steps(processes),
        samples_per_s=_sum_of_known(rank.samples_per_s for rank in last),
        tokens_per_s=_sum_of_known(rank.tokens_per_s for rank in last),
        flops_per_s=_sum_of_known(rank.flops_per_s for rank in last),
        mfu_ratio=_mean_of_known([rank.mfu_ratio for rank in last]),
        launchers=launchers,
    )


def _launcher_reports(summary: Summary, ranks: Sequence[RankReport]) -> Iterable[LauncherReport]:
    for one in sorted(summary.launchers.values(), key=lambda launcher: (launcher.began_unix_ns, launcher.host)):
        host = _printable(one.host)
        yield LauncherReport(
            host=host,
            pid=one.pid,
            attempt=one.attempt,
            came_to_ranks=any(rank.host == host and rank.attempt >= one.attempt for rank in ranks),
            ended=one.how,
            operation=_printable(one.operation) if one.operation else None,
            operation_s=one.operation_ns * _S_PER_NS,
            outcome=one.outcome,
            error=_printable(one.error) if one.error else None,
            workers_ended=one.workers_ended,
            worker_cause=_printable(one.worker_cause) if one.worker_cause else None,
        )


def _rank_report(process: RankSummary) -> RankReport:
    states_s = {state: ns * _S_PER_NS for state, ns in process.states_ns.items()}
    running = process.ending.how == "running"
    return RankReport(
        rank=process.identity.rank,
        attempt=process.identity.attempt,
        host=_printable(process.identity.host),
        pid=process.identity.pid,
        steps=process.steps,
        steps_per_s=_per_s(process.steps or None, process),
        elapsed_s=sum(states_s.values()),
        goodput_ratio=_goodput_of(states_s),
        step=_spread_of(process.step_s),
        phases=tuple(_phase_reports(process)),
        states_s=states_s,
        marks_lost=process.marks_lost,
        ended=process.ending.how,
        ended_unix_s=None if process.ending.at_unix_ns is None else process.ending.at_unix_ns * _S_PER_NS,
        ended_phase=None if running else process.ending.phase,
        ended_step=None if running else process.ending.step,
        ended_cause=_printable(process.ending.cause) if process.ending.cause else None,
        energy_j=process.energy_j,
        energy_per_step_j=_energy_per_step_j(process),
        samples=process.work.samples,
        samples_per_s=_per_s(process.work.samples, process),
        tokens=process.work.tokens,
        tokens_per_s=_per_s(process.work.tokens, process),
        flops_per_s=_per_s(process.work.flops, process),
        mfu_ratio=process.work.mfu,
        stands_in_phase=process.ending.phase if running else None,
        stands_in_step=process.ending.step if running else None,
        stands_s=None if process.ending.still_ns is None else process.ending.still_ns * _S_PER_NS,
        phases_entered=process.ending.entered if running else None,
        alive_unix_s=None if process.ending.alive_unix_ns is None else process.ending.alive_unix_ns * _S_PER_NS,
    )


def _phases_of(process: RankSummary) -> Sequence[AnyPhase]:
    """The phases a process can have had, in order; what its user has named comes last."""
    named = (phase for phase in process.phase_s if isinstance(phase, NamedPhase))
    return *PHASE_ORDER, *sorted(named, key=place_of)


def _phase_reports(process: RankSummary) -> Iterable[PhaseReport]:
    for phase in _phases_of(process):
        sketch = process.phase_s.get(phase)
        spread = _spread_of(sketch) if sketch else None
        if sketch and spread:
            share = sketch.total / process.step_s.total if process.step_s.total else 0.0
            yield PhaseReport(phase.wire, sketch.count, spread, sketch.total, share)


def _spread_of(sketch: Sketch) -> Spread | None:
    p50, p95 = sketch.quantile(0.5), sketch.quantile(0.95)
    return None if p50 is None or p95 is None else Spread(p50, p95, sketch.greatest)


def _per_s(count: float | None, process: RankSummary) -> float | None:
    """How many a second, from the start of the first step to the end of the last."""
    if count is None or process.first_start_unix_ns is None or process.last_end_unix_ns is None:
        return None
    took_ns = process.last_end_unix_ns - process.first_start_unix_ns
    return count / (took_ns * _S_PER_NS) if took_ns > 0 else None


def _sum_of_known(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _mean_of_known(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _energy_per_step_j(process: RankSummary) -> float | None:
    """Its mean power while it trained times its mean step: readings begin later than steps, and end earlier."""
    if not process.energy_j or not process.energy_s or not process.steps:
        return None
    return process.energy_j / process.energy_s * process.step_s.total / process.steps


def _total(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _total_if_all(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None


def _state_of(ranks: Sequence[RankReport]) -> str:
    if any(rank.ended == "running" for rank in ranks):
        return "running"
    if any(rank.failed for rank in ranks):
        return "failed"
    return "stopped" if any(rank.stopped for rank in ranks) else "finished"


def _state_of_launchers(launchers: Sequence[LauncherReport]) -> str:
    if any(launcher.ended == "running" for launcher in launchers):
        return "running"
    return "failed" if any(launcher.failed for launcher in launchers) else "finished"


def _launched_s(launchers: Iterable[LauncherSummary]) -> float:
    """From the start of the first launcher to the last news of any."""
    lived = [(launcher.began_unix_ns, launcher.seen_unix_ns) for launcher in launchers]
    return (max(end for _, end in lived) - min(start for start, _ in lived)) * _S_PER_NS


def _elapsed_s(processes: Sequence[RankSummary]) -> float:
    """From the first process's start to the last one's end, or to where its account reaches."""
    starts = [process.process_start_unix_ns for process in processes]
    ends = [p.ending.at_unix_ns or p.process_start_unix_ns + p.elapsed_ns for p in processes]
    return (max(ends) - min(starts)) * _S_PER_NS


def _goodput_of(states_s: dict[str, float]) -> float | None:
    total_s = sum(states_s.values())
    return states_s.get("productive", 0.0) / total_s if total_s else None


def _sum_of(accounts: Iterable[dict[str, float]]) -> dict[str, float]:
    """The accounts added up, the largest state first."""
    total: Counter[str] = Counter()
    for account in accounts:
        total.update(account)
    return dict(total.most_common())


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _slowest_steps(processes: Sequence[RankSummary]) -> tuple[SlowStep, ...]:
    """The slowest steps of all ranks together: one entry for a step, whoever was slow in it."""
    seen: dict[tuple[int, int], list[tuple[RankSummary, RememberedStep]]] = defaultdict(list)
    for process in processes:
        for step in process.slowest:
            seen[process.identity.attempt, step.number].append((process, step))
    by_duration = sorted(seen, key=lambda key: (-max(step.duration_ns for _, step in seen[key]), key))
    return tuple(_slow_step(seen[key]) for key in by_duration[:SLOWEST_STEPS])


def _slow_step(views: Sequence[tuple[RankSummary, RememberedStep]]) -> SlowStep:
    process, slowest = max(views, key=lambda view: view[1].duration_ns)
    sampled = any(step.sampled for _, step in views)
    return SlowStep(
        attempt=process.identity.attempt,
        step=slowest.number,
        duration_s=slowest.duration_ns * _S_PER_NS,
        usual_s=process.step_s.quantile(0.5),
        unusual=_unusual(views),
        trace_id=process.trace_id_of(slowest.number) if sampled else None,
    )


def _unusual(views: Sequence[tuple[RankSummary, RememberedStep]]) -> tuple[Unusual, ...]:
    """What was unusual, the phase of the fewest ranks first.

    Where ranks wait for each other, one is late in its own phase and all others in the one in which they wait.
    """
    excess_s: dict[str, float] = {}
    ranks: dict[str, list[int]] = defaultdict(list)
    for process, step in views:
        phases = _phases_of(process)
        phase, over_s = max(((p, _excess_s(process, step, p)) for p in phases), key=lambda pair: pair[1])
        if over_s > LEAST_EXCESS * step.duration_ns * _S_PER_NS:
            excess_s[phase.wire] = max(over_s, excess_s.get(phase.wire, 0.0))
            ranks[phase.wire].append(process.identity.rank)
    found = [Unusual(phase, excess_s[phase], tuple(sorted(ranks[phase]))) for phase in ranks]
    return tuple(sorted(found, key=lambda one: (len(one.ranks), -one.excess_s)))


def _excess_s(process: RankSummary, step: RememberedStep, phase: AnyPhase) -> float:
    """How much longer `phase` took in `step` than in the usual one."""
    sketch = process.phase_s.get(phase)
    # A phase that most steps do not have (validation) usually takes no time at all.
    usual_s = sketch.quantile(0.5) if sketch and sketch.count * 2 > process.steps else 0.0
    return dict(step.phase_times_ns).get(phase.wire, 0) * _S_PER_NS - (usual_s or 0.0)


def _printable(text: str) -> str:
    """`text` without control characters: it came from a file, and goes to a terminal."""
    return "".join(c if c.isprintable() else "?" for c in text)
