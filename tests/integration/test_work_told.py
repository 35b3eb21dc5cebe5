"""From the script to the wire: what a rank works through, where it is in its run, what it logs."""

import json
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.integration.relayed import (
    SpanSeen,
    command_line,
    latest_numbers,
    run_folder,
    spans_of,
    train,
    wait_for_relay,
)
from trainspan.testing.otlp_sink import OtlpSink

BATCH = 8
TOKENS = 16 * BATCH


class Told(NamedTuple):
    """A run that is over. `steps`: as the script counted them; `numbers`: of each metric without attributes."""

    folder: Path
    steps: int
    spans: list[SpanSeen]
    numbers: dict[str, float]
    scalars: dict[str, float]
    counters: dict[str, float]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    """A script that trains for two seconds, with the FLOPs of its tokens known."""
    state = tmp_path_factory.mktemp("work")
    environ = {"TRAINSPAN_FLOPS_PER_TOKEN": "1e6", "TRAINSPAN_PEAK_FLOPS": "1e10"}
    with OtlpSink() as sink:
        ended = train(
            "paced.py", "2", "0.02", str(state / "model.pt"), state=state, environ={**sink.environ, **environ}
        )
        wait_for_relay(state)
    assert ended.exit_code == 0, ended.stderr
    metrics = ("samples", "tokens", "flops", "mfu", "progress.global_step")
    numbers = {name: value for name in metrics for value in latest_numbers(sink, f"training.{name}").values()}
    scalars = {key[1]: value for key, value in latest_numbers(sink, "training.scalar").items()}
    counters = {key[1]: value for key, value in latest_numbers(sink, "training.counter").items()}
    return Told(run_folder(state), ended.lines[0]["steps"], spans_of(sink), numbers, scalars, counters)


def test_every_sample_and_token_is_counted(told: Told) -> None:
    """What was trained on, exactly: a batch that is fetched is trained on, and nothing twice."""
    assert told.numbers["samples"] == BATCH * told.steps
    assert told.numbers["tokens"] == TOKENS * told.steps
    assert told.numbers["flops"] == 1e6 * TOKENS * told.steps
    assert told.counters == {"texts": BATCH * told.steps}


def test_mfu_is_that_of_the_goodput_report(told: Told, capfd: pytest.CaptureFixture[str]) -> None:
    """One definition: FLOPs of a step over what the device can do in the mean step."""
    per_step = str(1e6 * TOKENS)
    question = ("goodput", "--json", "--flops-per-step", per_step, "--peak-flops", "1e10", str(told.folder))

    exit_code = command_line(*question, environ={})

    reported = json.loads(capfd.readouterr().out)["mfu"]
    assert exit_code == 0
    assert told.numbers["mfu"] == pytest.approx(reported, rel=0.02)


def test_step_says_what_it_holds_and_what_its_script_calls_it(told: Told) -> None:
    """The script logs with a step of its own, which goes on from another run."""
    steps = {span.attributes["training.step"]: span for span in told.spans if span.name == "training.rank_step"}

    last = steps[told.steps - 1].attributes
    assert (last["training.samples"], last["training.tokens"]) == (BATCH, TOKENS)
    assert last["training.global_step"] == 1000 + told.steps
    assert told.numbers["progress.global_step"] == 1000 + told.steps
    assert set(told.scalars) == {"loss"}


def test_report_says_how_much_it_does_a_second(told: Told, capfd: pytest.CaptureFixture[str]) -> None:
    """Between the steps and the goodput, where it is looked for."""
    as_json = command_line("report", "--json", str(told.folder), environ={})
    report = json.loads(capfd.readouterr().out)
    as_text = command_line("report", str(told.folder), environ={})
    text = capfd.readouterr().out

    assert (as_json, as_text) == (0, 0)
    assert report["tokens_per_s"] == pytest.approx(TOKENS * report["steps_per_s"], rel=0.01)
    assert report["samples_per_s"] == pytest.approx(BATCH * report["steps_per_s"], rel=0.01)
    assert report["mfu_ratio"] == pytest.approx(told.numbers["mfu"])
    assert "tokens/s, " in text
    assert "FLOP/s, MFU " in text
