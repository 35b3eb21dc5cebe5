"""Reports compared as a whole: what a person sees is the product."""

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.unit.report_runs import PLAIN_MS, START_UNIX_NS, S, rank_of, run_of
from trainspan.names import Phase
from trainspan.relay.timeline.launcher_summary import LauncherSummary
from trainspan.relay.timeline.rank_summary import Ending
from trainspan.relay.timeline.summary import Summary
from trainspan.report.build import build_report
from trainspan.report.render import WIDTH, console_for, how_it_ended, render

LATE_MS = {**PLAIN_MS, Phase.DATA_WAIT: 900}
WAITS_FOR_LATE_MS = {**PLAIN_MS, Phase.BACKWARD: 1100}
VALIDATES_MS = {**PLAIN_MS, Phase.VALIDATION: 700}

ONE_RANK = """\
run demo: finished
attempt 0, 1 rank on 1 host
20 steps in 11.2 s, 2.77/s, goodput 57.2 %

Ranks
  rank  steps    rate     p50     p95     max
     0     20  2.77/s  326 ms  326 ms  1.03 s  finished

Phases
  phase           p50      p95      max   share
  data_wait   5.00 ms  5.00 ms  5.00 ms   1.4 %
  forward      100 ms   100 ms   100 ms  27.7 %
  backward     200 ms   200 ms   200 ms  55.4 %
  optimizer   20.0 ms  20.0 ms  20.0 ms   5.5 %
  validation   700 ms   700 ms   700 ms   9.7 %
  other       1.00 ms  1.00 ms  1.00 ms   0.3 %

Slowest steps
  step    took  longer than usual                              trace
    19  1.03 s  validation +700 ms  fe48ceb999536e0f173afe3edac471fa
     1  326 ms  -                                                  -
     2  326 ms  -                                                  -
     3  326 ms  -                                                  -
     4  326 ms  -                                                  -

Time account
  state       per rank   share
  productive    6.42 s  57.2 %
  init          3.00 s  26.7 %
  shutdown      1.00 s   8.9 %
  validation    700 ms   6.2 %
  data_wait     100 ms   0.9 %
  as it was counted; of the job, with hindsight: trainspan goodput
"""

TWO_RANKS_ONE_KILLED = """\
rank 1 ended in backward of step 20 (SIGKILL)
rank 0 ended in backward of step 20 (RuntimeError)

run demo: failed
attempt 0, 2 ranks on 1 host
20 steps in 11.0 s, 2.70/s, goodput 60.2 %

Ranks
  rank  steps    rate     p50     p95     max
     0     20  2.70/s  326 ms  326 ms  1.23 s  ended in backward of step 20
                                               (RuntimeError)
     1     20  2.70/s  326 ms  326 ms  1.22 s  ended in backward of step 20
                                               (SIGKILL)

Phases
  phase      rank      p50      p95      max   share
  data_wait     0  5.00 ms  5.00 ms  5.00 ms   1.3 %
                1  5.00 ms  5.00 ms   900 ms  13.4 %
  forward       0   100 ms   100 ms   100 ms  27.0 %
                1   100 ms   100 ms   100 ms  27.0 %
  backward      0   200 ms   200 ms   1.10 s  66.0 %
                1   200 ms   200 ms   200 ms  53.9 %
  optimizer     0  20.0 ms  20.0 ms  20.0 ms   5.4 %
                1  20.0 ms  20.0 ms  20.0 ms   5.4 %
  other         0  1.00 ms  1.00 ms  1.00 ms   0.3 %
                1  1.00 ms  1.00 ms  1.00 ms   0.3 %

Slowest steps
  step    took  longer than usual                                    trace
    10  1.23 s  backward +900 ms rank 0   010eaf79a293409d44bad56d1c087e7a
                data_wait +895 ms rank 1
     1  326 ms  -                                                        -
     2  326 ms  -                                                        -
     3  326 ms  -                                                        -
     4  326 ms  -                                                        -

Time account
  state       per rank   share
  productive    6.87 s  60.2 %
  init          3.00 s  26.3 %
  shutdown      1.00 s   8.8 %
  data_wait     548 ms   4.8 %
  as it was counted; of the job, with hindsight: trainspan goodput
"""

