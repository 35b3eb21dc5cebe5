"""An answer about goodput as text for a terminal: a waterfall from the total down to what was productive."""

from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from typing import Final

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from trainspan.relay.goodput.history import Disruption
from trainspan.relay.goodput.queries import GoodputReport
from trainspan.report.goodput import Answer
from trainspan.report.quantities import MISSING, duration, ratio

BAR_CELLS: Final = 34
RECOVERIES_SHOWN: Final = 8
CAUSES_SHOWN: Final = 2
NAME_CELLS: Final = 22

_NS: Final = 1_000_000_000
_BLOCK: Final = "█"
_PLAIN_BLOCK: Final = "#"


def render(said: Answer, *, encoding: str = "utf-8") -> RenderableType:
    """The whole answer, in at most 80 columns.

    Args:
        said: the answer.
        encoding: of the terminal; without Unicode the bars are made of `#`.
    """
    block = _BLOCK if encoding.lower().startswith("utf") else _PLAIN_BLOCK
    parts: list[RenderableType] = [*_header(said)]
    if said.asked.total_s:
        parts += _section("Where the time went", _waterfall(said.asked, block))
    parts += _section("Recoveries", _recovery_table(said.recoveries))
    parts += _section("Rolling", _part_table("last", {duration(n / _NS): part for n, part in said.rolling.items()}))
    if said.by is not None:
        parts += _section(f"By {said.by}", _part_table(said.by, {str(k): part for k, part in said.parts.items()}))
    return Group(*parts)


def _header(said: Answer) -> Iterable[RenderableType]:
    asked = said.asked
    goodput = ratio(asked.goodput) if asked.goodput is not None else "unknown: there is no time in the window"
    yield Text.assemble((_printable(said.source), "bold"), ": goodput ", (goodput, "bold"))
    if asked.began_unix_s is not None and asked.ended_unix_s is not None:
        left_out = f", {duration(asked.excluded_s)} excluded" if asked.excluded_s else ""
        yield Text(f"{_moment(asked.began_unix_s)} to {_moment(asked.ended_unix_s)}{left_out}")
    last = MISSING if asked.last_step is None else str(asked.last_step)
    stops = f", {_count(asked.planned_stops, 'planned stop')}" if asked.planned_stops else ""
    yield Text(
        f"{_count(asked.steps, 'step')} kept, {asked.steps_lost} lost, the last is {last}; "
        f"{_count(asked.disruptions, 'disruption')}{stops}"
    )
    if said.pace is not None:
        yield Text(
            f"ideal step {duration(said.pace.ideal_s)}, the newest {'-' if said.pace.deviation_s < 0 else '+'}"
            f"{duration(abs(said.pace.deviation_s))}; ETTR {ratio(said.ettr)}"
            f"{'' if said.mfu is None else f'; MFU {ratio(said.mfu)}'}"
        )
    if said.projection is not None:
        yield Text(
            f"a checkpoint every {duration(said.projection.best_interval_s)} would lose least; one every "
            f"{duration(said.projection.interval_s)} loses {duration(said.projection.cost_s_per_day)} a day more"
        )
    if said.unread:
        where = ", ".join(_printable(name) for name in said.unread_in[:3])
        yield Text(f"{_count(said.unread, 'line')} could not be read ({where}) and counted for nothing", style="yellow")


def _section(title: str, table: Table) -> list[RenderableType]:
    return [Text(), Text(title, style="bold"), Padding(table, (0, 0, 0, 2))] if table.row_count else []


def _table(*columns: str, left: Iterable[str]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim", show_header=any(columns))
    for column in columns:
        table.add_column(column, justify="left" if column in left else "right", no_wrap=True, overflow="ellipsis")
    return table


def _waterfall(asked: GoodputReport, block: str) -> Table:
    """Total, then each state under the share that it took, the largest first, then what is left: productive."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=False)
    for justify in ("left", "right", "right", "left"):
        table.add_column(justify=justify, no_wrap=True)
    total_s = left_s = asked.total_s
    table.add_row("total", duration(total_s), ratio(1.0), block * BAR_CELLS)
    for state, seconds in sorted(asked.badput_s.items(), key=lambda item: -item[1]):
        end, left_s = round(left_s / total_s * BAR_CELLS), left_s - seconds
        start = min(round(left_s / total_s * BAR_CELLS), max(end - 1, 0))
        bar = Text(" " * start + block * (end - start), style="red")
        table.add_row(_short(state), duration(seconds), ratio(seconds / total_s), bar)
    share = asked.productive_s / total_s
    bar = Text(block * round(share * BAR_CELLS), style="green")
    table.add_row(Text("productive", style="bold"), duration(asked.productive_s), ratio(share), bar)
    return table


def _recovery_table(recoveries: Iterable[Disruption]) -> Table:
    table = _table("attempt", "recovered in", "resumed at", "known by", "redone", left=("known by",))
    newest = list(recoveries)[-RECOVERIES_SHOWN:]
    for one in newest:
        took_s = None if one.first_step_ns is None else (one.first_step_ns - one.failed_ns) / _NS
        step = MISSING if one.resumed_step is None else f"step {one.resumed_step}"
        told = f"{one.known_by or MISSING}{', planned' if one.planned else ''}"
        table.add_row(str(one.attempt), duration(took_s), step, told, str(one.lost_steps))
    return table


def _part_table(name: str, parts: Mapping[str, GoodputReport]) -> Table:
    table = _table(name, "goodput", "total", "productive", "most lost to", left=(name, "most lost to"))
    for key, part in parts.items():
        causes = sorted(part.badput_s.items(), key=lambda item: -item[1])[:CAUSES_SHOWN]
        lost = ", ".join(f"{_short(state)} {duration(seconds)}" for state, seconds in causes if seconds)
        row = (ratio(part.goodput), duration(part.total_s), duration(part.productive_s), lost or MISSING)
        table.add_row(_short(key), *row)
    return table


def _short(name: str) -> str:
    """`name` without control characters (it came from a file), and no longer than its column."""
    shown = _printable(name)
    return shown if len(shown) <= NAME_CELLS else shown[: NAME_CELLS - 1] + "…"


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text)


def _moment(unix_s: float) -> str:
    try:
        return f"{datetime.fromtimestamp(unix_s, timezone.utc):%Y-%m-%d %H:%M:%S}Z"
    except (ValueError, OverflowError, OSError):  # a clock of another century
        return f"{unix_s:.0f}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
