"""Google's logs, answered by our engine: what its library gets right is reproduced, what it gets wrong is listed."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.goodput_facts import S, history_of
from trainspan.errors import TrainspanError
from trainspan.relay.goodput.ml_goodput import facts_of, in_their_words, parse, time_of
from trainspan.relay.goodput.queries import Window, account_ns, report

VECTORS = json.loads((Path(__file__).parents[1] / "data" / "goodput_peer.json").read_text(encoding="utf-8"))
SCENARIOS = {scenario["name"]: scenario for scenario in VECTORS["scenarios"]}
"""Measured from ml-goodput-measurement 0.2.3: events, questions, its answers."""

PHASES = {"init": "tpu_init", "prep": "training_prep", "data": "data_loading", "custom": "custom_badput_event"}


def entry_of(event: list[Any]) -> dict[str, Any]:
    """The log entry that the library writes for an event of the vectors."""
    time, kind, *rest = event
    entry: dict[str, Any] = {"job_name": "job"}
    if kind in ("job_start", "job_end"):
        return entry | {f"{kind}_time": time}
    if kind == "step":
        return entry | {"step_count": rest[0], "step_start_time": time}
    if kind.startswith("ckpt"):
        operation = kind.removeprefix("ckpt_")
        section = "checkpoint_manager_blocking" if operation == "save" else "checkpoint_manager"
        times = {f"{section}_start_time": time, f"{section}_duration_secs": rest[1]}
        return entry | {"event_type": operation, "step": rest[0], "directory": rest[2]} | times
    phase, edge = kind.rsplit("_", 1)
    named = {"custom_badput_event_type": rest[0]} if rest else {}
    return entry | {f"{PHASES[phase]}_{edge}_time": time} | named


def entries_of(scenario: dict[str, Any], query: dict[str, Any]) -> list[dict[str, Any]]:
    """The entries that had arrived when the question was asked, through JSON and back."""
    lines = [json.dumps(entry_of(event)) for event in scenario["events"][: query.get("after_events")]]
    entries, skipped = parse(lines)
    assert skipped == 0
    return entries


def ns(seconds: float) -> int:
    """Seconds as whole ns."""
    return round(seconds * S)


def asked(query: dict[str, Any]) -> Window:
    """The window of a question, as it was meant."""
    exclude = tuple((ns(start), ns(end)) for start, end in query.get("exclude", ()))
    since, until = (ns(query[edge]) if edge in query else None for edge in ("start", "end"))
    return Window(since, until, exclude, ns(query["at"]))


def as_the_library_reads(query: dict[str, Any], entries: list[dict[str, Any]]) -> tuple[Window, list[dict[str, Any]]]:
    """For an interval, the library knows only the entries in it, and its window ends with the last of them."""
    if query["kind"] != "interval":
        return asked(query), entries
    times = [(time_of(entry) or 0, entry) for entry in entries]
    inside = [(time, entry) for time, entry in times if ns(query["start"]) < time <= ns(query["end"])]
    last = max(time for time, _ in inside)
    return Window(min(time for time, _ in inside), last, (), last), [entry for _, entry in inside]


def approximately(value: Any) -> Any:
    """`value` with every number in it approximate: the vectors are rounded to 1e-6."""
    if isinstance(value, dict):
        return {key: approximately(inner) for key, inner in value.items()}
    return pytest.approx(value, abs=1e-5)


AGREED = [
    (name, number)
    for name, scenario in SCENARIOS.items()
    if not scenario.get("quirk")
    for number in range(len(scenario["queries"]))
]


@pytest.mark.parametrize(("name", "number"), AGREED)
def test_what_the_library_gets_right_is_reproduced(name: str, number: int) -> None:
    """In its own words and to the microsecond, so that a team can compare before it moves."""
    scenario = SCENARIOS[name]
    query, expected = scenario["queries"][number], dict(scenario["expected"][number])
    window, entries = as_the_library_reads(query, entries_of(scenario, query))
    log = facts_of(entries)

    answer = in_their_words(history_of(log.facts), log, window)

    for derived in ("goodput_pct", "last_step"):
        expected.pop(derived, None)
    expected.setdefault("excluded_s", 0)
    assert answer == approximately(expected)


class Ours(NamedTuple):
    """What we answer where the library is wrong or debatable, in seconds by state, and why."""

    why: str
    states: dict[str, float]
    disruptions: int = 0
    last_step: int | None = None


QUIRKS: dict[str, list[Ours]] = {
    "disruption_restart_from_step0": [
        Ours(
            "All four finished steps were done again: that is lost work. Recovery lasts until the new first step.",
            {"unaccounted": 7, "lost_work": 12, "restart": 13, "productive": 6},
            disruptions=1,
            last_step=1,
        )
    ],
    "pathways_two_anomalous_steps": [
        Ours(
            "30 s beyond the reference in one of the first five steps is warm-up. The other slow step, below a minute, "
            "is no hang: it is slow work, and the deviation shows it.",
            {"unaccounted": 5, "compile": 30, "productive": 60},
            last_step=9,
        )
    ],
    "disruption_startup_wasted_infra": [
        Ours(
            "Nothing was loaded after the restart, so the 2 s before it are not charged again. From the last sign of "
            "life to the new first step is recovery, not partly OTHER.",
            {
                "init": 1,
                "model_init": 2,
                "data_wait": 2,
                "compile": 10,
                "lost_work": 6,
                "restart": 13,
                "productive": 15,
            },
            disruptions=1,
            last_step=4,
        )
    ],
    "exclusion_masks_custom": [
        Ours(
            "What is excluded is gone, from the total and from the state it was in, and from nothing else. "
            "The first load after the step began is overlapped here as it is without an exclusion.",
            {"init": 1, "model_init": 2, "data_wait": 2, "custom.test_sync": 10, "unaccounted": 4, "productive": 25},
            last_step=4,
        )
    ],
    "exclusion_partly_uncovered": [
        Ours(
            "Excluded is excluded, also where nothing is known: 15 s remain of 25.",
            {"model_init": 5, "unaccounted": 5, "productive": 5},
            last_step=0,
        )
    ],
    "clean_resume_next_step": [
        Ours(
            "A new attempt is a disruption whatever step it resumes at. The outage is recovery, none of it productive.",
            {"unaccounted": 5, "init": 10, "restart": 113, "productive": 27},
            disruptions=1,
            last_step=9,
        )
    ],
    "rollback_behind_segment_start": [
        Ours(
            "The roll-back to step 3 takes back steps 3 to 7 of the first attempt and all of the second.",
            {"lost_work": 110, "restart": 40, "productive": 140},
            disruptions=2,
            last_step=13,
        )
    ],
    "restart_without_job_start": [
        Ours(
            "A step number that falls back is a restart without being told so; the gap is recovery.",
            {"unaccounted": 5, "lost_work": 6, "restart": 43, "productive": 15},
            disruptions=1,
            last_step=4,
        )
    ],
    "finished_then_rerun_same_name": [
        Ours(
            "Closed in good order and started again: no failure, but 80 s of a stopped job. The run goes on until now, "
            "and its newest steps count.",
            {"unaccounted": 18, "restart": 85, "productive": 27},
            last_step=8,
        )
    ],
    "blocking_input_every_step": [
        Ours(
            "A step that begins as its load ends waited for it, on every step.",
            {"data_wait": 48, "productive": 12},
            last_step=5,
        )
    ],
    "custom_straddles_step_exclusion_path": [
        Ours(
            "One engine, one answer: 6 s of the event, cut at no step. Shortening one of the neighbours by it does not "
            "make the first step a start-up.",
            {"custom.eval": 6, "productive": 34},
            last_step=3,
        )
    ],
    "custom_in_wasted_region": [
        Ours(
            "As the library has it: everything in a step done again is lost. Recovery lasts to the first step.",
            {"lost_work": 30, "restart": 30, "productive": 70},
            disruptions=1,
            last_step=6,
        )
    ],
    "checkpoint_in_wasted_region": [
        Ours(
            "The save is charged where it was, among the lost steps, and taken from no productive one.",
            {"checkpoint_save": 5, "lost_work": 25, "restart": 30, "productive": 70},
            disruptions=1,
            last_step=6,
        )
    ],
    "checkpoint_redone_after_restart": [
        Ours(
            "Two saves took 4 s and 8 s. That is 12 s, not their mean.",
            {"checkpoint_save": 12, "lost_work": 16, "restart": 30, "productive": 72},
            disruptions=1,
            last_step=7,
        )
    ],
    "restore_inside_prep": [
        Ours(
            "The restore is the narrower cause; what is left of the preparation is 4 s, and nothing is counted twice.",
            {"model_init": 4, "checkpoint_load": 6, "productive": 40},
            last_step=3,
        )
    ],
    "steps_logged_every_10": [
        Ours("Ten steps between two records are ten steps.", {"productive": 60}, last_step=50),
    ],
    "one_lost_step_record": [
        Ours(
            "The step whose record was lost was made all the same: the next one says so.",
            {"productive": 80},
            last_step=7,
        ),
    ],
    "two_writers_duplicate_steps": [
        Ours(
            "The same record within a second is a second writer's copy, not a restart.",
            {"unaccounted": 1, "productive": 60},
            last_step=5,
        )
    ],
    "init_unfinished": [
        Ours(
            "A phase that was not ended lasted until something else was recorded.",
            {"init": 5, "model_init": 3, "unaccounted": 2, "productive": 40},
            last_step=3,
        )
    ],
    "interval_hang": [
        Ours(
            "The window is the window asked for, silence included. One reference step of it could have been a step, "
            "the rest is a hang.",
            {"productive": 50, "unaccounted": 10, "hang": 890},
            last_step=9,
        )
    ],
    "interval_empty": [
        Ours("A window without records holds time: here a hang.", {"hang": 500}, last_step=9),
        Ours("A window without records holds time: here a hang.", {"hang": 500}, last_step=9),
    ],
    "interval_one_entry": [
        Ours("Half a step, and the hang.", {"productive": 5, "unaccounted": 10, "hang": 890}, last_step=9),
    ],
    "restart_to_step0_complete": [
        Ours(
            "50 s of finished steps were done again.",
            {"lost_work": 50, "restart": 30, "productive": 40},
            disruptions=1,
            last_step=3,
        )
    ],
    "exclusion_of_idle_gap": [
        Ours("40 s were excluded, known or not.", {"unaccounted": 10, "productive": 30}, last_step=2),
    ],
}


def test_every_quirk_has_its_entry() -> None:
    """Where we differ, somebody will ask."""
    assert sorted(QUIRKS) == sorted(name for name, scenario in SCENARIOS.items() if scenario.get("quirk"))


@pytest.mark.parametrize("name", sorted(QUIRKS))
def test_where_the_library_is_wrong_we_answer_by_definition(name: str) -> None:
    """The entries above say what and why."""
    scenario = SCENARIOS[name]
    for query, ours in zip(scenario["queries"], QUIRKS[name], strict=True):
        history = history_of(facts_of(entries_of(scenario, query)).facts)
        window = asked(query)

        states = {state: length_ns / S for state, length_ns in account_ns(history, window).items()}
        answer = report(history, window)

        assert states == approximately(ours.states), ours.why
        assert (answer.disruptions, answer.last_step) == (ours.disruptions, ours.last_step)


def test_order_of_lines_changes_no_answer() -> None:
    """The library goes by arrival: two step records that swap make a disruption."""
    entries = [entry_of(event) for event in SCENARIOS["crash_loop_same_step"]["events"]]

    found = facts_of(entries[::-1]).facts

    assert report(history_of(found)) == report(history_of(facts_of(entries).facts))


def test_nested_customs_count_once_and_the_inner_one_wins() -> None:
    """The library subtracts a nested event twice."""
    events = [[0, "job_start"], [0, "step", 0], [2, "custom_start", "outer"], [3, "custom_start", "inner"]]
    events += [[5, "custom_end", "inner"], [8, "custom_end", "outer"], [10, "step", 1], [20, "job_end"]]

    history = history_of(facts_of([entry_of(event) for event in events]).facts)

    assert account_ns(history) == {"custom.outer": 4 * S, "custom.inner": 2 * S, "productive": 14 * S}


def test_elastic_records_are_recovery() -> None:
    """Waiting for slices is waiting for infrastructure; the new mesh is initialised."""
    entries = [
        {"job_name": "job", "job_start_time": 0},
        {"job_name": "job", "elastic_wait_event_type": "slice_down", "elastic_wait_start_time": 10},
        {"job_name": "job", "elastic_wait_event_type": "slice_down", "elastic_wait_end_time": 20},
        {"job_name": "job", "elastic_reinit_start_time": 20},
        {"job_name": "job", "elastic_reinit_end_time": 25.5},
        {"job_name": "job", "active_slices": 1, "total_slices": 2, "elastic_slice_counts_timestamp": 25.5},
    ]

    log = facts_of(entries)

    assert account_ns(history_of(log.facts)) == {"unaccounted": 10 * S, "restart": 10 * S, "init": 5 * S + S // 2}
    assert log.skipped == 0  # how many slices there are is the library's own entry too


def test_export_of_cloud_logging_is_read() -> None:
    """It wraps each entry."""
    line = json.dumps(
        {"jsonPayload": entry_of([5, "step", 0]), "severity": "INFO", "timestamp": "2026-01-01T00:00:00Z"}
    )

    entries, skipped = parse([line, "", "not JSON", "[]", '{"jsonPayload": 3}'])

    assert (entries, skipped) == ([entry_of([5, "step", 0])], 3)


def as_cloud_logging_returns(entry: dict[str, Any]) -> dict[str, Any]:
    """The entry after a round trip: a protobuf Struct knows no whole numbers."""
    return {key: float(value) if isinstance(value, int) else value for key, value in entry.items()}


@pytest.mark.parametrize(
    "name", ["checkpoint_save_4_persistent", "checkpoint_in_wasted_region", "crash_loop_same_step"]
)
def test_numbers_that_have_become_floats_say_the_same(name: str) -> None:
    """What Cloud Logging gives back, and the library's own cache file on disk, hold step 5 as 5.0."""
    entries = [entry_of(event) for event in SCENARIOS[name]["events"]]

    log = facts_of([as_cloud_logging_returns(entry) for entry in entries])

    assert log.skipped == 0
    assert log.facts == facts_of(entries).facts


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("before", ["", "\n  \n"])
def test_export_as_one_array_is_read(indent: int | None, before: str) -> None:
    """`gcloud logging read --format=json` writes no lines but one list, newest first."""
    events = [[0, "job_start"], [0, "step", 0], [10, "step", 1], [20, "job_end"]]
    exported = [{"insertId": "a", "jsonPayload": entry_of(event)} for event in reversed(events)]

    entries, skipped = parse((before + json.dumps([*exported, 3], indent=indent)).splitlines(keepends=True))

    assert skipped == 1
    assert account_ns(history_of(facts_of(entries).facts)) == {"productive": 20 * S}


