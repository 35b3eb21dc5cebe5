"""What a rank tells beside its phases: its beginning, its compilations, its collectives, its validations."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.recordings import opened, record_into
from trainspan.names import Phase
from trainspan.recording.layout import ENTER, KIND_SHIFT, RESUME, SEQUENCE_SHIFT, SKIPPED, STEP
from trainspan.relay.facts_of_run import RankFacts
from trainspan.relay.follower import RankFollower
from trainspan.relay.goodput.facts import Activity
from trainspan.relay.live_history import LiveHistory
from trainspan.relay.signals.aggregates import ExplicitAggregate, StepAggregates
from trainspan.relay.signals.metrics import RankReading
from trainspan.relay.tail import Sighting
from trainspan.relay.timeline.rank_summary import Ending
from trainspan.relay.timeline.records import ProcessEnd, RankStep
from trainspan.relay.timeline.stalls import Standing
from trainspan.testing.builders import MarkTape

BEGIN_NS = 5_000_000_000
S = 1_000_000_000


@pytest.fixture
def aggregates() -> StepAggregates:
    """What the rank's steps are counted in."""
    return StepAggregates(ExplicitAggregate)


@pytest.fixture
def follower(tmp_path: Path, aggregates: StepAggregates) -> Iterator[RankFollower]:
    """A rank that is followed."""
    recording = record_into(tmp_path)
    reader = opened(recording.writer.path)
    yield RankFollower(reader, {}, aggregates, own=True)
    reader.close()
    recording.writer.close(1)


def look(follower: RankFollower, marks: list[int], *events: dict[str, Any]) -> list[RankStep]:
    """One look at its recording; the steps that were completed."""
    steps = follower.read(Sighting(follower.reader, marks, 0, list(events), None))
    follower.count(steps)
    return steps


def reading_of(follower: RankFollower) -> RankReading:
    """What its metrics are made of."""
    reading = follower.read_metrics(BEGIN_NS + 1000, LiveHistory(list))
    assert reading is not None
    return reading


def compilation(start_ns: int, end_ns: int) -> dict[str, Any]:
    """The event of one."""
    times = {"ts": end_ns, "start_ns": start_ns, "end_ns": end_ns}
    return {"event": "span", "name": "training.compile", "state": "compile", "ok": True, **times}


def plain(tape: MarkTape, number: int) -> None:
    """A step of 100 ns: 20 of waiting, 80 of work."""
    tape.spend(Phase.DATA_WAIT, 20)
    tape.spend(Phase.FORWARD, 70)
    tape.step(number, optimizer_ns=10)


def test_compilations_are_charged_as_such(follower: RankFollower) -> None:
    """They overlap, reach over a step's end, and are told before the steps are: no nanosecond counts twice."""
    tape = MarkTape(BEGIN_NS)
    plain(tape, 0)
    plain(tape, 1)
    at = BEGIN_NS + 20
    stretches = ((0, 30), (10, 40), (70, 105), (150, 160))
    told = [compilation(at + start_ns, at + end_ns) for start_ns, end_ns in stretches]

    look(follower, tape.words, *told)

    states = follower.account.states()
    assert states["compile"] == 40 + 10 + 25 + 10
    assert states["productive"] == 160 - 85
    assert states["data_wait"] == 40
    assert sum(states.values()) == follower.account.elapsed_ns


def test_compilation_beyond_the_work_of_a_step_is_no_work_taken_back(follower: RankFollower) -> None:
    """In a validation, or as a clock has it: a state only ever grows."""
    tape = MarkTape(BEGIN_NS)
    plain(tape, 0)

    look(follower, tape.words, compilation(BEGIN_NS, BEGIN_NS + 100))

    states = follower.account.states()
    assert (states["compile"], states["productive"], states["data_wait"]) == (80, 0, 20)


def test_ledger_is_told_of_compilations_in_steps(follower: RankFollower) -> None:
    """What is known is better than the excess over an ideal step."""
    facts = RankFacts(follower, 0)

    said = facts.seen([], [compilation(BEGIN_NS, BEGIN_NS + 100)], 1)

    unix_of = follower.source.unix_of
    assert said == [Activity(0, 0, "compile", unix_of(BEGIN_NS), unix_of(BEGIN_NS + 100))]


def test_validation_between_steps_is_one_span_with_its_iterations(follower: RankFollower) -> None:
    """A loop of a hundred batches is one validation."""
    tape = MarkTape(BEGIN_NS)
    plain(tape, 0)
    for _ in range(3):
        tape.spend(Phase.DATA_WAIT, 5)
        tape.spend(Phase.VALIDATION, 10)
        tape.spend(Phase.OTHER, 2)
    plain(tape, 1)
    look(follower, tape.words)

    [told] = [told for told in follower.told if told.name == "training.validation"]

    assert (told.start_ns - BEGIN_NS, told.end_ns - BEGIN_NS) == (100, 100 + 3 * 15 + 2 * 2)
    assert told.attributes == {"training.validation.iterations": 3}


def test_testing_after_the_last_step_is_told_at_the_end(follower: RankFollower) -> None:
    """No step ends after it."""
    tape = MarkTape(BEGIN_NS)
    plain(tape, 0)
    tape.spend(Phase.VALIDATION, 10)
    look(follower, tape.words)
    before = [told.name for told in follower.told]

    follower.finish(ProcessEnd(tape.now_ns + 50, "closed"))

    assert before == ["training.init.first_step"]
    assert [told.name for told in follower.told] == [*before, "training.validation"]
    assert follower.told[-1].end_ns == BEGIN_NS + 110


