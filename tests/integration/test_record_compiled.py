"""torch.compile in every common way, in real processes: the compiler sees what it would see without trainspan."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.integration.recorded import Pair, in_good_order, phases_of, run_both, start

STEP = ["forward", "backward", "optimizer"]
UNSEEN = ["backward", "optimizer"]
LOADED = ["data_wait", "h2d", "forward", "backward", "optimizer"]

PHASES: dict[str, list[list[str]]] = {
    "fullgraph": [STEP] * 6,
    "after_optimizer": [STEP] * 6,
    "in_place": [STEP] * 6,
    "in_place_whole": [STEP] * 6,
    # The compiled model is another module than the one that was found: it is found in the step after.
    "late": [STEP, STEP, STEP, UNSEEN, STEP, STEP],
    "late_in_place": [STEP] * 6,
    # The model itself is called after the first step, while the search for roots goes on.
    "both": [STEP, *[["validation", *STEP]] * 5],
    "blocks": [STEP] * 6,
    "broken": [STEP] * 6,
    # What runs inside a compiled function is one graph; its forward is no call any more.
    "forward_function": [UNSEEN] * 6,
    "whole_step": [STEP, STEP, *[UNSEEN] * 6],
    "epoch": [["data_wait", *LOADED], *[LOADED] * 5, ["data_wait", "data_wait", *LOADED], *[LOADED] * 5],
    "clipping": [STEP] * 6,
    "optimizer_step": [STEP] * 6,
}

COMPILED_OPTIMIZER = {"whole_step", "epoch", "optimizer_step"}
"""Where the hooks break the graph at a place at which torch would a few lines later; it counts only its own."""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """All of them, with and without trainspan."""
    return run_both("compiled.py", *PHASES, state=tmp_path_factory.mktemp("compiled"))


def without_stamps(log: str) -> list[str]:
    """The lines of a log of torch, without time and process."""
    return [re.sub(r"^([A-Z])\d{4} [\d:.]+ \d+ ", r"\1 ", line) for line in log.splitlines()]


def difference_of(pair: Pair, scenario: str) -> dict[str, Any]:
    """What differs in the line of `scenario`."""
    lines = [[line for line in run.lines if line.get("scenario") == scenario] for run in pair]
    found: dict[str, Any] = Pair(*(run._replace(lines=own) for run, own in zip(pair, lines, strict=True))).differences(
        "pid"
    )[0]
    return found


@pytest.mark.parametrize("scenario", PHASES)
def test_graphs_breaks_and_weights_are_the_same(compiled: Pair, scenario: str) -> None:
    """A graph break or a second compilation costs more than everything that is measured here."""
    difference = difference_of(compiled, scenario)

    if scenario in COMPILED_OPTIMIZER:
        alone, recorded = difference.pop("breaks", (0, 0))
        assert recorded <= alone
    assert difference == {}


def test_the_compiler_has_nothing_more_to_say(compiled: Pair) -> None:
    """It warns of what it does not know in a function that it traces; ours must not be among them."""
    alone, recorded = (without_stamps(run.stderr) for run in compiled)

    assert recorded == alone


@pytest.mark.parametrize("scenario", PHASES)
def test_steps_have_their_phases_in_order(compiled: Pair, scenario: str) -> None:
    """Most large models are compiled: they must not be the ones that are seen worst."""
    recording = compiled.recording_of(scenario)

    assert [phases_of(step) for step in recording.steps] == PHASES[scenario]
    assert in_good_order(recording)


@pytest.mark.skipif(
    shutil.which("c++") is None, reason="no C++ compiler; would have shown that inductor compiles the same code"
)
def test_inductor_compiles_the_same(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The default backend, in a process where the compiler is first imported when the optimizer is made."""
    pair = run_both("compiled.py", "inductor", state=tmp_path_factory.mktemp("inductor"))

    # The compiler's own pool of threads is as large as its work was slow; other scenarios show that none is ours.
    assert pair.differences("pid", "threads") == [{}]
    assert pair.recorded.stderr == pair.alone.stderr  # torch itself warns of some versions of Python
    assert [phases_of(step) for step in pair.recording_of("inductor").steps] == [STEP] * 6


@pytest.mark.parametrize(("scenario", "counted"), [("late", [8576]), ("whole_step", []), ("fullgraph", [])])
def test_flops_are_counted_before_anything_is_compiled(scenario: str, counted: list[int], tmp_path: Path) -> None:
    """The layers of 8 by 16, 16 by 16 and 16 by 1, for 4 rows, in the step before the first compiled one; or nothing.

    The compiler finds no counter: it would not compile, and raise where the user has asked for a whole graph.
    """
    runs = [
        start("compiled.py", scenario),
        start("compiled.py", scenario, state=tmp_path, TRAINSPAN_COUNT_FLOPS="1"),
    ]

    pair = Pair(*(run.ended() for run in runs))

    events = [event for event in pair.recording_of(scenario).events if event["event"] == "flops"]
    assert (pair.recorded.exit_code, pair.recorded.stderr.count("Traceback")) == (0, 0)
    assert [event["flops"] for event in events] == counted
    assert set(pair.differences("pid")[0]) <= ({"breaks"} if scenario in COMPILED_OPTIMIZER else set())
