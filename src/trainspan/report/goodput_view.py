"""An answer about goodput as text for a terminal: a waterfall from the total down to what was productive.

Numbers are never cut: what is too long for the width is a name, or the last column of a table.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from typing import Final

from rich.console import Group, RenderableType
from rich.text import Text

from trainspan.relay.goodput.history import Disruption
from trainspan.relay.goodput.projection import Projection
from trainspan.relay.goodput.queries import GoodputReport, Window
from trainspan.report.goodput import Answer
from trainspan.report.quantities import MISSING, duration, ratio

WIDEST: Final = 120
RECOVERIES_SHOWN: Final = 8
CAUSES_SHOWN: Final = 2
NAME_CELLS: Final = 22
LEAST_CELLS: Final = 0.5
"""A shorter bar is a sliver, so that no small cause looks like a larger one."""

_NS: Final = 1_000_000_000
LEAST_OVERLAP_S: Final = 1.0
LEAST_OVERLAP: Final = 0.001
"""Of the total: the end of a process is seen a moment late, and the next one may have begun by then."""

_YEAR: Final = len("2026-")
_INDENT: Final = 2
_GAP: Final = 2
_BLOCKS: Final = ("█", "▏")
_PLAIN_BLOCKS: Final = ("#", "|")
"""A cell of a bar, and a bar of less than a cell."""

_SURE: Final = frozenset({"step number", "load"})
"""Ways to know where a run resumed that leave no doubt."""

Row = Sequence[str | Text]


def render(said: Answer, *, width: int = 80, encoding: str = "utf-8") -> RenderableType:
    """The whole answer.

    Args:
        said: the answer.
        width: columns of the terminal.
        encoding: of the terminal; without Unicode the bars are made of `#`.
    """
    blocks = _BLOCKS if encoding.lower().startswith("utf") else _PLAIN_BLOCKS
    rolling = {_length(length_ns): part for length_ns, part in said.rolling.items()}
    parts = {printable(str(key)): part for key, part in said.parts.items()}
    lines = [*_header(said)]
    if said.asked.total_s:
        lines += _section("Where the time went", _waterfall(said.asked, width, blocks))
    lines += _section(_recoveries_title(said.recoveries), _recovery_table(said.recoveries, width))
    lines += _section("Checkpoints", _projection(said.projection, said.asked))
    lines += _section("Rolling", _part_table("last", rolling, width))
    lines += _section(f"By {said.by}", _part_table(str(said.by), parts, width))
    return Group(*lines)


def _header(said: Answer) -> Iterable[Text]:
    asked = said.asked
    goodput = ratio(asked.goodput) if asked.goodput is not None else "unknown: there is no time in the window"
    yield Text.assemble((printable(said.source), "bold"), ": goodput ", (goodput, "bold"))
    yield from map(Text, _window(asked.window))
    if asked.began_unix_s is not None and asked.ended_unix_s is not None:
        left_out = f", {duration(asked.excluded_s)} excluded" if asked.excluded_s else ""
        yield Text(f"{moment(asked.began_unix_s)} to {moment(asked.ended_unix_s)}{left_out}")
    last = MISSING if asked.last_step is None else str(asked.last_step)
    stops = f", {count(asked.planned_stops, 'planned stop')}" if asked.planned_stops else ""
    yield Text(
        f"{count(asked.steps, 'step')} kept, {asked.steps_lost} lost, the last is {last}; "
        f"{count(asked.disruptions, 'disruption')}{stops}"
    )
    if said.pace is not None:
        than = "slower" if said.pace.deviation_s >= 0 else "faster"
        yield Text(
            f"ideal step {duration(said.pace.ideal_s)}, the newest are {duration(abs(said.pace.deviation_s))} {than}; "
            f"ETTR {ratio(said.ettr)}{'' if said.mfu is None else f'; MFU {ratio(said.mfu)}'}"
        )
    if asked.overlap_s > max(LEAST_OVERLAP_S, LEAST_OVERLAP * asked.total_s):
        yield Text(
            f"{duration(asked.overlap_s)} recorded after a later attempt had begun are left out (a clock set back?)",
            style="yellow",
        )
    if said.unread:
        where = ", ".join(printable(name) for name in said.unread_in[:3])
        yield Text(f"{count(said.unread, 'line')} could not be read ({where}) and counted for nothing", style="yellow")


def _window(window: Window) -> Iterable[str]:
    """What was asked for, where it was not everything: how the times on the command line were read."""
    edges = (("from", window.since_ns), ("until", window.until_ns))
    said = [f"{word} {moment(time_ns / _NS)}" for word, time_ns in edges if time_ns is not None]
    if said or window.exclude:
        yield f"asked: {' '.join(said) or 'everything'}"
    for start_ns, end_ns in window.exclude:
        yield f"  without {moment(start_ns / _NS)} to {moment(end_ns / _NS)}"


def _section(title: str, lines: Iterable[Text]) -> list[Text]:
    """The lines below the title; nothing where there are none."""
    inside = [Text(" " * _INDENT) + line for line in lines]
    return [Text(), Text(title, style="bold"), *inside] if inside else []


def _table(rows: Sequence[Row], left: Iterable[int], width: int) -> Iterable[Text]:
    """`rows` as lines. The last column takes the room that is left; all others are as wide as what they hold.

    Args:
        rows: of equal length.
        left: columns that are not set to the right.
        width: of the terminal.
    """
    cells = [[Text(cell) if isinstance(cell, str) else cell for cell in row] for row in rows]
    widths = [max(cell.cell_len for cell in column) for column in zip(*cells, strict=True)]
    widths[-1] = min(widths[-1], max(width - _INDENT - sum(widths[:-1]) - _GAP * (len(widths) - 1), 1))
    for row in cells:
        for place, (cell, held) in enumerate(zip(row, widths, strict=True)):
            if cell.cell_len > held:
                cell.truncate(held, overflow="ellipsis")
            if place + 1 < len(widths) or place not in left:
                cell.align("left" if place in left else "right", held)
        yield Text(" " * _GAP).join(row)


def _waterfall(asked: GoodputReport, width: int, blocks: tuple[str, str]) -> Iterable[Text]:
    """Total, then each state under the share that it took, the largest first, then what is left: productive."""
    block, sliver = blocks
    causes = sorted(asked.badput_s.items(), key=lambda item: -item[1])
    table = [("total", asked.total_s), *causes, ("productive", asked.productive_s)]
    rows = [[short(name), duration(seconds), share(seconds, asked.total_s)] for name, seconds in table]
    taken = _INDENT + sum(max(map(len, column)) + _GAP for column in zip(*rows, strict=True))
    cells = max(width - taken, 1)
    left_s, bars = asked.total_s, [Text(block * cells)]
    for _, seconds in causes:
        end, left_s = round(left_s / asked.total_s * cells), left_s - seconds
        start = min(round(left_s / asked.total_s * cells), cells - 1)
        bar = block * (end - start) if seconds / asked.total_s * cells >= LEAST_CELLS else ""
        bars.append(Text(" " * start + (bar or sliver), style="red"))
    least = sliver if asked.productive_s else ""
    bars.append(Text(block * round(asked.productive_s / asked.total_s * cells) or least, style="green"))
    drawn: list[Row] = [(*row, bar) for row, bar in zip(rows, bars, strict=True)]
    yield from _table(drawn, (0, 3), width)


def _recoveries_title(recoveries: Sequence[Disruption]) -> str:
    hidden = len(recoveries) > RECOVERIES_SHOWN
    return f"Recoveries, the newest {RECOVERIES_SHOWN} of {len(recoveries)}" if hidden else "Recoveries"


def _recovery_table(recoveries: Sequence[Disruption], width: int) -> Iterable[Text]:
    rows: list[Row] = []
    for one in recoveries[-RECOVERIES_SHOWN:]:
        took_s = None if one.first_step_ns is None else (one.first_step_ns - one.failed_ns) / _NS
        why = "planned stop" if one.planned else "failure"
        down = moment(one.failed_ns / _NS)[_YEAR:]
        rows.append((str(one.attempt), why, down, duration(took_s), str(one.lost_steps), _resumed(one)))
    head = ("attempt", "after a", "down since", "recovery", "steps lost", "from step")
    return _table([_dim(head), *rows], (1, 2, 5), width) if rows else ()


def _resumed(one: Disruption) -> str:
    """Where it went on, how that is known where it is not certain, and with how many ranks where that has changed."""
    step = MISSING if one.resumed_step is None else str(one.resumed_step)
    doubt = f" ({one.known_by})" if one.known_by and one.known_by not in _SURE else ""
    ranks = f", {one.world_size_before} -> {one.world_size} ranks" if one.world_size != one.world_size_before else ""
    return f"{step}{doubt}{ranks}"


def _projection(projection: Projection | None, asked: GoodputReport) -> Iterable[Text]:
    """What another interval between checkpoints would bring, and what that is taken from."""
    if projection is None:
        return
    cost = f"would lose {duration(projection.cost_s_per_day)} a day less"
    best = f"every {duration(projection.best_interval_s)} {cost}"
    if not projection.best_interval_s:
        best = f"saves block nothing, so that as many as possible {cost}"
    yield Text(f"every {duration(projection.interval_s)}; {best}")
    failures = count(asked.disruptions, "failure")
    yield Text(
        f"(a model, from {failures}, saves of {duration(projection.save_s)} and "
        f"recoveries of {duration(projection.recovery_s)})",
        style="dim",
    )


def _part_table(name: str, parts: Mapping[str, GoodputReport], width: int) -> Iterable[Text]:
    rows: list[Row] = []
    for key, part in parts.items():
        causes = sorted(part.badput_s.items(), key=lambda item: -item[1])[:CAUSES_SHOWN]
        lost = ", ".join(f"{short(state)} {share(seconds, part.total_s)}" for state, seconds in causes if seconds)
        rows.append((short(key), ratio(part.goodput), duration(part.total_s), str(part.steps), lost or MISSING))
    head = (name, "goodput", "total", "steps", "most lost to")
    return _table([_dim(head), *rows], (0, 4), width) if rows else ()


def _dim(head: Sequence[str]) -> Row:
    return [Text(title, style="dim") for title in head]


def share(seconds: float, total_s: float) -> str:
    """`seconds` of `total_s`; what is not nothing is not shown as nothing."""
    if not total_s:
        return ratio(None)
    return "<0.1 %" if 0 < seconds < total_s * 0.0005 else ratio(seconds / total_s)


def _length(length_ns: int) -> str:
    """The length of a window as it was asked for: `1 h` is no `1 h 00 min`."""
    for unit_s, unit, least in ((86400, "d", 2), (3600, "h", 1), (60, "min", 1), (1, "s", 1)):
        units, rest = divmod(length_ns, unit_s * _NS)
        if not rest and units >= least:
            return f"{units} {unit}"
    return duration(length_ns / _NS)


def short(name: str) -> str:
    """`name` without control characters (it came from a file), and no longer than its column."""
    shown = printable(name)
    return shown if len(shown) <= NAME_CELLS else shown[: NAME_CELLS - 1] + "…"


def printable(text: str) -> str:
    """`text` without control characters: what came from a file may hold anything."""
    return "".join(c if c.isprintable() else "?" for c in text)


def moment(unix_s: float) -> str:
    """A time as text: `2026-11-21 08:00:00Z`."""
    try:
        return f"{datetime.fromtimestamp(unix_s, timezone.utc):%Y-%m-%d %H:%M:%S}Z"
    except (ValueError, OverflowError, OSError):  # a clock of another century
        return f"{unix_s:.0f}"


def count(number: int, noun: str) -> str:
    """A number of things: `1 step`, `2 steps`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
