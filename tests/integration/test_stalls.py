"""A job that hangs: while it does, somebody is told which rank stands where; and it can go on."""

import json
import subprocess
import sys
import time
from typing import Any

import pytest

from tests.integration.relayed import (
    SCRIPTS,
    TORCHRUN,
    by_trace,
    latest_numbers,
    spans_of,
    training_environ,
    wait_for_relay,
)
from trainspan.testing.otlp_sink import OtlpSink, attributes_of

STALL_S = 2
PATIENCE_S = 120


@pytest.fixture(scope="module")
def hung(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What was said of a job while it hung, and what was exported of it when it had come to its end."""
    state = tmp_path_factory.mktemp("state")
    goes_on = state / "goes-on"
    with OtlpSink() as sink:
        environ = training_environ(
            state,
            {**sink.environ, "TRAINSPAN_STALL_S": str(STALL_S), "OTEL_METRIC_EXPORT_INTERVAL": "500"},
        )
        command = [*TORCHRUN, "--nproc-per-node=2", str(SCRIPTS / "hung_ddp.py"), str(goes_on)]
        job = subprocess.Popen(command, env=environ, stderr=subprocess.PIPE, text=True)
        try:
            said = sink.wait_for(lambda sink: len(stalled(sink)) == 2 and len(ages_of(sink)) == 2, PATIENCE_S)
            ages = ages_of(sink)
            report = standing_report(environ)
        finally:
            goes_on.touch()
            _, stderr = job.communicate(timeout=PATIENCE_S)
        wait_for_relay(state)
    assert job.returncode == 0, stderr
    return {"said": said, "ages": ages, "report": report, "sink": sink}


def stalled(sink: OtlpSink) -> list[dict[str, Any]]:
    """The records of stalls, by rank."""
    records = [one.item for one in sink.logs() if one.item.event_name == "training.stalled"]
    return sorted((attributes_of(record.attributes) for record in records), key=lambda said: said["training.rank"])


def ages_of(sink: OtlpSink) -> dict[tuple[Any, ...], float]:
    """For how long each rank has been stalled, by rank and phase."""
    return latest_numbers(sink, "training.stall.age")


def standing_report(environ: dict[str, str]) -> dict[str, Any]:
    """What `trainspan report --json` says once it has seen both ranks stand."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        command = [sys.executable, "-m", "trainspan", "report", "--json"]
        said = subprocess.run(command, env=environ, capture_output=True, text=True, check=True, timeout=PATIENCE_S)
        report: dict[str, Any] = json.loads(said.stdout)
        if all((rank["stands_s"] or 0) > STALL_S for rank in report["ranks"]):
            return report
        if time.monotonic() > deadline:
            raise AssertionError(f"no rank stands in {report}")
        time.sleep(0.5)


def test_each_rank_says_where_it_stands(hung: dict[str, Any]) -> None:
    """Nobody has to look for a hang to hear of it."""
    records = stalled(hung["sink"])

    assert hung["said"]
    assert records == [
        {"training.rank": 0, "training.step": 3, "training.phase": "backward"},
        {"training.rank": 1, "training.step": 3, "training.phase": "other"},
    ]


def test_stalled_ranks_are_series_while_they_are_stalled(hung: dict[str, Any]) -> None:
    """What an alert rings for, with the rank and its phase in its labels."""
    ages = hung["ages"]

    assert set(ages) == {(0, "backward"), (1, "other")}
    assert all(age_s > STALL_S for age_s in ages.values())


def test_report_of_a_job_that_hangs_says_where_and_who_is_behind(hung: dict[str, Any]) -> None:
    """Who looks for the culprit looks while it hangs: it is the rank that never came to where the others wait."""
    report = hung["report"]

    asked = ("stands_in_phase", "stands_in_step", "phases_entered")
    where = {rank["rank"]: tuple(rank[key] for key in asked) for rank in report["ranks"]}
    assert report["state"] == "running"
    assert where == {0: ("backward", 3, 2), 1: ("other", 3, 0)}


def test_stall_that_is_over_is_a_span_of_the_attempt(hung: dict[str, Any]) -> None:
    """Afterwards the trace shows how long each of them stood, and where."""
    spans = spans_of(hung["sink"])

    stalls = {span.attributes["training.rank"]: span for span in spans if span.name == "training.stall"}
    (attempt,) = (trace for trace in by_trace(spans).values() if any(s.name == "training.attempt" for s in trace))
    assert set(stalls) == {0, 1}
    assert all(stall in attempt for stall in stalls.values())
    assert all(stall.duration_ns > STALL_S * 1e9 for stall in stalls.values())
    assert stalls[1].attributes["training.phase"] == "other"