RESTARTED_AND_RUNNING = """\
attempt 0: rank 1 ended before its first step (died without a word)

run demo: running, last news 2 min 05 s ago
2 attempts, the last is 1, 2 ranks on 1 host
3 steps in 64.7 s, 3.07/s, goodput 7.4 %
no news for long: the relay may be gone; its log is in the run folder
nothing is known here of rank 1; other nodes keep their own summaries
marks of rank 0 were lost: steps are missing (TRAINSPAN_RING_MARKS)

Ranks
  rank  steps    rate     p50     p95     max
     0      2  3.07/s  326 ms  326 ms  326 ms  running

Phases
  phase          p50      p95      max   share
  data_wait  5.00 ms  5.00 ms  5.00 ms   1.5 %
  forward     100 ms   100 ms   100 ms  30.7 %
  backward    200 ms   200 ms   200 ms  61.3 %
  optimizer  20.0 ms  20.0 ms  20.0 ms   6.1 %
  other      1.00 ms  1.00 ms  1.00 ms   0.3 %

Slowest steps
  step    took  longer than usual                             trace
   0/0  326 ms  -                  a065276960947368c3298b9e85b27713
   1/0  326 ms  -                  8e2c3814435953c3170a9ba19eb2e9c6
   1/1  326 ms  -                                                 -

Time account
  state       per rank   share
  init          4.50 s  69.3 %
  shutdown      1.50 s  23.1 %
  productive    482 ms   7.4 %
  data_wait    7.50 ms   0.1 %
  as it was counted; of the job, with hindsight: trainspan goodput
"""


def text_of(run: Summary, silent_s: float = 1.0, width: int = WIDTH) -> str:
    """The report as printed, without the blanks that pad a table to the right."""
    out = io.StringIO()
    console_for(out, width).print(render(build_report(run, Path("/runs/demo"), silent_s)))
    return "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())


def two_ranks_one_killed() -> Summary:
    """Rank 1 waited for one batch, and was killed later; rank 0 saw the connection break."""
    at = START_UNIX_NS + 11 * S
    return run_of(
        rank_of(
            0,
            [PLAIN_MS] * 10 + [WAITS_FOR_LATE_MS] + [PLAIN_MS] * 9,
            world_size=2,
            ending=Ending("exception", at, "backward", 20, "RuntimeError"),
        ),
        rank_of(
            1,
            [PLAIN_MS] * 10 + [LATE_MS] + [PLAIN_MS] * 9,
            world_size=2,
            ending=Ending("died", at - S, "backward", 20, "SIGKILL"),
            sampled=(10,),
        ),
    )


def many_ranks(count: int) -> Summary:
    """Rank 41 computes its forward for half as long again; all others wait for it in backward."""
    slow_ms = {**PLAIN_MS, Phase.FORWARD: 150}
    waits_ms = {**PLAIN_MS, Phase.BACKWARD: 250}
    ranks = (
        rank_of(rank, [slow_ms if rank == 41 else waits_ms] * 3, world_size=count, host=f"node-{rank // 8:03}")
        for rank in range(count)
    )
    return run_of(*ranks)


def test_report_of_one_rank() -> None:
    """The first report a new user sees."""
    steps = [PLAIN_MS] * 19 + [VALIDATES_MS]

    text = text_of(run_of(rank_of(0, steps, sampled=(0, 19))))

    assert text == ONE_RANK


def test_report_names_the_dead_first() -> None:
    """After a crash one question matters: which rank, in which phase."""
    run = two_ranks_one_killed()

    text = text_of(run)

    assert text == TWO_RANKS_ONE_KILLED