def test_torn_array_costs_its_lines_and_no_more() -> None:
    """An export that broke off holds no list; nothing may be taken from it that was not said."""
    lines = ["[\n", '{"job_name": "job", "job_start_time": 1},\n', '{"job_name": "job", "job_end_ti']

    assert parse(lines) == ([], 3)


def test_lines_of_other_programs_are_no_jobs() -> None:
    """A log of a whole pod holds JSON of others too: counted, and no second job."""
    lines = [json.dumps(entry_of([0, "job_start"])), '{"level": "info", "job_name": "web"}', '{"message": "hello"}']

    entries, skipped = parse(lines)

    log = facts_of(entries)
    assert (skipped, log.skipped) == (0, 2)
    assert len(log.facts) == 1


def test_log_of_several_jobs_asks_which() -> None:
    """Two jobs in one account would be neither's."""
    lines = [json.dumps({"job_name": name, "job_start_time": 1}) for name in ("a", "b")]

    chosen, _ = parse(lines, "b")

    assert chosen == [{"job_name": "b", "job_start_time": 1}]
    with pytest.raises(TrainspanError, match=r"2 jobs \(a, b\)"):
        parse(lines)
    with pytest.raises(TrainspanError, match="no job 'c', but a, b"):
        parse(lines, "c")


