"""A job that is killed three times and resumes from checkpoints: our answer against what the script itself knows."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.integration.relayed import SCRIPTS, TORCHRUN, train_with, wait_for_relay
from trainspan.cli.main import main
from trainspan.relay.otlp.otlp_json import decode

S = 1_000_000_000
LAST_STEP = 34
RESUMED_AT = [10, 5, 25]
KILLED_IN = [13, 24, 29]


class Truth(NamedTuple):
    """What happened, in seconds, from the lines that rank 0 wrote. A step runs from the end of the one before."""

    kept_s: float
    lost_s: float
    recovery_s: float
    outage_s: float


def truth_of(lines: list[dict[str, Any]]) -> Truth:
    """Add up what was kept, what was done again or died unfinished, and what it took to come back."""
    killed = {line["attempt"]: line for line in lines if line["event"] == "killed"}
    started = {line["attempt"]: line["unix_ns"] for line in lines if line["event"] == "start"}
    kept_ns = lost_ns = recovery_ns = 0
    for attempt in sorted(started):
        steps = [line for line in lines if line["event"] == "step" and line["attempt"] == attempt]
        saved_ns = {line["step"]: line["unix_ns"] - line["began_ns"] for line in lines if _is_save(line, attempt)}
        cut = min([LAST_STEP + 1, *RESUMED_AT[attempt:]])
        before_ns = steps[0]["began_ns"]
        for line in steps:
            length_ns = line["unix_ns"] - before_ns - saved_ns.get(line["step"], 0)
            kept_ns, lost_ns = (kept_ns + length_ns, lost_ns) if line["step"] < cut else (kept_ns, lost_ns + length_ns)
            before_ns = line["unix_ns"]
        if attempt in killed:
            lost_ns += killed[attempt]["unix_ns"] - before_ns - saved_ns.get(killed[attempt]["step"], 0)
        if attempt:
            recovery_ns += steps[0]["began_ns"] - killed[attempt - 1]["unix_ns"]
    outage_ns = sum(started[attempt + 1] - line["unix_ns"] for attempt, line in killed.items())
    return Truth(kept_ns / S, lost_ns / S, recovery_ns / S, outage_ns / S)


def counters_of(state: Path, rank: int) -> dict[str, float]:
    """The counter `training.time` of a rank by state, its last value of each attempt added up."""
    newest: dict[tuple[int, str], float] = {}
    for line in (state / "runs" / "killed" / "metrics.jsonl").read_bytes().splitlines():
        for told in decode("metrics", line).resource_metrics:
            resource = told.resource.attributes
            if resource.get("training.rank") != rank:
                continue
            for metric in (metric for scope in told.scope_metrics for metric in scope.metrics):
                for point in metric.data.data_points if metric.name == "training.time" else ():
                    newest[resource["training.attempt"], point.attributes["training.state"]] = point.value
    total: dict[str, float] = {}
    for (_, spent_on), seconds in newest.items():
        total[spent_on] = total.get(spent_on, 0.0) + seconds
    return total


def _is_save(line: dict[str, Any], attempt: int) -> bool:
    """A save is in the step that follows it."""
    return line["event"] == "saved" and line["attempt"] == attempt


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A state directory with the run in it, and beside it what the script wrote."""
    state = tmp_path_factory.mktemp("killed")
    launcher = (*TORCHRUN, "--standalone", "--nproc-per-node=2", "--max-restarts=3")
    script = (str(SCRIPTS / "resuming_ddp.py"), str(state))
    ended = train_with(*launcher, *script, state=state, environ={"TRAINSPAN_RUN_ID": "killed"})
    assert ended.exit_code == 0, ended.stderr
    wait_for_relay(state)
    return state


