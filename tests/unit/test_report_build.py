"""What a report computes from the summaries of a run."""

import json
from dataclasses import fields
from pathlib import Path
from typing import Literal, TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.report_runs import PLAIN_MS, START_UNIX_NS, S, rank_of, run_of
from trainspan.errors import RunNotFound
from trainspan.identity import trace_id_of
from trainspan.names import Phase
from trainspan.relay.timeline.rank_summary import Ending
from trainspan.relay.timeline.records import EndReason
from trainspan.relay.timeline.throughput import Work
from trainspan.report.build import build_report
from trainspan.report.model import RankReport, RunReport, Unusual, to_json
from trainspan.report.outliers import find

FOLDER = Path("/runs/demo")

How: TypeAlias = Literal["running"] | EndReason


def test_shares_of_all_phases_add_up_to_the_step() -> None:
    """A share that is counted twice, or not at all, makes the table a lie."""
    rank = rank_of(0, [PLAIN_MS, {**PLAIN_MS, Phase.VALIDATION: 700}, PLAIN_MS, dict.fromkeys(Phase, 10)])

    (report,) = build_report(run_of(rank), FOLDER, 0.0).ranks

    assert sum(phase.share_ratio for phase in report.phases) == pytest.approx(1.0)
    assert sum(phase.total_s for phase in report.phases) == pytest.approx(3 * 0.326 + 0.7 + 0.01 * len(Phase))


def test_phases_come_in_the_order_of_a_loop() -> None:
    """A reader follows the step from the batch to the optimizer."""
    rank = rank_of(0, [dict.fromkeys(Phase, 10)])

    (report,) = build_report(run_of(rank), FOLDER, 0.0).ranks

    names = [phase.phase for phase in report.phases]
    assert names == [
        "data_wait",
        "h2d",
        "forward",
        "backward",
        "collective",
        "grad_clip",
        "amp",
        "optimizer",
        "graph_replay",
        "validation",
        "generation",
        "checkpoint_save",
        "checkpoint_load",
        "other",
    ]


def test_slow_step_names_the_late_rank_before_those_that_waited() -> None:
    """With synchronous training every rank is slow at once; only one of them is the cause."""
    late = {**PLAIN_MS, Phase.DATA_WAIT: 900}
    waits = {**PLAIN_MS, Phase.BACKWARD: 1100}
    ranks = [rank_of(rank, [PLAIN_MS] * 9 + [late if rank == 2 else waits], world_size=4) for rank in range(4)]

    slowest = build_report(run_of(*ranks), FOLDER, 0.0).slowest_steps[0]

    assert slowest.step == 9
    assert [(one.phase, one.ranks) for one in slowest.unusual] == [("data_wait", (2,)), ("backward", (0, 1, 3))]
    assert slowest.unusual[0].excess_s == pytest.approx(0.895, rel=0.01)


def test_rare_phase_is_what_makes_its_step_slow() -> None:
    """A validation that always takes 700 ms is usual for a validation, and unusual for a step."""
    validates = {**PLAIN_MS, Phase.VALIDATION: 700}

    report = build_report(run_of(rank_of(0, [PLAIN_MS] * 9 + [validates])), FOLDER, 0.0)

    assert report.slowest_steps[0].unusual == (Unusual("validation", 0.7000000000000001, (0,)),)
    assert report.slowest_steps[1].unusual == ()


def test_slow_step_has_a_trace_only_if_it_was_sampled() -> None:
    """An id that no backend knows sends the reader on a search for nothing."""
    report = build_report(run_of(rank_of(0, [PLAIN_MS] * 2, sampled=(1,))), FOLDER, 0.0)

    traces = {step.step: step.trace_id for step in report.slowest_steps}

    assert traces == {0: None, 1: f"{trace_id_of('demo', 0, 'step', 1):032x}"}


@pytest.mark.parametrize(
    ("endings", "state"),
    [
        (("closed", "closed"), "finished"),
        (("closed", "died"), "failed"),
        (("exception", "closed"), "failed"),
        (("running", "closed"), "running"),
        (("running", "died"), "running"),
        (("closed", "exited"), "failed"),
        (("stopped", "stopped"), "stopped"),
        (("stopped", "died"), "failed"),
    ],
)
def test_state_of_a_run_follows_from_how_its_ranks_ended(endings: tuple[How, How], state: str) -> None:
    """A script polls this word to know whether to wait, to go on or to look."""
    ranks = [
        rank_of(rank, [PLAIN_MS], world_size=2, ending=Ending(how, START_UNIX_NS + 4 * S))
        for rank, how in enumerate(endings)
    ]

    report = build_report(run_of(*ranks), FOLDER, 1.0)

    assert report.state == state
    assert report.silent_s == (1.0 if state == "running" else None)


def test_rank_that_its_launcher_stopped_is_no_failure() -> None:
    """Whoever reads the first line goes to look at that rank's host."""
    stopped = rank_of(0, [PLAIN_MS], world_size=2, ending=Ending("stopped", START_UNIX_NS + 4 * S, cause="SIGTERM"))
    exited = rank_of(1, [PLAIN_MS], world_size=2, ending=Ending("exited", START_UNIX_NS + 5 * S, cause="exit code 3"))

    report = build_report(run_of(stopped, exited), FOLDER, 0.0)

    assert [rank.rank for rank in report.failures] == [1]


