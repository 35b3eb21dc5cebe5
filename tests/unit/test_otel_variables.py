"""The standard variables that have no file of their own, and what a relay says of them when it begins."""

from pathlib import Path

import pytest

from trainspan.otel_variables import INTERVAL, INTERVAL_MS, TEMPORALITY, metric_interval_from
from trainspan.relay.gpus import no_gpus
from trainspan.relay.pipeline import Pipeline


@pytest.mark.parametrize(("text", "interval_ms"), [("", INTERVAL_MS), ("500", 500), (" 500 ", 500)])
def test_interval_is_in_milliseconds(text: str, interval_ms: int) -> None:
    """As the specification has it."""
    found = metric_interval_from({INTERVAL: text})

    assert found == (interval_ms, [])


@pytest.mark.parametrize("text", ["abc", "0", "-1", "1.5"])
def test_interval_that_is_none_is_a_problem_and_the_default(text: str) -> None:
    """Metrics that never come look like a job that never runs."""
    interval_ms, problems = metric_interval_from({INTERVAL: text})

    assert interval_ms == INTERVAL_MS
    assert [problem.value for problem in problems] == [text]


def test_a_relay_says_once_what_it_does_not_follow(tmp_path: Path) -> None:
    """The log is where somebody looks who finds the backend's numbers strange."""
    said: list[str] = []
    environ = {TEMPORALITY: "delta", INTERVAL: "abc", "OTEL_TRACES_SAMPLER": "bogus"}

    Pipeline(tmp_path, environ, said.append, no_gpus())

    assert [line.partition("=")[0] for line in said] == ["OTEL_TRACES_SAMPLER", INTERVAL, TEMPORALITY]
