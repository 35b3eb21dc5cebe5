"""What the report reads: accumulated per process, merged over nodes and attempts, refused when it is not ours."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainspan.clock import Anchor
from trainspan.errors import RecordingError
from trainspan.identity import trace_id_of
from trainspan.names import Phase
from trainspan.relay.summary_file import summary_interval_ns
from trainspan.relay.timeline.launcher_summary import LauncherSummary
from trainspan.relay.timeline.rank_summary import SLOWEST, Ending, RankSummary, TellingOfMetrics
from trainspan.relay.timeline.records import ProcessEnd, phase_times_of
from trainspan.relay.timeline.summary import Summary
from trainspan.relay.timeline.throughput import Work
from trainspan.report.render import SILENT_S
from trainspan.testing.builders import identity_of, rank_step

MS = 1_000_000
ANCHOR = Anchor(0, 1_700_000_000_000_000_000)


def rank_of(rank: int = 0, durations_ms: tuple[int, ...] = (30, 40), attempt: int = 0) -> RankSummary:
    """A process whose steps are half forward, half backward."""
    recording = f"r{rank:05d}-a{attempt}-p1-aaaaaaaa"
    summary = RankSummary(recording, identity_of(rank, attempt=attempt), ANCHOR.unix_ns)
    start_ns = 1000
    for number, duration_ms in enumerate(durations_ms):
        half_ns = duration_ms * MS // 2
        step = rank_step(number, [(Phase.FORWARD, half_ns), (Phase.BACKWARD, half_ns)], start_ns=start_ns)
        summary.add(step, phase_times_of(step), ANCHOR, "first" if number < 1 else None)
        start_ns = step.end_ns
    summary.states_ns = {"init": 1000, "productive": start_ns - 1000}
    summary.work = Work(samples=96, flops=1.5e9)
    return summary


def run_of(*ranks: RankSummary) -> Summary:
    """The run of these processes."""
    summary = Summary("run-1")
    for rank in ranks:
        summary.add(rank)
    return summary


def test_a_summary_as_it_is_written() -> None:
    """The file outlives the program that wrote it: its form, once, whole."""
    rank = rank_of(durations_ms=(30, 40))
    rank.told = TellingOfMetrics(1_700_000_000_000_001_000, 3)
    rank.ending = Ending("closed", 1_700_000_000_100_000_000)

    written = run_of(rank).to_json()

    sketch = {"scale": 6, "count": 2, "zeros": 0}
    assert written == {
        "schema": "trainspan.summary",
        "version": 1,
        "run": "run-1",
        "launchers": [],
        "ranks": [
            {
                "recording": "r00000-a0-p1-aaaaaaaa",
                "identity": {
                    "role": "rank",
                    "run": "run-1",
                    "attempt": 0,
                    "rank": 0,
                    "local_rank": 0,
                    "node_rank": 0,
                    "world_size": 2,
                    "local_world_size": 2,
                    "host": "node0",
                    "pid": 1000,
                    "launcher": "torchrun",
                },
                "process_start_unix_ns": 1_700_000_000_000_000_000,
                "steps": 2,
                "microbatches": 2,
                "marks_lost": 0,
                "last_step": 1,
                "first_start_unix_ns": 1_700_000_000_000_001_000,
                "last_end_unix_ns": 1_700_000_000_070_001_000,
                "step_s": {
                    **sketch,
                    "sum": pytest.approx(0.07),
                    "min": pytest.approx(0.03),
                    "max": pytest.approx(0.04),
                    "buckets": [[-324, 1], [-298, 1]],
                },
                "phase_s": {
                    phase: {
                        **sketch,
                        "sum": pytest.approx(0.035),
                        "min": pytest.approx(0.015),
                        "max": pytest.approx(0.02),
                        "buckets": [[-388, 1], [-362, 1]],
                    }
                    for phase in ("forward", "backward")
                },
                "states_ns": {"init": 1000, "productive": 70_000_000},
                "work": {"samples": 96, "tokens": None, "flops": 1.5e9, "mfu": None},
                "marks_read": 0,
                "told": {"until_unix_ns": 1_700_000_000_000_001_000, "events": 3},
                "slowest": [
                    {
                        "duration_ns": duration_ms * MS,
                        "number": number,
                        "start_unix_ns": start_unix_ns,
                        "phase_times_ns": {"forward": duration_ms * MS // 2, "backward": duration_ms * MS // 2},
                        "sampled": sampled,
                        "trace_id": f"{trace_id_of('run-1', 0, 'step', number):032x}",
                    }
                    for number, duration_ms, start_unix_ns, sampled in (
                        (1, 40, 1_700_000_000_030_001_000, None),
                        (0, 30, 1_700_000_000_000_001_000, "first"),
                    )
                ],
                "energy_j": None,
                "energy_s": None,
                "ending": {
                    "how": "closed",
                    "at_unix_ns": 1_700_000_000_100_000_000,
                    "phase": None,
                    "step": None,
                    "cause": None,
                    "still_ns": None,
                    "entered": None,
                    "alive_unix_ns": None,
                },
            }
        ],
    }


@given(st.lists(st.integers(1, 10_000), max_size=3 * SLOWEST))
def test_the_slowest_steps_are_kept_and_no_more(durations_ms: list[int]) -> None:
    """A run has a million steps; the report names the few that hurt."""
    rank = rank_of(durations_ms=tuple(durations_ms))

    slowest = rank.slowest

    longest = sorted(durations_ms, reverse=True)[:SLOWEST]
    assert [step.duration_ns for step in slowest] == [ms * MS // 2 * 2 for ms in longest]


def test_it_comes_back_from_json_as_it_was() -> None:
    """A relay that is started again goes on from the file of the one before it."""
    dead = rank_of(1, durations_ms=tuple(range(1, 40)))
    step = rank_step(39, [(Phase.FORWARD, 1), (Phase.BACKWARD, 2)], complete=False)
    dead.note_end(ProcessEnd(99, "died", "SIGKILL"), step, ANCHOR)
    dead.marks_lost = 4
    dead.note_marks(50, 0)
    dead.told = TellingOfMetrics(1_700_000_000_000_000_007, 5)
    summary = run_of(rank_of(0, durations_ms=()), dead)

    read = Summary.from_json(json.loads(json.dumps(summary.to_json())))

    assert read.to_json() == summary.to_json()
    assert read.ranks[dead.recording].ending == Ending("died", ANCHOR.unix_of(99), "backward", 39, "SIGKILL")


def test_of_too_many_written_steps_the_slowest_are_read() -> None:
    """The bound holds for what comes from a file, too."""
    written = rank_of(durations_ms=tuple(range(10, 10 + SLOWEST))).to_json()
    written["slowest"] += [{**written["slowest"][0], "duration_ns": ns} for ns in (1, 999 * MS)]

    read = RankSummary.from_json(written)

    assert len(read.slowest) == SLOWEST
    assert (read.slowest[0].duration_ns, read.slowest[-1].duration_ns) == (999 * MS, 11 * MS)


def test_an_orderly_end_names_no_phase() -> None:
    """What a rank did when it closed is not where it died."""
    rank = rank_of()

    rank.note_end(ProcessEnd(99, "closed"), rank_step(2, [(Phase.OTHER, 5)], complete=False), ANCHOR)

    assert rank.ending == Ending("closed", ANCHOR.unix_of(99))


def test_nodes_and_attempts_are_merged_in_order() -> None:
    """Each node writes its own file, each attempt its own processes; the report wants the run."""
    first_node, second_node = run_of(rank_of(0, attempt=1), rank_of(0)), run_of(rank_of(1), rank_of(1, attempt=1))

    first_node.merge(second_node)

    who = [(rank.identity.attempt, rank.identity.rank) for rank in first_node.in_order()]
    assert who == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_of_the_same_process_twice_the_later_summary_stays() -> None:
    """Reading a recording again must not double a run, whichever file comes first."""
    early, late = rank_of(durations_ms=(30,)), rank_of(durations_ms=(30, 40))

    one_way, other_way = run_of(early), run_of(late)
    one_way.merge(run_of(late))
    other_way.merge(run_of(early))

    assert one_way.ranks == other_way.ranks == {late.recording: late}


def test_steps_that_are_read_again_count_once() -> None:
    """Another relay takes over and reads what the ring still holds; its numbers may be the user's, and begin anew."""
    rank = RankSummary.from_json(rank_of(durations_ms=(30, 40)).to_json())
    rank.ending = Ending("running", phase="forward", step=2, still_ns=5)

    rank.resume(ANCHOR)
    for number, at_ms in ((1, 30), (0, 70)):
        step = rank_step(number, [(Phase.FORWARD, 10 * MS)], start_ns=1000 + at_ms * MS)
        rank.add(step, phase_times_of(step), ANCHOR)

    assert (rank.steps, rank.last_step, rank.step_s.count) == (3, 0, 3)
    assert rank.ending == Ending("running")