def test_report_of_a_restarted_run_that_goes_on() -> None:
    """A run is watched while it runs; what happened before its restart must not be lost."""
    killed = rank_of(1, [], world_size=2, ending=Ending("died", START_UNIX_NS + 4 * S))
    running = rank_of(0, [PLAIN_MS] * 2, world_size=2, attempt=1, ending=Ending("running"))
    running.marks_lost = 7

    text = text_of(run_of(rank_of(0, [PLAIN_MS], world_size=2), killed, running), silent_s=125.0)

    assert text == RESTARTED_AND_RUNNING


def launcher_of(host: str = "node-a", attempt: int = 0, **facts: Any) -> LauncherSummary:
    """A launcher that began 10 s before the first of its ranks, and was last seen 20 s later."""
    lived = START_UNIX_NS - 10 * S, START_UNIX_NS + 10 * S
    return LauncherSummary(f"a-{host}", host, 7, attempt, *lived, **{"how": "closed", **facts})


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        (
            {"outcome": "failed", "error": "torch.api.RendezvousTimeoutError"},
            "no rank ever started: rendezvous failed after 42.0 s (RendezvousTimeoutError)",
        ),
        (
            {"outcome": "open", "how": "died"},
            "no rank ever started: its launcher was killed after 42.0 s in rendezvous",
        ),
        (
            {"outcome": "open", "how": "running"},
            "no rank has started yet: its launcher has been in rendezvous for 42.0 s",
        ),
        (
            {"workers_ended": 2, "worker_cause": "exit code 1"},
            "no rank ever started: 2 workers failed before the import of torch (exit code 1)",
        ),
        ({"how": "running"}, "no rank has started yet: no worker has imported torch yet"),
        ({"how": "died"}, "no rank ever started: its launcher was killed before any worker imported torch"),
        (
            {"how": "exception", "error": "torch.api.SignalException"},
            "no rank ever started: its launcher ended before any worker imported torch (SignalException)",
        ),
        ({}, "no rank ever started: no worker imported torch"),
    ],
)
def test_run_without_a_rank_says_why(facts: dict[str, Any], said: str) -> None:
    """A job that never began is the one for which somebody asks first."""
    run = run_of()
    run.add_launcher(launcher_of(operation="rendezvous", operation_ns=42 * S, **facts))

    text = text_of(run, width=120)

    state = "running" if facts.get("how") == "running" else "failed" if facts else "finished"
    news = ", last news 1.00 s ago" if state == "running" else ""
    assert text == (f"{said}\n\nrun demo: {state}{news}\nattempt 0, 0 ranks on 1 host\n0 steps in 20.0 s, goodput -\n")


def test_restart_that_came_to_no_rank_is_said_before_the_rest() -> None:
    """The other nodes never came back: what the ranks say ends with the attempt before."""
    run = run_of(rank_of(0, [PLAIN_MS], ending=Ending("died", START_UNIX_NS + 4 * S, cause="SIGKILL")))
    lost: dict[str, Any] = {
        "operation": "rendezvous",
        "operation_ns": 42 * S,
        "outcome": "failed",
        "error": "TimeoutError",
    }
    run.add_launcher(launcher_of(attempt=1, **lost))

    _, _, said, *_ = text_of(run, width=120).splitlines()

    assert said == "attempt 1: no rank ever started on node-a: rendezvous failed after 42.0 s (TimeoutError)"


def test_launcher_whose_ranks_train_is_not_mentioned() -> None:
    """What went well needs no line."""
    run = run_of(rank_of(0, [PLAIN_MS]))
    run.add_launcher(launcher_of())

    text = text_of(run)

    assert text == text_of(run_of(rank_of(0, [PLAIN_MS])))


