"""A report as text for a terminal: at most 80 columns, and just as clear without color.

Up to 16 ranks are shown one by one. Of more the spread over the ranks is shown, and the ranks that stand out.
"""

from collections.abc import Iterable, Sequence
from typing import IO, Final

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from trainspan.report import outliers
from trainspan.report.model import LauncherReport, RankReport, RunReport, SlowStep, Unusual
from trainspan.report.quantities import MISSING, count_rate, duration, energy, flop_rate, rate, ratio

WIDTH: Final = 80
RANKS_SHOWN: Final = 16
STEPS_SHOWN: Final = 5
FAILURES_SHOWN: Final = 8
SILENT_S: Final = 60.0
"""A running run writes its summary every few seconds; after so much silence its relay is probably gone."""

_STATE_STYLE: Final = {"finished": "green", "running": "cyan", "stopped": "yellow", "failed": "bold red"}


def console_for(stream: IO[str] | None = None, width: int | None = None) -> Console:
    """A console for reports: no wider than 80 columns, no guessing of markup, emoji or highlights in what it shows."""
    found = Console(file=stream, highlight=False, emoji=False, markup=False)
    found.width = width or min(found.width, WIDTH)
    return found


def render(report: RunReport) -> RenderableType:
    """The whole report."""
    ranks = report.last_attempt
    few = len(ranks) <= RANKS_SHOWN
    first = (*_failures(report), *_launchers(report), *_standstills(report))
    parts: list[RenderableType] = [*first, *_header(report)]
    if any(rank.steps for rank in ranks):
        parts += _section("Ranks", _rank_table(ranks, report.hosts) if few else _rank_spread(ranks))
        parts += _section("Phases", _phase_table(ranks) if few else _phase_spread(ranks))
        if not few:
            parts += _section("Ranks that stand out", _outlier_table(ranks))
        parts += _section("Slowest steps", _slow_step_table(report))
    account = _section("Time account", _account_table(report))
    # Two numbers of one name ask for a word: this one is the counter's, which takes nothing back.
    hint = Text("  as it was counted; of the job, with hindsight: trainspan goodput", style="dim")
    return Group(*parts, *account, *([hint] if account else []))


def _failures(report: RunReport) -> Iterable[RenderableType]:
    """The first thing to know: who died, and where."""
    several = len(report.attempts) > 1
    for rank in report.failures[:FAILURES_SHOWN]:
        where = f"attempt {rank.attempt}: " if several else ""
        yield Text(f"{where}rank {rank.rank} {how_it_ended(rank)}", style="bold red")
    more = len(report.failures) - FAILURES_SHOWN
    if more > 0:
        yield Text(f"and {more} more ranks that did not end well", style="bold red")
    if report.failures:
        yield Text()


def _launchers(report: RunReport) -> Iterable[RenderableType]:
    """The launchers whose newest attempt has come to no rank, and why."""
    without = [launcher for launcher in report.launchers if not launcher.came_to_ranks]
    for one in without[:FAILURES_SHOWN]:
        ended = one.ended != "running"
        never = "no rank ever started" if ended else "no rank has started yet"
        if report.ranks:
            never = f"attempt {one.attempt}: {never} on {one.host}"
        elif report.hosts > 1:
            never = f"{never} on {one.host}"
        yield Text(f"{never}: {_why_no_rank(one)}", style="bold red" if ended else "bold yellow")
    more = len(without) - FAILURES_SHOWN
    if more > 0:
        yield Text(f"and {more} more launchers without a rank", style="bold red")
    if without:
        yield Text()


def _why_no_rank(launcher: LauncherReport) -> str:
    """`rendezvous failed after 600 s (RendezvousTimeoutError)`: what became of a launcher without a rank."""
    took = duration(launcher.operation_s)
    error = f" ({launcher.error.rpartition('.')[2]})" if launcher.error else ""
    if launcher.outcome == "failed":
        return f"{launcher.operation} failed after {took}{error}"
    if launcher.outcome == "open":
        if launcher.ended == "running":
            return f"its launcher has been in {launcher.operation} for {took}"
        return f"its launcher was killed after {took} in {launcher.operation}"
    if launcher.workers_ended:
        count = _count(launcher.workers_ended, "worker")
        return f"{count} failed before the import of torch ({launcher.worker_cause})"
    if launcher.ended == "running":
        return "no worker has imported torch yet"
    if launcher.failed:
        how = "was killed" if launcher.ended == "died" else "ended"
        return f"its launcher {how} before any worker imported torch{error}"
    return "no worker imported torch"