@pytest.mark.parametrize(
    ("looks", "lost"),
    [
        ([(100, 0)], 0),
        ([(30, 70), (50, 0)], 0),
        ([(30, 90)], 20),
        ([(10, 40), (30, 60)], 40),
        ([(10, 40), (5, 0), (30, 60)], 45),
        ([(200, 0), (10, 7)], 7),
    ],
)
def test_marks_are_lost_that_no_reader_has_read(looks: list[tuple[int, int]], lost: int) -> None:
    """Of 70 marks that the first reader had, the second finds some overwritten; that is no loss."""
    rank = rank_of()
    rank.note_marks(60, 10)
    rank.resume(ANCHOR)

    for read, overwritten in looks:
        rank.note_marks(read, overwritten)

    assert rank.marks_lost == 10 + lost


@pytest.mark.parametrize(
    ("ending", "end"),
    [
        (Ending("running", phase="forward", step=2, still_ns=5), None),
        (Ending("died", ANCHOR.unix_of(99), "forward", 2, "SIGKILL"), ProcessEnd(99, "died", "SIGKILL")),
        (Ending("exited", ANCHOR.unix_of(99), alive_unix_ns=ANCHOR.unix_of(90)), ProcessEnd(99, "exited", None, 90)),
    ],
)
def test_end_that_was_found_out_is_known_to_the_next_relay(ending: Ending, end: ProcessEnd | None) -> None:
    """Who looks an hour later would take the process for dead since then, and not know by what."""
    rank = rank_of()
    rank.ending = ending

    found = rank.resume(Anchor(7, ANCHOR.unix_of(7)))

    assert found == end
    assert rank.ending.how == "running"