@pytest.fixture
def answer(state: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """What `trainspan goodput` says of it."""
    assert main(["goodput", "killed", "--dir", str(state), "--json", "--by", "rank"]) == 0
    said: dict[str, Any] = json.loads(capsys.readouterr().out)
    return said


def test_every_restart_is_found_with_the_step_it_resumed_at(answer: dict[str, Any]) -> None:
    """The checkpoint that was loaded tells it, by its name: also one from behind the segment before."""
    recoveries = answer["recoveries"]

    assert answer["disruptions"] == 3
    assert [recovery["resumed_step"] for recovery in recoveries] == RESUMED_AT
    assert {recovery["known_by"] for recovery in recoveries} == {"load"}
    assert [recovery["lost_steps"] for recovery in recoveries] == [
        killed - resumed for killed, resumed in zip(KILLED_IN, RESUMED_AT, strict=True)
    ]
    assert (answer["steps"], answer["last_step"]) == (LAST_STEP + 1, LAST_STEP)
    assert answer["unread"]["lines"] == 0


def test_states_add_up_to_the_wall_clock(answer: dict[str, Any]) -> None:
    """Time that is in no state or in two would make every share wrong."""
    for said in (answer, *answer["by"]["rank"].values()):
        states_s = said["productive_s"] + sum(said["badput_s"].values())

        assert states_s == pytest.approx(said["total_s"], abs=1e-6)
        assert said["total_s"] == pytest.approx(said["ended_unix_s"] - said["began_unix_s"], abs=1e-6)


def test_lost_work_recovery_and_productive_time_are_the_scripts_own(state: Path, answer: dict[str, Any]) -> None:
    """Within 1 %: of itself, or of the total where the end of a killed process comes in.

    A first step's excess is `compile` with us and part of the step with the script, so they are added. A process is
    killed at one time and gone 40 to 200 ms later (that much memory to give back, on a busy machine), three times.
    """
    lines = [json.loads(line) for line in (state / "truth.0.jsonl").read_text(encoding="utf-8").splitlines()]
    truth, badput_s = truth_of(lines), answer["badput_s"]

    one_percent_s = 0.01 * answer["total_s"]
    kept_s = answer["productive_s"] + badput_s.get("compile", 0.0)

    assert kept_s == pytest.approx(truth.kept_s, rel=0.01)
    assert answer["productive_s"] == pytest.approx(truth.kept_s, abs=one_percent_s)
    assert badput_s["lost_work"] == pytest.approx(truth.lost_s, abs=one_percent_s)
    assert answer["recovery_s"] == pytest.approx(truth.recovery_s, abs=one_percent_s)
    assert badput_s["restart"] == pytest.approx(truth.outage_s, abs=one_percent_s)


def test_counters_add_up_to_the_same_run(state: Path, answer: dict[str, Any]) -> None:
    """Goodput over any window by PromQL rests on them. They charge what is done again, hindsight what was lost."""
    said = answer["by"]["rank"]["0"]

    counters = counters_of(state, 0)

    five_percent_s = 0.05 * said["total_s"]
    assert sum(counters.values()) == pytest.approx(said["total_s"], abs=five_percent_s)
    for spent_on, seconds in {**said["badput_s"], "productive": said["productive_s"]}.items():
        assert counters.get(spent_on, 0.0) == pytest.approx(seconds, abs=five_percent_s), spent_on


def test_checkpoints_are_spans_and_durations(state: Path) -> None:
    """Every save of the script, in the trace of its attempt, and in the metrics with what was loaded."""
    lines = [json.loads(line) for line in (state / "truth.0.jsonl").read_text(encoding="utf-8").splitlines()]
    folder = state / "runs" / "killed"

    spans = [span for line in (folder / "traces.jsonl").read_bytes().splitlines() for span in decode("traces", line)]
    parts: set[tuple[Any, ...]] = set()
    for line in (folder / "metrics.jsonl").read_bytes().splitlines():
        for told in decode("metrics", line).resource_metrics:
            for metric in (metric for scope in told.scope_metrics for metric in scope.metrics):
                if metric.name == "training.checkpoint.duration":
                    parts |= {tuple((point.attributes or {}).values()) for point in metric.data.data_points}

    made = [span for span in spans if span.name == "training.checkpoint.save"]
    saved = [line for line in lines if line["event"] == "saved"]
    assert sum(span.name == "training.checkpoint.load" for span in spans) == 2 * len(RESUMED_AT)
    assert len({span.context.span_id for span in made}) == len(made) == len(saved)
    assert sorted(span.end_time for span in made) == pytest.approx([line["unix_ns"] for line in saved], abs=S)
    assert parts == {("save", "blocking", "success"), ("load", "blocking", "success")}