def _standstills(report: RunReport) -> Iterable[RenderableType]:
    """Who gives no sign, and where: first who is likely the one that the others wait for."""
    for still in report.standstills[:FAILURES_SHOWN]:
        have = "has" if len(still.ranks) == 1 else "have"
        where = f"in {still.phase} of step {still.step}"
        what = f"{_ranks_text(still.ranks)} {have} given no sign for {duration(still.longest_s)}, {where}"
        yield Text(what, style="bold yellow")
    if report.standstills:
        yield Text()


def how_it_ended(rank: RankReport) -> str:
    """`ended in backward of step 41 (SIGKILL)`: how a process stands, or where and why it ended."""
    if rank.stands_still:
        return f"stands in {rank.stands_in_phase} of step {rank.stands_in_step}"
    if rank.ended == "running":
        return "running"
    if rank.ended == "closed":
        return "finished"
    where = "before its first step" if rank.steps == 0 else f"after {_count(rank.steps, 'step')}"
    if rank.ended_phase is not None and rank.ended_step is not None:
        where = f"in {rank.ended_phase} of step {rank.ended_step}"
    cause = rank.ended_cause or ("an exception" if rank.ended == "exception" else "died without a word")
    return f"{'stopped' if rank.stopped else 'ended'} {where} ({cause})"


def _header(report: RunReport) -> Iterable[RenderableType]:
    title = Text.assemble(("run ", ""), (report.run, "bold"), ": ", (report.state, _STATE_STYLE[report.state]))
    if report.silent_s is not None:
        title.append(f", last news {duration(report.silent_s)} ago")
    yield title
    ranks = f"{_count(report.world_size, 'rank')} on {_count(report.hosts, 'host')}"
    attempts = f"attempt {report.attempts[-1]}"
    if len(report.attempts) > 1:
        attempts = f"{len(report.attempts)} attempts, the last is {report.attempts[-1]}"
    yield Text(f"{attempts}, {ranks}")
    steps = _count(report.steps, "step")
    speed = f", {rate(report.steps_per_s)}" if report.steps_per_s is not None else ""
    yield Text(f"{steps} in {duration(report.elapsed_s)}{speed}, goodput {ratio(report.goodput_ratio)}")
    if report.energy_j is not None:
        per_step = f", {energy(report.energy_per_step_j)} a step" if report.energy_per_step_j is not None else ""
        yield Text(f"{energy(report.energy_j)} drawn by the GPUs while they trained{per_step}")
    work = _work(report)
    if work:
        yield Text(", ".join(work))
    yield from (Text(warning, style="yellow") for warning in _warnings(report))


def _work(report: RunReport) -> list[str]:
    counted = (("samples", report.samples_per_s), ("tokens", report.tokens_per_s))
    work = [count_rate(per_s, what) for what, per_s in counted if per_s is not None]
    if report.flops_per_s is not None:
        work.append(flop_rate(report.flops_per_s))
    if report.mfu_ratio is not None:
        work.append(f"MFU {ratio(report.mfu_ratio)}")
    return work


def _warnings(report: RunReport) -> Iterable[str]:
    if report.silent_s is not None and report.silent_s > SILENT_S:
        yield "no news for long: the relay may be gone; its log is in the run folder"
    if report.ranks_missing:
        yield f"nothing is known here of {_ranks_text(report.ranks_missing)}; other nodes keep their own summaries"
    lost = [rank.rank for rank in report.last_attempt if rank.marks_lost]
    if lost:
        yield f"marks of {_ranks_text(lost)} were lost: steps are missing (TRAINSPAN_RING_MARKS)"


def _section(title: str, table: Table) -> list[RenderableType]:
    if not table.row_count:
        return []
    return [Text(), Text(title, style="bold"), Padding(table, (0, 0, 0, 2))]


def _table(*columns: str, left: Sequence[str] = ()) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for column in columns:
        table.add_column(column, justify="left" if column in left else "right", no_wrap=column not in left)
    return table


def _rank_table(ranks: Sequence[RankReport], hosts: int) -> Table:
    with_host = ("host",) if hosts > 1 else ()
    with_energy = ("energy", "a step") if any(rank.energy_j is not None for rank in ranks) else ()
    table = _table("rank", *with_host, "steps", "rate", "p50", "p95", "max", *with_energy, "", left=("host", ""))
    for rank in ranks:
        step = rank.step
        times = (duration(step.p50_s), duration(step.p95_s), duration(step.max_s)) if step else (MISSING,) * 3
        host = (rank.host,) if hosts > 1 else ()
        joules = (energy(rank.energy_j), energy(rank.energy_per_step_j)) if with_energy else ()
        row = (str(rank.rank), *host, str(rank.steps), rate(rank.steps_per_s), *times, *joules, how_it_ended(rank))
        table.add_row(*row, style="red" if rank.failed else None)
    return table


