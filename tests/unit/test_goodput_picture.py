"""The picture of an answer: bars that add up, and nothing in it that a file could inject."""

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from tests.unit.goodput_facts import activity, begun, ended, history_of, steps
from trainspan.relay.goodput.history import RunHistory
from trainspan.relay.goodput.queries import WHOLE, report
from trainspan.report.goodput import Question, Source, answer
from trainspan.report.goodput_picture import picture
from trainspan.report.goodput_tensorboard import POINTS, write_scalars

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def history() -> RunHistory:
    """Ten seconds of init, forty of steps, half of them waiting for input."""
    return history_of([begun(0), activity("init", 0, 10), *steps(0, range(10, 51), wait=0.5), ended(50, orderly=True)])


def bars_of(svg: str) -> list[tuple[float, float]]:
    """(left, right) of every bar, from the top."""
    bars = ET.fromstring(svg).findall(f"{SVG}rect[@rx]")  # noqa: S314 - our own
    return [(float(bar.attrib["x"]), float(bar.attrib["x"]) + float(bar.attrib["width"])) for bar in bars]


def test_bars_are_a_waterfall(history: RunHistory) -> None:
    """Each cause ends where the one before it began, so that what is left is what was productive."""
    svg = picture(answer(Source("run", history, 0, ()), Question(WHOLE)))

    total, *causes, productive = bars_of(svg)
    assert causes[0][1] == pytest.approx(total[1], abs=0.2)
    assert [cause[0] for cause in causes[:-1]] == pytest.approx([cause[1] for cause in causes[1:]], abs=0.2)
    assert productive == pytest.approx((total[0], causes[-1][0]), abs=0.2)
    assert productive[1] - productive[0] == pytest.approx(0.4 * (total[1] - total[0]), abs=0.2)


def test_name_of_a_run_is_text_and_nothing_else(history: RunHistory) -> None:
    """A file from elsewhere can be called anything."""
    svg = picture(answer(Source('<script x="\x07">', history, 0, ()), Question(WHOLE)))

    texts = [text.text or "" for text in ET.fromstring(svg).iter(f"{SVG}text")]  # noqa: S314 - our own
    assert texts[0].startswith('<script x="?">: goodput')


def test_long_name_stays_in_its_column_and_is_told_whole(history: RunHistory) -> None:
    """What a script calls a phase is as long as it likes."""
    name = "custom." + "very " * 20 + "<long>"
    history.add(activity(name, 2, 4))

    svg = picture(answer(Source("run", history, 0, ()), Question(WHOLE)))

    labels = [text for text in ET.fromstring(svg).iter(f"{SVG}text") if text.attrib["x"] == "20"]  # noqa: S314 - our own
    assert max(len(label.text or "") for label in labels[2:]) <= 22
    assert [title.text for label in labels if (title := label.find(f"{SVG}title")) is not None][3] == name


def test_legend_has_the_colours_that_are_there(history: RunHistory) -> None:
    """A colour without a meaning is a decoration."""
    svg = picture(answer(Source("run", history, 0, ()), Question(WHOLE)))

    page = ET.fromstring(svg)  # noqa: S314 - our own
    drawn = {bar.attrib["fill"] for bar in page.findall(f"{SVG}rect[@rx]")[1:]}
    told = [circle.attrib["fill"] for circle in page.findall(f"{SVG}circle")]
    assert sorted(told) == sorted(drawn)
    assert len(drawn) == 3


def test_window_without_time_is_drawn_empty() -> None:
    """Nothing may divide by it."""
    svg = picture(answer(Source("run", RunHistory(), 0, ()), Question(WHOLE)))

    assert len(bars_of(svg)) == 2


def test_scalars_are_what_the_engine_says_at_their_time(tmp_path: Path, history: RunHistory) -> None:
    """TensorBoard's own reader is the judge."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    written = write_scalars(tmp_path / "logs", history, report(history))

    (file,) = (tmp_path / "logs").iterdir()
    events = [event for event in EventFileLoader(str(file)).Load() if event.summary.value]
    last = {value.tag: value.tensor.float_val[0] for value in events[-1].summary.value}
    assert written == sum(len(event.summary.value) for event in events)
    assert len(events) == POINTS
    assert (events[-1].wall_time, events[-1].step) == (50.0, 39)
    assert last["goodput/run"] == pytest.approx(0.4)
    assert last["badput/data_wait"] == pytest.approx(20.0)
    assert events[0].summary.value[0].tag == "badput/init"


def test_run_without_time_has_no_scalars(tmp_path: Path) -> None:
    """An empty window is no error."""
    assert write_scalars(tmp_path, RunHistory(), report(RunHistory())) == 0
