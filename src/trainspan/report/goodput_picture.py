"""An answer about goodput as a picture: the waterfall from the total down to what was productive, as one SVG file."""

from html import escape
from typing import Final

from trainspan.relay.goodput.queries import GoodputReport
from trainspan.report.goodput import Answer
from trainspan.report.quantities import duration, ratio

_WIDTH: Final = 960
_LABEL: Final = 190
_VALUE: Final = 170
_ROW: Final = 30
_BAR: Final = 20
_TOP: Final = 86
_LEAST_BAR: Final = 1.5

_PRODUCTIVE: Final = "#2e7d32"
_TOTAL: Final = "#9e9e9e"
# By cause: what the job waits for, what it does beside steps, what was in vain, and what nobody knows.
_COLOURS: Final = {
    "data_wait": "#ef6c00",
    "straggler_wait": "#ef6c00",
    "init": "#1565c0",
    "model_init": "#1565c0",
    "compile": "#1565c0",
    "checkpoint_load": "#1565c0",
    "checkpoint_save": "#6a1b9a",
    "validation": "#6a1b9a",
    "shutdown": "#6a1b9a",
    "lost_work": "#c62828",
    "restart": "#c62828",
    "hang": "#c62828",
    "unaccounted": "#616161",
}
_CUSTOM: Final = "#00838f"


def picture(said: Answer) -> str:
    """The answer as SVG, on a white ground."""
    asked = said.asked
    rows = _rows(asked)
    height = _TOP + _ROW * len(rows) + 20
    name = _text(said.source)
    counts = f"{asked.steps} steps kept, {asked.steps_lost} lost; {asked.disruptions} disruptions"
    font = 'font-family="system-ui, sans-serif" font-size="14"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" {font}>',
        f"<title>Goodput of {name}</title>",
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="20" y="34" font-size="20" font-weight="600">{name}: goodput {ratio(asked.goodput)}</text>',
        f'<text x="20" y="60" fill="#616161">{duration(asked.total_s)}; {counts}</text>',
    ]
    for place, row in enumerate(rows):
        lines += _bar(_TOP + place * _ROW, asked.total_s, *row)
    return "\n".join([*lines, "</svg>"]) + "\n"


def _rows(asked: GoodputReport) -> list[tuple[str, float, float, str]]:
    """(name, start and length in s, colour) of each bar: the total, each state from the largest on, what is left."""
    rows = [("total", 0.0, asked.total_s, _TOTAL)]
    left_s = asked.total_s
    for state, seconds in sorted(asked.badput_s.items(), key=lambda item: -item[1]):
        left_s -= seconds
        rows.append((state, left_s, seconds, _COLOURS.get(state, _CUSTOM)))
    return [*rows, ("productive", 0.0, asked.productive_s, _PRODUCTIVE)]


def _bar(top: float, total_s: float, name: str, start_s: float, length_s: float, colour: str) -> list[str]:
    scale = (_WIDTH - _LABEL - _VALUE) / total_s if total_s else 0.0
    x, width = _LABEL + start_s * scale, max(length_s * scale, _LEAST_BAR)
    base = top + _BAR - 5
    share = ratio(length_s / total_s) if total_s else ratio(None)
    return [
        f'<text x="20" y="{base:.1f}">{_text(name)}</text>',
        f'<rect x="{x:.1f}" y="{top:.1f}" width="{width:.1f}" height="{_BAR}" rx="2" fill="{colour}"/>',
        f'<text x="{_WIDTH - 90}" y="{base:.1f}" text-anchor="end">{duration(length_s)}</text>',
        f'<text x="{_WIDTH - 20}" y="{base:.1f}" text-anchor="end">{share}</text>',
    ]


def _text(text: str) -> str:
    """`text` as XML takes it: what came from a file may hold anything."""
    return escape("".join(c if c.isprintable() else "?" for c in text))