def _phase_table(ranks: Sequence[RankReport]) -> Table:
    alone = len(ranks) == 1
    columns = ("phase", "p50", "p95", "max", "share") if alone else ("phase", "rank", "p50", "p95", "max", "share")
    table = _table(*columns, left=("phase",))
    for name in outliers.phases_of(ranks):
        first = True
        for rank in ranks:
            phase = next((phase for phase in rank.phases if phase.phase == name), None)
            if phase is None:
                continue
            spread = phase.spread
            times = (duration(spread.p50_s), duration(spread.p95_s), duration(spread.max_s), ratio(phase.share_ratio))
            number = () if alone else (str(rank.rank),)
            table.add_row(name if first else "", *number, *times)
            first = False
    return table


def _rank_spread(ranks: Sequence[RankReport]) -> Table:
    table = _table("over the ranks", "min", "median", "max", left=("over the ranks",))
    steps = [rank.step for rank in ranks if rank.step]
    rows: tuple[tuple[str, list[str]], ...] = (
        ("steps", [str(round(n)) for n in outliers.three([rank.steps for rank in ranks])]),
        ("rate", [rate(n) for n in outliers.three([r.steps_per_s for r in ranks if r.steps_per_s is not None])]),
        ("step p50", [duration(s) for s in outliers.three([step.p50_s for step in steps])]),
        ("step p95", [duration(s) for s in outliers.three([step.p95_s for step in steps])]),
        ("step max", [duration(s) for s in outliers.three([step.max_s for step in steps])]),
        (
            "goodput",
            [ratio(n) for n in outliers.three([r.goodput_ratio for r in ranks if r.goodput_ratio is not None])],
        ),
    )
    joules = [rank.energy_per_step_j for rank in ranks if rank.energy_per_step_j is not None]
    if joules:
        rows += (("energy a step", [energy(n) for n in outliers.three(joules)]),)
    for name, cells in rows:
        table.add_row(name, *cells)
    return table


def _phase_spread(ranks: Sequence[RankReport]) -> Table:
    table = _table("phase", "p50: min", "median", "max", "p95", "max", "share", left=("phase",))
    for name in outliers.phases_of(ranks):
        phases = [phase for rank in ranks for phase in rank.phases if phase.phase == name]
        p50 = outliers.three([phase.spread.p50_s for phase in phases])
        p95 = outliers.three([phase.spread.p95_s for phase in phases])
        worst = max(phase.spread.max_s for phase in phases)
        share = outliers.three([phase.share_ratio for phase in phases])
        table.add_row(name, *map(duration, p50), duration(p95[1]), duration(worst), ratio(share[1]))
    return table


def _outlier_table(ranks: Sequence[RankReport]) -> Table:
    table = _table("rank", "host", "phase", "p50", "median", "off by", left=("host", "phase"))
    found = outliers.find(ranks)
    for one in found[: outliers.SHOWN]:
        off = f"{(one.p50_s / one.median_s - 1) * 100:+.0f} %"
        table.add_row(str(one.rank), one.host, one.phase, duration(one.p50_s), duration(one.median_s), off)
    if len(found) > outliers.SHOWN:
        table.add_row("...", f"{len(found) - outliers.SHOWN} more (--json has all ranks)")
    return table


def _slow_step_table(report: RunReport) -> Table:
    several = len(report.attempts) > 1
    table = _table("step", "took", "longer than usual", "trace", left=("longer than usual",))
    for step in report.slowest_steps[:STEPS_SHOWN]:
        number = f"{step.attempt}/{step.step}" if several else str(step.step)
        unusual = _unusual_text(step, many=report.world_size > 1)
        table.add_row(number, duration(step.duration_s), unusual, step.trace_id or MISSING)
    return table


def _unusual_text(step: SlowStep, *, many: bool) -> str:
    def one(unusual: Unusual) -> str:
        who = f" {_ranks_text(unusual.ranks)}" if many else ""
        return f"{unusual.phase} +{duration(unusual.excess_s)}{who}"

    return "\n".join(one(unusual) for unusual in step.unusual) or MISSING


def _account_table(report: RunReport) -> Table:
    table = _table("state", "per rank", "share", left=("state",))
    ranks = len({rank.rank for rank in report.ranks})  # of a run of four attempts each is there four times
    total_s = sum(report.states_s.values())
    for state, seconds in report.states_s.items():
        if seconds > 0:
            table.add_row(state, duration(seconds / ranks), ratio(seconds / total_s))
    return table


def _ranks_text(ranks: Sequence[int]) -> str:
    """`rank 3`, `ranks 0-2, 7`, `998 ranks`."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    spans: list[tuple[int, int]] = []
    for rank in ranks:
        if spans and rank == spans[-1][1] + 1:
            spans[-1] = (spans[-1][0], rank)
        else:
            spans.append((rank, rank))
    if len(spans) > 3:
        return f"{len(ranks)} ranks"
    return "ranks " + ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in spans)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