def test_restart_counts_the_steps_of_both_attempts_and_judges_the_last() -> None:
    """A run that died once and then came through is finished, and its first attempt is not forgotten."""
    died = rank_of(0, [PLAIN_MS] * 3, ending=Ending("died", START_UNIX_NS + 5 * S))
    finished = rank_of(0, [PLAIN_MS] * 2, attempt=1)

    report = build_report(run_of(died, finished), FOLDER, 0.0)

    assert (report.state, report.attempts, report.steps) == ("finished", (0, 1), 5)
    assert report.failures == (report.ranks[0],)
    assert report.elapsed_s == pytest.approx(60 + 3 + 2 * 0.326 + 1)


def test_rank_that_failed_first_is_named_first() -> None:
    """The launcher ends all others when one has died; the first is the one to look at."""
    causes = {0: (7, "SIGTERM"), 1: (7, "SIGKILL"), 2: (8, "RuntimeError"), 3: (7, "SIGTERM")}
    ranks = [
        rank_of(rank, [PLAIN_MS], world_size=4, ending=Ending("died", START_UNIX_NS + after_s * S, cause=cause))
        for rank, (after_s, cause) in causes.items()
    ]

    report = build_report(run_of(*ranks), FOLDER, 0.0)

    assert [rank.rank for rank in report.failures] == [1, 2, 0, 3]


def test_rank_that_died_is_named_before_those_that_could_not_reach_it() -> None:
    """A peer's collective fails in the same millisecond, which it tells itself; that the rank is gone is seen later."""
    ms = S // 1000
    unreached = Ending(
        "exception", START_UNIX_NS + 5 * S + 45 * ms, cause="RuntimeError", alive_unix_ns=START_UNIX_NS + 5 * S
    )
    died = Ending("died", START_UNIX_NS + 5 * S + 60 * ms, cause="SIGKILL", alive_unix_ns=START_UNIX_NS + 5 * S - ms)
    ranks = [rank_of(rank, [PLAIN_MS], world_size=2, ending=ending) for rank, ending in enumerate((unreached, died))]

    report = build_report(run_of(*ranks), FOLDER, 0.0)

    assert [rank.rank for rank in report.failures] == [1, 0]


def test_ranks_without_a_summary_are_missing() -> None:
    """A node whose folder was not collected must not look like a node that does not exist."""
    report = build_report(run_of(rank_of(1, [PLAIN_MS], world_size=4)), FOLDER, 0.0)

    assert (report.world_size, report.ranks_missing) == (4, (0, 2, 3))


def test_agents_are_no_ranks() -> None:
    """The agent of torchrun is recorded too; as a rank without steps it would spoil every count."""
    agent = rank_of(0, [])
    agent.identity = agent.identity._replace(role="agent")
    agent.recording = "a00000-a0-p1-00000000"

    with pytest.raises(RunNotFound, match="no process has begun to train"):
        build_report(run_of(agent), FOLDER, 0.0)


def test_goodput_is_productive_over_everything() -> None:
    """The number managers quote must be the one the account below it adds up to."""
    report = build_report(run_of(rank_of(0, [PLAIN_MS] * 10)), FOLDER, 0.0)

    assert report.goodput_ratio == pytest.approx(3.21 / 7.26)
    assert sum(report.states_s.values()) == pytest.approx(report.ranks[0].elapsed_s)


def test_json_has_every_field_of_the_model_and_nothing_else() -> None:
    """Other programs read it: a key that vanishes breaks them without a word."""
    report = build_report(run_of(rank_of(0, [PLAIN_MS])), FOLDER, 0.0)

    written = json.loads(json.dumps(to_json(report), allow_nan=False))

    assert set(written) == {"schema", "version"} | {field.name for field in fields(RunReport)}
    assert set(written["ranks"][0]) == {field.name for field in fields(RankReport)}
    assert written["ranks"][0]["phases"][0] == {
        "phase": "data_wait",
        "steps": 1,
        "spread": {"p50_s": 0.005, "p95_s": 0.005, "max_s": 0.005},
        "total_s": 0.005,
        "share_ratio": pytest.approx(5 / 326),
    }


@given(slow_rank=st.integers(0, 31), slow_by=st.floats(1.3, 3.0))
def test_slow_rank_is_found_among_its_peers(slow_rank: int, slow_by: float) -> None:
    """One slow node holds up all others; finding it is what people ask for most."""
    slow_ms = {**PLAIN_MS, Phase.FORWARD: round(100 * slow_by)}
    ranks = [rank_of(rank, [slow_ms if rank == slow_rank else PLAIN_MS], world_size=32) for rank in range(32)]

    found = find(build_report(run_of(*ranks), FOLDER, 0.0).ranks)

    assert [(one.rank, one.phase) for one in found] == [(slow_rank, "forward")]


def test_noise_makes_no_outlier() -> None:
    """A list that always names somebody is read once."""
    ranks = [rank_of(rank, [{**PLAIN_MS, Phase.FORWARD: 96 + rank % 9}], world_size=32) for rank in range(32)]

    found = find(build_report(run_of(*ranks), FOLDER, 0.0).ranks)

    assert found == []


def test_work_of_all_ranks_adds_up() -> None:
    """Each rank has batches of its own; who reads of a job asks what it does in all."""
    ranks = [rank_of(rank, [PLAIN_MS] * 10, world_size=2) for rank in range(2)]
    for rank, mfu in zip(ranks, (0.25, 0.75), strict=True):
        rank.work = Work(samples=326, tokens=3260, flops=3.26e12, mfu=mfu)

    report = build_report(run_of(*ranks), FOLDER, 0.0)

    of_job = (report.samples_per_s, report.tokens_per_s, report.flops_per_s, report.mfu_ratio)
    assert of_job == pytest.approx((200, 2000, 2e12, 0.5))
    assert report.ranks[0].tokens_per_s == pytest.approx(1000)