LAUNCHER = LauncherSummary("a00000", "node0", 7, 1, 1000, 2000, "running", "rendezvous", 500, "open")


def test_launcher_survives_the_file_and_is_kept_as_it_was_seen_last() -> None:
    """The relay writes how it stands every few seconds, and two nodes may share a folder."""
    early, late = run_of(), run_of()
    early.add_launcher(LAUNCHER)
    late.add_launcher(LAUNCHER._replace(seen_unix_ns=3000, how="died"))

    late.merge(Summary.from_json(json.loads(json.dumps(early.to_json()))))
    early.merge(late)

    assert early.launchers == late.launchers == {"a00000": LAUNCHER._replace(seen_unix_ns=3000, how="died")}


def test_summary_of_an_earlier_version_has_no_launchers() -> None:
    """A run goes on after an upgrade."""
    written = run_of(rank_of()).to_json()
    del written["launchers"]

    assert Summary.from_json(written).launchers == {}


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("pid", "7", r"launchers\[0\]: pid is '7'"),
        ("how", "gone", "how and outcome are 'gone' and 'open'"),
        ("outcome", "well", "how and outcome are 'running' and 'well'"),
        ("operation", 5, "operation is '5'"),
    ],
)
def test_launcher_that_makes_no_sense_is_refused(name: str, value: Any, says: str) -> None:
    """As everything else that comes from a file."""
    written = {**run_of().to_json(), "launchers": [{**LAUNCHER.to_json(), name: value}]}

    with pytest.raises(RecordingError, match=says):
        Summary.from_json(written)