@pytest.mark.parametrize(
    "entry",
    [
        {},
        {"job_start_time": None},
        {"job_start_time": "12"},
        {"job_start_time": float("nan")},
        {"job_start_time": -1},
        {"job_start_time": True},
        {"step_start_time": 5},
        {"step_start_time": 5, "step_count": 1.5},
        {"event_type": "save", "checkpoint_manager_blocking_start_time": None},
        {"event_type": ["save"]},
    ],
)
def test_entry_that_says_nothing_is_counted(entry: dict[str, Any]) -> None:
    """The library raises on a checkpoint record without a time, for every question."""
    log = facts_of([entry, entry_of([0, "job_start"]), entry_of([5, "job_end"])])

    assert log.skipped == 1
    assert account_ns(history_of(log.facts)) == {"unaccounted": 5 * S}


KINDS = ["job_start", "job_end", "init_start", "init_end", "prep_start", "prep_end", "data_start", "data_end"]
EVENT = st.one_of(
    st.tuples(st.integers(0, 300), st.sampled_from(KINDS)),
    st.tuples(st.integers(0, 300), st.just("step"), st.integers(0, 12)),
    st.tuples(st.integers(0, 300), st.sampled_from(["custom_start", "custom_end"]), st.sampled_from(["a", "b"])),
    st.tuples(st.integers(0, 300), st.just("ckpt_save"), st.integers(0, 12), st.floats(0, 50), st.just("gs://b")),
)


@given(events=st.lists(EVENT, max_size=40), now=st.integers(0, 600))
def test_any_log_adds_up(events: list[tuple[Any, ...]], now: int) -> None:
    """The library raises for one log in five that is in no good order."""
    log = facts_of([entry_of(list(event)) for event in events])
    history = history_of(log.facts)

    answer = in_their_words(history, log, Window(now_ns=now * S))

    informational = answer["badput_s"].pop("DATA_LOADING_ASYNC", 0)
    custom = sum(answer["badput_s"].pop("CUSTOM_BADPUT_EVENTS", {}).values())
    parts = answer["productive_s"] + custom + sum(answer["badput_s"].values())
    assert parts == pytest.approx(answer["total_s"])
    assert informational >= 0
    assert min(answer["badput_s"].values(), default=0) >= 0
