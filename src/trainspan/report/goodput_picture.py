"""An answer about goodput as a picture: the waterfall from the total down to what was productive, as one SVG file."""

from collections.abc import Container
from html import escape
from typing import Final, NamedTuple

from trainspan.relay.goodput.queries import GoodputReport
from trainspan.report.goodput import Answer
from trainspan.report.goodput_view import count, moment, printable, share, short
from trainspan.report.quantities import duration, ratio

_WIDTH: Final = 960
_LABEL: Final = 200
_VALUE: Final = 200
_ROW: Final = 30
_BAR: Final = 20
_TOP: Final = 92
_LEGEND: Final = 44
_LEAST_BAR: Final = 1.5

_INK: Final = "#212121"
_PALE: Final = "#616161"
_LINE: Final = "#bdbdbd"
_TOTAL: Final = "#9e9e9e"


class _Kind(NamedTuple):
    """States of one colour, and what they have in common."""

    colour: str
    meaning: str
    states: tuple[str, ...]


_WORK: Final = _Kind("#2e7d32", "productive", ("productive",))
_OWN: Final = _Kind("#00838f", "named by the script", ())
_KINDS: Final = (
    _WORK,
    _Kind("#1565c0", "starting", ("init", "model_init", "checkpoint_load", "compile")),
    _Kind("#ef6c00", "waiting", ("data_wait", "straggler_wait")),
    _Kind("#6a1b9a", "beside training", ("checkpoint_save", "validation", "shutdown")),
    _Kind("#c62828", "interruptions", ("lost_work", "restart", "hang")),
    _OWN,
    _Kind("#616161", "nobody knows", ("unaccounted",)),
)


def picture(said: Answer) -> str:
    """The answer as SVG, on a white ground."""
    asked = said.asked
    rows = _rows(asked)
    bottom = _TOP + _ROW * len(rows)
    height = bottom + _LEGEND
    name = _text(said.source)
    font = f'font-family="system-ui, sans-serif" font-size="14" fill="{_INK}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" {font}>',
        f"<title>Goodput of {name}</title>",
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="20" y="34" font-size="20" font-weight="600">{name}: goodput {ratio(asked.goodput)}</text>',
        f'<text x="20" y="60" fill="{_PALE}">{_text(_summary(asked))}</text>',
    ]
    for place, row in enumerate(rows):
        lines += _bar(_TOP + place * _ROW, asked.total_s, *row)
    for place, (_, start_s, *_) in enumerate(rows[1:-1], 1):
        lines.append(_thread(_TOP + place * _ROW, _LABEL + start_s * _scale(asked.total_s)))
    return "\n".join([*lines, *_legend(bottom, {row[3] for row in rows}), "</svg>"]) + "\n"


def _summary(asked: GoodputReport) -> str:
    """When, and what was done."""
    when = ""
    if asked.began_unix_s is not None and asked.ended_unix_s is not None:
        when = f"{moment(asked.began_unix_s)} to {moment(asked.ended_unix_s)}; "
    stops = f", {count(asked.planned_stops, 'planned stop')}" if asked.planned_stops else ""
    done = f"{count(asked.steps, 'step')} kept, {asked.steps_lost} lost; {count(asked.disruptions, 'disruption')}"
    return when + done + stops


def _rows(asked: GoodputReport) -> list[tuple[str, float, float, str]]:
    """(name, start and length in s, colour) of each bar: the total, each state from the largest on, what is left."""
    rows = [("total", 0.0, asked.total_s, _TOTAL)]
    left_s = asked.total_s
    for state, seconds in sorted(asked.badput_s.items(), key=lambda item: -item[1]):
        left_s -= seconds
        colour = next((kind.colour for kind in _KINDS if state in kind.states), _OWN.colour)
        rows.append((state, left_s, seconds, colour))
    return [*rows, ("productive", 0.0, asked.productive_s, _WORK.colour)]


def _scale(total_s: float) -> float:
    """Width of a second."""
    return (_WIDTH - _LABEL - _VALUE) / total_s if total_s else 0.0


def _bar(top: float, total_s: float, name: str, start_s: float, length_s: float, colour: str) -> list[str]:
    scale = _scale(total_s)
    x, width = _LABEL + start_s * scale, max(length_s * scale, _LEAST_BAR)
    base = top + _BAR - 5
    return [
        f'<text x="20" y="{base:.1f}">{_text(short(name))}<title>{_text(name)}</title></text>',
        f'<rect x="{x:.1f}" y="{top:.1f}" width="{width:.1f}" height="{_BAR}" rx="2" fill="{colour}"/>',
        f'<text x="{_WIDTH - 95}" y="{base:.1f}" text-anchor="end">{duration(length_s)}</text>',
        f'<text x="{_WIDTH - 20}" y="{base:.1f}" text-anchor="end">{escape(share(length_s, total_s))}</text>',
    ]


def _thread(top: float, x: float) -> str:
    """From where a bar begins down to the next one, which ends there."""
    return f'<path d="M{x:.1f} {top + _BAR:.1f}v{_ROW - _BAR}" stroke="{_LINE}"/>'


def _legend(top: float, colours: Container[str]) -> list[str]:
    """What the colours in the picture mean."""
    lines, x = [], 20
    for kind in _KINDS:
        if kind.colour in colours:
            lines.append(f'<circle cx="{x + 5}" cy="{top + 19}" r="5" fill="{kind.colour}"/>')
            lines.append(f'<text x="{x + 16}" y="{top + 24}" font-size="13" fill="{_PALE}">{kind.meaning}</text>')
            x += 40 + 7 * len(kind.meaning)
    return lines


def _text(text: str) -> str:
    """`text` as XML takes it: what came from a file may hold anything."""
    return escape(printable(text))