def test_first_step_is_told_once(follower: RankFollower) -> None:
    """It holds what is done only once: compilation, autotuning, lazy state."""
    tape = MarkTape(BEGIN_NS)
    plain(tape, 0)
    plain(tape, 1)

    look(follower, tape.words)

    [told] = follower.told
    assert (told.name, told.start_ns, told.end_ns) == ("training.init.first_step", BEGIN_NS, BEGIN_NS + 100)


def test_skipped_steps_are_counted_among_the_others(follower: RankFollower) -> None:
    """Each is a step the data went through, and nothing was learned in."""
    tape = MarkTape(BEGIN_NS)
    for number in range(3):
        tape.spend(Phase.FORWARD, 70)
        tape.mark(ENTER, Phase.AMP)
        tape.now_ns += 5
        tape.mark(STEP, Phase.OTHER, number | SKIPPED * (number == 1))

    steps = look(follower, tape.words)

    assert [(step.number, step.skipped) for step in steps] == [(0, False), (1, True), (2, False)]
    assert follower.timeline.invalid == 0
    assert reading_of(follower).skipped == 1


def test_collectives_are_counted_by_time_and_size(follower: RankFollower, aggregates: StepAggregates) -> None:
    """The time comes from the marks, the sizes from the counts: those inside forward have no mark."""
    tape = MarkTape(BEGIN_NS)
    tape.spend(Phase.FORWARD, 70)
    tape.mark(ENTER, Phase.COLLECTIVE, 4 << SEQUENCE_SHIFT | 1 << KIND_SHIFT)
    tape.now_ns += 30
    tape.mark(RESUME, Phase.OTHER)
    tape.step(0, optimizer_ns=10)
    group = {"ts": 1, "event": "collective_group", "group": "0", "label": "default_pg", "ranks": [0, 1]}
    kind = {"ts": 2, "event": "collective_kind", "kind": 1, "op": "all_reduce", "group": "0", "bytes": 64}
    counts = {"ts": 3, "event": "collectives", "counts": [[1, 9]]}

    [step] = look(follower, tape.words, group, kind, counts)

    [call] = follower.calls_of(step).values()
    [(key, aggregate)] = aggregates.collectives.items()
    point: Any = aggregate.point({}, 0, 1)
    assert (call.kind.op, call.sequence) == ("all_reduce", 4)
    assert (key, point.count, point.sum) == (("all_reduce", "default_pg"), 1, 30 / 1e9)
    assert aggregates.sizes == {("all_reduce", "default_pg"): {64: 9}}


def test_counters_and_facts_are_read_with_distrust(follower: RankFollower) -> None:
    """A log can hold anything."""
    compiled = {"ts": 1, "event": "compiled", "compilations": 3, "recompilations": -1, "graph_breaks": "many"}
    ddp = {"ts": 1, "event": "ddp", "backward_comm_ns": 5, "bucket_bytes": True, "iteration": 2}
    allocator = {"ts": 1, "event": "allocator", "reserved_bytes": 8, "retries": 1 << 64, "ooms": True, "more": 1}
    facts = {"ts": 7, "event": "facts", "attributes": {"training.model.class": "Net", "x": [1], "": 2}}

    look(follower, [], compiled, ddp, allocator, facts)

    reading = reading_of(follower)
    assert reading.compiled == {"compilations": 3}
    assert reading.reducer == {"backward_comm_ns": 5}
    assert reading.allocator == {"reserved_bytes": 8}
    assert (follower.facts, follower.started_ns) == ({"training.model.class": "Net"}, 7)


def test_stall_is_told_when_it_is_one_and_has_a_span_when_it_is_over(follower: RankFollower) -> None:
    """Nobody waits for the end of a hang to hear of it; afterwards the trace shows how long it was."""
    tape = MarkTape(BEGIN_NS)
    plain(tape, 0)
    look(follower, tape.words)
    stands_ns = tape.now_ns
    follower.note_alive(stands_ns + 59 * S)
    before = list(follower.stalled)

    follower.note_alive(stands_ns + 61 * S)
    follower.note_alive(stands_ns + 62 * S)
    follower.note_standing()
    tape = MarkTape(stands_ns + 70 * S)
    plain(tape, 1)
    look(follower, tape.words)

    assert before == []
    assert follower.stalled == [Standing(1, Phase.OTHER, stands_ns)]
    assert follower.summary.ending == Ending("running", phase="other", step=1, still_ns=62 * S, entered=0)
    [span] = [told for told in follower.told if told.name == "training.stall"]
    assert (span.start_ns, span.end_ns) == (stands_ns, stands_ns + 70 * S)
    assert span.attributes == {"training.phase": "other", "training.step": 1}


def test_stall_that_ends_the_process_reaches_to_its_end(follower: RankFollower) -> None:
    """A job that hung is killed: the hang must not go with it."""
    tape = MarkTape(BEGIN_NS)
    plain(tape, 0)
    look(follower, tape.words)
    follower.note_alive(tape.now_ns + 61 * S)
    reading = follower.read_metrics(tape.now_ns + 61 * S, LiveHistory(list))

    follower.finish(ProcessEnd(tape.now_ns + 90 * S, "died"))

    assert reading is not None
    assert reading.stalled_ns == {"other": 61 * S}
    [span] = [told for told in follower.told if told.name == "training.stall"]
    assert span.end_ns == tape.now_ns + 90 * S
    assert follower.summary.ending.still_ns is None


def test_where_a_rank_stood_before_marks_were_lost_is_not_where_it_stands(follower: RankFollower) -> None:
    """A report that names the wrong rank of a hang sends its reader to the wrong machine."""
    tape = MarkTape(BEGIN_NS)
    plain(tape, 0)
    look(follower, tape.words)
    follower.note_alive(tape.now_ns + 30 * S)
    follower.note_standing()

    follower.read(Sighting(follower.reader, [], 5, [], None))
    follower.note_standing()

    assert follower.summary.ending == Ending("running")