def test_another_runs_summary_is_not_merged() -> None:
    """Two jobs that share a folder by mistake must not become one."""
    with pytest.raises(RecordingError, match="other"):
        run_of(rank_of()).merge(Summary("other"))


def put(written: Any, path: str, value: Any) -> Any:
    """`written` with `value` at the dotted `path`; DROP removes what is there."""
    *way, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    place = written
    for part in way:
        place = place[part]
    if value is DROP:
        del place[last]
    else:
        place[last] = value
    return written


DROP = object()


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        ("schema", "other", "no summary"),
        ("version", 2, "version 2"),
        ("version", DROP, "version None"),
        ("run", 5, "run is '5'"),
        ("ranks", {}, "ranks is"),
        ("ranks.0", [], r"ranks\[0\]: list where"),
        ("ranks.0.steps", DROP, "steps is missing"),
        ("ranks.0.steps", "9", "steps is '9'"),
        ("ranks.0.steps", True, "steps is 'True'"),
        ("ranks.0.identity.rank", None, r"ranks\[0\]: identity: rank is 'None'"),
        ("ranks.0.step_s.count", 7, "step_s: a sketch"),
        ("ranks.0.phase_s.sleep", {}, "no such phase: sleep"),
        ("ranks.0.states_ns.init", 1.5, "init is '1.5'"),
        ("ranks.0.work.samples", "many", "work: samples is 'many'"),
        ("ranks.0.marks_read", "all", "marks_read is 'all'"),
        ("ranks.0.told", {"until_unix_ns": 1, "events": None}, "told: events is 'None'"),
        ("ranks.0.told", 7, "told: int where an object"),
        ("ranks.0.slowest.0.duration_ns", None, r"slowest\[0\]: duration_ns is 'None'"),
        ("ranks.0.ending.how", "exploded", "how is 'exploded'"),
        ("ranks.0.ending.step", "9", "step is '9'"),
        ("ranks.0.ending.step", 1 << 63, "step is '9223372036854775808'"),
    ],
)
def test_foreign_and_torn_content_is_refused_with_its_place(path: str, value: Any, says: str) -> None:
    """Somebody has to find out which byte of which file is wrong."""
    written = put(run_of(rank_of()).to_json(), path, value)

    with pytest.raises(RecordingError, match=says):
        Summary.from_json(written)


@given(
    st.recursive(
        st.none() | st.integers() | st.text(),
        lambda inner: (
            st.lists(inner) | st.dictionaries(st.sampled_from(["ranks", "run", "schema", "version"]) | st.text(), inner)
        ),
    )
)
def test_any_json_is_a_summary_or_a_recording_error(written: Any) -> None:
    """The report must answer with one sentence, never with a stack trace."""
    if isinstance(written, dict):
        written |= {"schema": "trainspan.summary", "version": 1}

    try:
        Summary.from_json(written)
    except RecordingError as error:
        message = str(error)
    else:
        message = "a summary"

    assert message


@pytest.mark.parametrize(("size_bytes", "interval_s"), [(0, 5), (60_000, 5), (3_000_000, 30), (20_000_000, 45)])
def test_summary_of_many_restarts_is_written_less_often(size_bytes: int, interval_s: int) -> None:
    """After 400 restarts of eight ranks it has 20 MB: each node would write 4 MB a second to a volume they share.

    But more often than the report takes a run for silent.
    """
    assert summary_interval_ns(size_bytes) == interval_s * 1_000_000_000
    assert interval_s < SILENT_S