def test_thousand_launchers_without_a_rank_fit_a_screen() -> None:
    """One node of a thousand did not come, and all others tell the same."""
    run = run_of()
    for node in range(1000):
        lost: dict[str, Any] = {"operation": "rendezvous", "operation_ns": 42 * S, "outcome": "failed"}
        run.add_launcher(launcher_of(f"node-{node:03}", **lost))

    said = text_of(run).splitlines()

    assert said[0] == "no rank ever started on node-000: rendezvous failed after 42.0 s"
    assert said[8:10] == ["and 992 more launchers without a rank", ""]
    assert len(said) < 24


def test_report_of_a_hang_names_the_rank_that_the_others_wait_for() -> None:
    """While it hangs there is one question: who, and in which phase; the first to stand is the answer."""
    ranks = [
        rank_of(rank, [PLAIN_MS] * 3, world_size=4, ending=Ending("running", phase=phase, step=3, still_ns=still_ns))
        for rank, (phase, still_ns) in enumerate([("backward", 47 * S)] * 2 + [("data_wait", 48 * S), ("backward", S)])
    ]

    lines = text_of(run_of(*ranks), silent_s=1.0).splitlines()

    assert lines[:3] == [
        "rank 2 has given no sign for 48.0 s, in data_wait of step 3",
        "ranks 0-1 have given no sign for 47.0 s, in backward of step 3",
        "",
    ]
    column = lines.index("Ranks") + 2
    states = ["stands in backward of step 3"] * 2 + ["stands in data_wait of step 3", "running"]
    assert all(line.endswith(state) for line, state in zip(lines[column:], states, strict=False))


def test_rank_behind_the_others_comes_first_however_short_it_stands() -> None:
    """Who is a step behind has not yet come to where the others wait."""
    behind = rank_of(1, [PLAIN_MS], world_size=2, ending=Ending("running", phase="forward", step=1, still_ns=20 * S))
    ahead = rank_of(0, [PLAIN_MS], world_size=2, ending=Ending("running", phase="collective", step=2, still_ns=30 * S))

    standstills = build_report(run_of(behind, ahead), Path("/runs/demo"), 1.0).standstills

    assert [(one.step, one.ranks) for one in standstills] == [(1, (1,)), (2, (0,))]


def test_rank_that_has_come_least_far_in_the_step_comes_first_however_short_it_stands() -> None:
    """A slow rank that stops in its forward does so after the others have begun to wait for its gradients."""
    slow, waiting = (
        Ending("running", phase=phase, step=1, still_ns=still_ns, entered=entered)
        for phase, still_ns, entered in (("forward", 20 * S, 2), ("backward", 21 * S, 3))
    )
    ranks = [rank_of(0, [PLAIN_MS], world_size=2, ending=waiting), rank_of(1, [PLAIN_MS], world_size=2, ending=slow)]

    standstills = build_report(run_of(*ranks), Path("/runs/demo"), 1.0).standstills

    assert [(one.phase, one.ranks) for one in standstills] == [("forward", (1,)), ("backward", (0,))]


def test_long_step_is_no_standstill() -> None:
    """A rank whose steps take 4 s stands still after 40 s, not after ten."""
    long_ms = {Phase.FORWARD: 4000}
    ranks = [
        rank_of(rank, [long_ms], world_size=2, ending=Ending("running", phase="forward", step=1, still_ns=still_ns))
        for rank, still_ns in enumerate((39 * S, 41 * S))
    ]

    (standstill,) = build_report(run_of(*ranks), Path("/runs/demo"), 1.0).standstills

    assert standstill.ranks == (1,)


def test_report_of_a_thousand_ranks_fits_a_screen() -> None:
    """Nobody reads a thousand rows; the rank that stands out must be on the first screen."""
    text = text_of(many_ranks(1000))

    lines = text.splitlines()
    outliers = lines[lines.index("Ranks that stand out") + 2 :][:3]
    assert len(lines) < 60
    assert outliers == [
        "    41  node-005  forward   150 ms  100 ms   +50 %",
        "    41  node-005  backward  200 ms  250 ms   -20 %",
        "",
    ]


