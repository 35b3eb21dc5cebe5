"""A job that is killed three times and resumes from checkpoints: our answer against what the script itself knows."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.integration.relayed import SCRIPTS, TORCHRUN, train_with, wait_for_relay
from trainspan.cli.main import main
from trainspan.relay.goodput.queries import Scope, pace, report
from trainspan.relay.otlp.otlp_json import decode
from trainspan.report.goodput import from_ledger

S = 1_000_000_000
LAST_STEP = 34
RESUMED_AT = [10, 5, 25]
KILLED_IN = [13, 24, 29]


TICKS_S = 2 * 0.01 * len(RESUMED_AT)
"""The kernel tells when a process was made in ticks of 10 ms; the script reads it, and so do we, once a restart."""

RANKS = (0, 1)


class Between(NamedTuple):
    """A time, or a length of time, in ns: the script knows that it is not below `low` and not above `high`."""

    low: int
    high: int

    def since(self, start: "Between") -> "Between":
        """The length from `start` to this time."""
        return Between(self.low - start.high, self.high - start.low)


def last_of(times: Iterable[Between]) -> Between:
    """The time of the last one."""
    low, high = zip(*times, strict=True)
    return Between(max(low), max(high))


def total_s(lengths: Iterable[Between]) -> tuple[float, float]:
    """The sum of some lengths, at least and at most, in s."""
    low, high = zip(*lengths, strict=True)
    return sum(low) / S, sum(high) / S


class Script:
    """What the script itself knows of some ranks, together: a thing is done when the last of them has done it."""

    def __init__(self, folder: Path, ranks: Iterable[int]):
        self._ranks = tuple(ranks)
        self._lines = {rank: lines_of(folder, rank) for rank in RANKS}
        self._folder = folder
        self.attempts = range(len(RESUMED_AT) + 1)

    def each(self, event: str, attempt: int, step: int | None = None) -> list[Between]:
        """When each of the ranks noted it."""
        return [
            Between(*line["between_ns"])
            for rank in self._ranks
            for line in self._lines[rank]
            if (line["event"], line["attempt"]) == (event, attempt) and step in (None, line["step"])
        ]

    def when(self, event: str, attempt: int, step: int | None = None) -> Between:
        """When the last of the ranks noted it."""
        return last_of(self.each(event, attempt, step))

    def began(self, attempt: int) -> Between:
        """When the first of their processes was made."""
        low, high = zip(*self.each("start", attempt), strict=True)
        return Between(min(low), min(high))

    def died(self, attempt: int) -> Between:
        """Between the signal and the time at which a shell saw the last of the processes gone."""
        gone_ns = [int((self._folder / f"gone.{rank}.{attempt}").read_text()) for rank in self._ranks]
        return Between(self.when("killed", attempt).low, max(gone_ns))

    def cut(self, attempt: int) -> Between:
        """When they had made the last step of the attempt that was not done again; its beginning if it made none."""
        made = self.each("step", attempt, min([LAST_STEP + 1, *RESUMED_AT[attempt:]]) - 1)
        return last_of(made) if made else self.when("first", attempt)

    def saving_ns(self, since: Between, until: Between) -> int:
        """How long rank 0 saved between two times, at most: what its calls took."""
        saves = [Between(*line["between_ns"]) for line in self._lines[0] if line["event"] == "saved"]
        return sum(save.high - save.low for save in saves if since.low <= save.low < until.low)

    def kept(self, attempt: int) -> Between:
        """Time in steps that were kept, without saves. The second attempt has none: the third went back behind it."""
        first, last = self.when("first", attempt), self.cut(attempt)
        length = last.since(first)
        return Between(length.low - self.saving_ns(first, last), length.high)

    def lost(self, attempt: int) -> Between:
        """Time in steps that were done again, and in the one they died in."""
        since, died = self.cut(attempt), self.died(attempt)
        length = died.since(since)
        return Between(length.low - self.saving_ns(since, died), length.high)

    def recovery(self, attempt: int) -> Between:
        """From the death of the attempt before to the first step."""
        return self.when("first", attempt).since(self.died(attempt - 1))

    def outage(self, attempt: int) -> Between:
        """From the death of the attempt before until there was a process again."""
        return self.began(attempt).since(self.died(attempt - 1))


def lines_of(folder: Path, rank: int) -> list[dict[str, Any]]:
    """What a rank wrote."""
    return [json.loads(line) for line in (folder / f"truth.{rank}.jsonl").read_text(encoding="utf-8").splitlines()]


def assert_within(seconds: float, truth_s: tuple[float, float], tolerance_s: float) -> None:
    """`seconds` is what the script knows, as exactly as it knows it, give or take the tolerance."""
    low_s, high_s = truth_s
    assert low_s - tolerance_s <= seconds <= high_s + tolerance_s


def newest_of(state: Path, metric: str) -> dict[tuple[Any, Any, Any], float]:
    """The last value of each series of a metric, by (attempt, rank, its first attribute)."""
    newest: dict[tuple[Any, Any, Any], float] = {}
    for line in (state / "runs" / "killed" / "metrics.jsonl").read_bytes().splitlines():
        for told in decode("metrics", line).resource_metrics:
            resource = told.resource.attributes
            for found in (found for scope in told.scope_metrics for found in scope.metrics if found.name == metric):
                for point in found.data.data_points:
                    attribute = next(iter((point.attributes or {}).values()), None)
                    newest[resource.get("training.attempt"), resource.get("training.rank"), attribute] = point.value
    return newest


def counters_of(state: Path, rank: int) -> dict[str, float]:
    """The counter `training.time` of a rank by state, its last value of each attempt added up."""
    total: dict[str, float] = {}
    for (_, of_rank, spent_on), seconds in newest_of(state, "training.time").items():
        if of_rank == rank:
            total[spent_on] = total.get(spent_on, 0.0) + seconds
    return total


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


def test_kept_time_is_the_scripts_own(state: Path, answer: dict[str, Any]) -> None:
    """Within 1 % of itself, for the job and for each rank.

    A first step's excess is `compile` with us and part of the step with the script, and who waits for the other rank
    is in a step too.
    """
    for ranks, said in ((RANKS, answer), ((0,), answer["by"]["rank"]["0"]), ((1,), answer["by"]["rank"]["1"])):
        script = Script(state, ranks)
        truth_s = total_s(map(script.kept, script.attempts))

        badput_s = said["badput_s"]
        kept_s = said["productive_s"] + badput_s.get("compile", 0.0) + badput_s.get("straggler_wait", 0.0)

        assert_within(kept_s, truth_s, 0.01 * kept_s)
        assert_within(said["productive_s"], truth_s, 0.01 * answer["total_s"])


def test_lost_work_and_recovery_are_the_scripts_own(state: Path, answer: dict[str, Any]) -> None:
    """Each within 1 % of itself. For the outage, a third of a second, that is less than can be known: `TICKS_S`."""
    for ranks, said in ((RANKS, answer), ((0,), answer["by"]["rank"]["0"]), ((1,), answer["by"]["rank"]["1"])):
        script = Script(state, ranks)

        lost_s = total_s(map(script.lost, script.attempts[:-1]))
        outage_s = total_s(map(script.outage, script.attempts[1:]))

        assert_within(said["badput_s"]["lost_work"], lost_s, 0.01 * said["badput_s"]["lost_work"])
        assert_within(said["badput_s"]["restart"], outage_s, TICKS_S)
    job = Script(state, RANKS)
    recovery_s = total_s(map(job.recovery, job.attempts[1:]))
    assert_within(answer["recovery_s"], recovery_s, 0.01 * answer["recovery_s"])


def test_counters_add_up_to_the_same_run(state: Path, answer: dict[str, Any]) -> None:
    """Goodput over any window by PromQL rests on them. They charge what is done again, hindsight what was lost."""
    said = answer["by"]["rank"]["0"]

    counters = counters_of(state, 0)

    five_percent_s = 0.05 * said["total_s"]
    assert sum(counters.values()) == pytest.approx(said["total_s"], abs=five_percent_s)
    for spent_on, seconds in {**said["badput_s"], "productive": said["productive_s"]}.items():
        assert counters.get(spent_on, 0.0) == pytest.approx(seconds, abs=five_percent_s), spent_on


def test_gauges_end_with_what_the_command_says(state: Path, answer: dict[str, Any]) -> None:
    """One engine answers live and afterwards: when the run is over there is nothing left to differ."""
    history = from_ledger(state / "runs" / "killed").history
    last = len(RESUMED_AT)

    goodput, deviation = newest_of(state, "training.goodput"), newest_of(state, "training.step.deviation")
    steps, restarts = newest_of(state, "training.progress.step"), newest_of(state, "training.restarts")

    for rank in RANKS:
        found = pace(history, scope=Scope(rank=rank))
        attempt = report(history, scope=Scope(rank=rank, attempt=last))
        assert found is not None
        assert goodput[last, rank, "run"] == pytest.approx(answer["by"]["rank"][str(rank)]["goodput"])
        assert goodput[last, rank, "1h"] == pytest.approx(goodput[last, rank, "run"])
        assert goodput[last, rank, "attempt"] == pytest.approx(attempt.goodput)
        assert deviation[last, rank, None] == pytest.approx(found.deviation_s)
        assert steps[last, rank, None] + RESUMED_AT[-1] == answer["last_step"]
    assert restarts[last, None, "failure"] == answer["disruptions"]


def test_report_says_nearly_the_same(state: Path, answer: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    """Its account is that of the counters: the same time, and what was done again for what was lost."""
    assert main(["report", "killed", "--dir", str(state), "--json"]) == 0

    said = json.loads(capsys.readouterr().out)

    ranks = answer["by"]["rank"].values()
    total_s = sum(rank["total_s"] for rank in ranks)
    goodput = sum(rank["productive_s"] for rank in ranks) / total_s
    assert sum(said["states_s"].values()) == pytest.approx(total_s, rel=0.05)
    assert said["goodput_ratio"] == pytest.approx(goodput, abs=0.05)
    assert said["steps"] == answer["steps"] + answer["steps_lost"]


def test_checkpoints_are_spans_and_durations(state: Path) -> None:
    """Every save of the script, in the trace of its attempt, and in the metrics with what was loaded."""
    folder = state / "runs" / "killed"

    spans = [span for line in (folder / "traces.jsonl").read_bytes().splitlines() for span in decode("traces", line)]
    parts: set[tuple[Any, ...]] = set()
    for line in (folder / "metrics.jsonl").read_bytes().splitlines():
        for told in decode("metrics", line).resource_metrics:
            for metric in (metric for scope in told.scope_metrics for metric in scope.metrics):
                if metric.name == "training.checkpoint.duration":
                    parts |= {tuple((point.attributes or {}).values()) for point in metric.data.data_points}

    made = [span for span in spans if span.name == "training.checkpoint.save"]
    saved = [line["between_ns"][1] for line in lines_of(state, 0) if line["event"] == "saved"]
    assert sum(span.name == "training.checkpoint.load" for span in spans) == 2 * len(RESUMED_AT)
    assert len({span.context.span_id for span in made}) == len(made) == len(saved)
    assert sorted(span.end_time for span in made) == pytest.approx(saved, abs=S)
    assert parts == {("save", "blocking", "success"), ("load", "blocking", "success")}


def launched(state: Path) -> list[tuple[int, str, int]]:
    """(attempt, operation, duration in ns) of everything that the launcher did, in order."""
    lines = (state / "runs" / "killed" / "traces.jsonl").read_bytes().splitlines()
    spans = [span for line in lines for span in decode("traces", line) if span.name == "training.launch"]
    spans.sort(key=lambda span: span.start_time)
    return [
        (
            span.resource.attributes["training.attempt"],
            span.attributes["training.launch.operation"],
            span.end_time - span.start_time,
        )
        for span in spans
    ]


def test_what_the_launcher_did_is_in_the_trace_of_each_attempt(state: Path) -> None:
    """Between the death of a worker and the start of the next is what torchelastic takes."""
    done = launched(state)

    started = ["rendezvous", "start_workers"]
    assert [(attempt, operation) for attempt, operation, _ in done] == [
        *[(0, operation) for operation in started],
        *[(attempt, operation) for attempt in (1, 2, 3) for operation in ["stop_workers", *started]],
    ]
    assert all(duration_ns > 0 for _, _, duration_ns in done)


def newest(state: Path, metric: str) -> dict[Any, float]:
    """The last value of each series of a metric, by its attribute."""
    values: dict[Any, float] = {}
    for line in (state / "runs" / "killed" / "metrics.jsonl").read_bytes().splitlines():
        for told in decode("metrics", line).resource_metrics:
            for found in (found for scope in told.scope_metrics for found in scope.metrics if found.name == metric):
                values.update({next(iter(p.attributes.values())): p.value for p in found.data.data_points})
    return values


def test_what_torchelastic_measures_is_told(state: Path) -> None:
    """By its own names, and as time by what it did."""
    done = launched(state)

    spent = newest(state, "training.launch.time")
    assert spent.pop("exit_barrier") >= 0
    for operation, seconds in spent.items():
        assert seconds == pytest.approx(sum(took for _, name, took in done if name == operation) / S)
    measured = newest(state, "training.launch.metric")
    assert measured["workers.default.remaining_restarts"] == 0
    assert measured["workers.default.run_success_with_retries"] == 1
    assert measured["SimpleElasticAgent._rendezvous.success"] == 1
    assert newest(state, "training.restarts") == {"failure": 3, "planned": 0}


def test_what_torchelastic_records_is_told(state: Path) -> None:
    """A worker that was started and one that came to its end, with torchelastic's own words."""
    lines = (state / "runs" / "killed" / "logs.jsonl").read_bytes().splitlines()
    records = [record.log_record for line in lines for record in decode("logs", line)]

    told = [record.attributes for record in records if record.event_name.startswith("torchelastic.")]

    assert [said["agent_restarts"] for said in told if said["state"] == "START"] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert [said["global_rank"] for said in told if said["state"] == "SUCCEEDED"] == [0, 1]