@pytest.mark.parametrize("ranks", [1, 2, 16, 17, 1000])
def test_report_never_exceeds_80_columns(ranks: int) -> None:
    """A wrapped table in a log file or a small terminal cannot be read."""
    text = text_of(many_ranks(ranks))

    widest = max(len(line) for line in text.splitlines())

    assert widest <= 80


def test_report_without_a_step_shows_where_the_time_went() -> None:
    """A run that never came to its first step is the one that most needs a report."""
    text = text_of(run_of(rank_of(0, [], ending=Ending("died", START_UNIX_NS + 4 * S, cause="SIGKILL"))))

    assert text.splitlines()[0] == "rank 0 ended before its first step (SIGKILL)"
    assert "Phases" not in text
    assert "  init        3.00 s  75.0 %" in text


@pytest.mark.parametrize(
    ("ending", "said"),
    [
        (Ending("exited", START_UNIX_NS, "other", 3, "exit code 3"), "ended in other of step 3 (exit code 3)"),
        (Ending("stopped", START_UNIX_NS, "backward", 3, "SIGTERM"), "stopped in backward of step 3 (SIGTERM)"),
    ],
    ids=["exited", "stopped"],
)
def test_words_for_an_end_that_only_the_launcher_knows(ending: Ending, said: str) -> None:
    """`finished` would be the opposite of what a user sees in the log of the job."""
    report = build_report(run_of(rank_of(0, [PLAIN_MS], ending=ending)), Path("run"), 0.0)

    assert how_it_ended(report.ranks[0]) == said


def test_dead_ranks_are_red_on_a_terminal() -> None:
    """The eye finds the dead rank before it reads."""
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, color_system="standard", width=80, highlight=False)

    console.print(render(build_report(two_ranks_one_killed(), Path("/runs/demo"), 1.0)))

    assert "\x1b[1;31mrank 1 ended in backward of step 20 (SIGKILL)\x1b[0m" in out.getvalue()


def test_report_in_a_file_has_no_color() -> None:
    """Escape sequences in a log file are noise."""
    text = text_of(two_ranks_one_killed())

    assert "\x1b" not in text


def test_control_characters_from_a_file_never_reach_the_terminal() -> None:
    """A summary may come from another machine; its strings must not steer the terminal."""
    rank = rank_of(0, [PLAIN_MS], ending=Ending("exception", START_UNIX_NS + 5 * S, "forward", 1, "\x1b[2JBoom"))

    text = text_of(run_of(rank))

    assert text.splitlines()[0] == "rank 0 ended in forward of step 1 (?[2JBoom)"


ENERGY = """\
run demo: finished
attempt 0, 2 ranks on 1 host
20 steps in 10.5 s, 3.07/s, goodput 61.0 %
7.80 kJ drawn by the GPUs while they trained, 424 J a step

Ranks
  rank  steps    rate     p50     p95     max   energy  a step
     0     20  3.07/s  326 ms  326 ms  326 ms  3.60 kJ   196 J  finished
     1     20  3.07/s  326 ms  326 ms  326 ms  4.20 kJ   228 J  finished
"""


def test_energy_is_shown_where_it_is_known() -> None:
    """A run's cost is asked for in energy too; without a GPU there is no column of dashes."""
    ranks = [rank_of(rank, [PLAIN_MS] * 20, world_size=2) for rank in (0, 1)]
    ranks[0].note_energy(3600, 6 * S)
    ranks[1].note_energy(4200, 6 * S)

    shown = text_of(run_of(*ranks))

    assert shown.startswith(ENERGY)


def test_energy_of_many_ranks_is_shown_as_a_spread() -> None:
    """A GPU that takes more for the same step is worth a look."""
    ranks = [rank_of(rank, [PLAIN_MS] * 20, world_size=20) for rank in range(20)]
    for number, rank in enumerate(ranks):
        rank.note_energy(3000 + 10 * number, 6 * S)

    shown = text_of(run_of(*ranks))

    assert "  energy a step    163 J   168 J   173 J\n" in shown
