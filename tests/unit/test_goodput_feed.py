"""What the relay sees of ranks becomes facts: of steps, checkpoints, silence and ends; in a ledger that survives it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.goodput_facts import S, history_of, seconds
from tests.unit.recordings import PROCESS_START_NS, opened, record_into
from trainspan.names import Phase
from trainspan.recording.layout import ENTER, RESUME
from trainspan.recording.reader import RecordingReader
from trainspan.relay.facts_of_run import SILENCE_NS, RunLedger
from trainspan.relay.follower import RankFollower
from trainspan.relay.goodput.account import MOST_HELD, Account
from trainspan.relay.goodput.facts import Activity, Alive, Begun, Ended, Fact, Loaded, Saved, Step, StepRun
from trainspan.relay.goodput.ledger import Reading, read
from trainspan.relay.goodput.queries import Scope, Window, report
from trainspan.relay.signals.aggregates import ExplicitAggregate, StepAggregates
from trainspan.relay.tail import Sighting
from trainspan.relay.timeline.collectives import Group, Kind
from trainspan.relay.timeline.records import ProcessEnd, phase_times_of
from trainspan.relay.timeline.steps import RankTimeline
from trainspan.relay.timeline.waits import Wait
from trainspan.testing.builders import MarkTape, marks_of, rank_step

STEP_NS = 70_000_000
BEGIN_NS = 5 * S


class Rank:
    """One recorded process, as a relay follows it; `now_ns` is the relay's clock."""

    def __init__(self, reader: RecordingReader, ledger: RunLedger):
        self.follower = RankFollower(reader, {}, StepAggregates(ExplicitAggregate), own=True)
        self.ledger = ledger

    def look(self, marks: list[int], *events: dict[str, Any], now_ns: int, ended: str | None = None) -> None:
        """One look at its recording."""
        sighting = Sighting(self.follower.reader, marks, 0, list(events), ended)
        steps = self.follower.read(sighting)
        self.ledger.take(self.follower, steps, sighting.events, now_ns)
        self.follower.resume(self.ledger.history)
        self.follower.count(steps)

    def end(self, end: ProcessEnd) -> None:
        """Its process is gone."""
        self.follower.finish(end)
        self.ledger.end(self.follower, end)

    def unix_ns(self, monotonic_ns: int) -> int:
        """A time of its recording on the wire's clock."""
        return self.follower.source.unix_of(monotonic_ns)


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[RecordingReader]:
    """A recording."""
    recording = record_into(tmp_path)
    reader = opened(recording.writer.path)
    yield reader
    reader.close()
    recording.writer.close(1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run folder."""
    folder = tmp_path / "run"
    folder.mkdir(mode=0o700)
    return folder


@pytest.fixture
def rank(reader: RecordingReader, folder: Path) -> Rank:
    """A rank followed into the ledger of `folder`."""
    return Rank(reader, RunLedger(folder, "n0", 1, pytest.fail))


def facts_in(folder: Path) -> list[Fact]:
    """What the ledger tells."""
    reading = Reading()
    facts = list(read(folder / "ledger", reading))
    assert reading.damaged == 0
    return facts


def told(rank: Rank, folder: Path) -> list[Fact]:
    """What is in the ledger when the relay has written."""
    rank.ledger.write(0)
    return facts_in(folder)


def saved(**more: Any) -> dict[str, Any]:
    """The event of a save before the first step."""
    times = {"ts": 0, "start_ns": 2 * S, "end_ns": 3 * S}
    fields = {"kind": "save", "ok": True, "blocking": True, "file": "abc", "step": 0, "bytes": 100}
    return {"event": "checkpoint", **times, **fields, **more}


def test_steps_and_start_become_facts(rank: Rank, folder: Path) -> None:
    """The whole life of an untouched script: its start, its steps with their waits, its end."""
    rank.look(marks_of(2, start_ns=BEGIN_NS), now_ns=6 * S)
    rank.end(ProcessEnd(7 * S, "closed"))

    facts = told(rank, folder)

    begun_ns, first_ns = rank.unix_ns(PROCESS_START_NS), rank.unix_ns(BEGIN_NS)
    steps = [fact for fact in facts if isinstance(fact, Step)]
    assert facts[0] == Begun(0, 0, begun_ns, "node0", 2)
    assert Activity(0, 0, "init", begun_ns, first_ns) in facts
    assert [(step.number, step.start_ns - first_ns, step.end_ns - first_ns) for step in steps[:2]] == [
        (0, 0, STEP_NS),
        (1, STEP_NS, 2 * STEP_NS),
    ]
    assert [[piece.state for piece in step.pieces] for step in steps[:2]] == [["data_wait"]] * 2
    assert facts[-1] == Ended(0, 0, rank.unix_ns(7 * S), orderly=True)
    assert set(seconds(history_of(facts))) == {"init", "productive", "data_wait", "shutdown"}


def test_checkpoint_in_a_step_is_its_own_state(rank: Rank, folder: Path) -> None:
    """The blocking part of a save is not work, and what it saved is known by its name and the step that comes next."""
    tape = MarkTape(BEGIN_NS)
    tape.spend(Phase.FORWARD, S)
    tape.step(0)
    tape.spend(Phase.CHECKPOINT_SAVE, 2 * S)
    tape.step(1)

    rank.look(tape.words, saved(start_ns=BEGIN_NS + S, end_ns=BEGIN_NS + 3 * S + 9_000_000, step=1), now_ns=9 * S)

    facts = told(rank, folder)
    assert seconds(history_of(facts))["checkpoint_save"] == 2.0
    assert Saved(0, 0, rank.unix_ns(BEGIN_NS + 3 * S + 9_000_000), 1, "abc", 100) in facts


def test_state_of_what_is_told_counts_before_the_first_step(rank: Rank, folder: Path) -> None:
    """Making the model is no step, and no `init` that nobody can explain; the same in a step is the step's."""
    tape = marks_of(1, start_ns=BEGIN_NS)
    made = {"event": "span", "name": "training.init.model", "start_ns": 2 * S, "end_ns": 3 * S, "state": "model_init"}
    again = {**made, "start_ns": BEGIN_NS, "end_ns": BEGIN_NS + 1_000_000}

    rank.look([], made, now_ns=4 * S)
    rank.look(tape, again, now_ns=6 * S)

    assert seconds(history_of(told(rank, folder)))["model_init"] == 1.0
    assert rank.follower.account.states()["model_init"] == S


def test_load_before_the_first_step_is_told_with_its_name(rank: Rank, folder: Path) -> None:
    """Where a restart took the run up decides what was lost; reading it back is not `init`."""
    rank.look(marks_of(1, start_ns=BEGIN_NS), saved(kind="load"), now_ns=6 * S)

    facts = told(rank, folder)

    assert Loaded(0, 0, rank.unix_ns(3 * S), None, "abc") in facts
    assert seconds(history_of(facts))["checkpoint_load"] == 1.0
    assert rank.follower.account.states() == {
        "init": BEGIN_NS - PROCESS_START_NS - S,
        "checkpoint_load": S,
        "data_wait": 2_000_000,
        "productive": STEP_NS - 2_000_000,
    }


@pytest.mark.parametrize(
    "more",
    [
        {"ok": False},
        {"step": -1},
        {"step": "1"},
        {"file": None},
        {"kind": "copy"},
        {"staging": True},  # the upload has yet to succeed
        {"end_ns": 1},
        {"start_ns": "x"},
    ],
)
def test_what_cannot_be_resumed_from_is_no_save(more: dict[str, Any], rank: Rank, folder: Path) -> None:
    """A failed save, an upload under way, a line that is none of ours: crediting it hides lost work."""
    rank.look([], saved(), saved(file="def", **more) if "file" not in more else saved(**more), now_ns=4 * S)

    saves = [fact for fact in told(rank, folder) if isinstance(fact, Saved)]

    assert [save.name for save in saves] == ["abc"]


def test_silence_is_told_now_and_then(rank: Rank, folder: Path) -> None:
    """A rank that hangs lives: without a sign of it the account would end at its last step."""
    rank.look(marks_of(1, start_ns=BEGIN_NS), now_ns=6 * S)

    for second in range(1, 26):
        rank.look([], now_ns=6 * S + second * S)

    alive = [fact.at_ns for fact in told(rank, folder) if isinstance(fact, Alive)]
    assert alive == [rank.unix_ns(6 * S + SILENCE_NS), rank.unix_ns(6 * S + 2 * SILENCE_NS)]


def test_death_that_was_watched_is_when_it_was_noticed(rank: Rank, folder: Path) -> None:
    """The unfinished step is told with it."""
    rank.look(marks_of(1, start_ns=BEGIN_NS), now_ns=6 * S)
    rank.look([], now_ns=8 * S, ended="died")
    rank.end(ProcessEnd(8 * S, "died"))

    *_, unfinished, end = told(rank, folder)

    assert end == Ended(0, 0, rank.unix_ns(8 * S), orderly=False)
    assert isinstance(unfinished, Step)
    assert (unfinished.complete, unfinished.end_ns) == (False, end.at_ns)


def test_death_that_nobody_watched_was_at_the_last_mark(rank: Rank, folder: Path) -> None:
    """A relay that comes a week later must not charge the week to the step."""
    week_ns = 7 * 86_400 * S
    rank.look(marks_of(1, start_ns=BEGIN_NS), now_ns=week_ns, ended="died")
    rank.end(ProcessEnd(week_ns, "died"))

    end = told(rank, folder)[-1]

    assert end == Ended(0, 0, rank.unix_ns(BEGIN_NS + STEP_NS), orderly=False)


def test_waiting_for_a_slower_rank_is_an_activity(rank: Rank, folder: Path) -> None:
    """In a finished step it is neither work nor lost, and only the ranks together know of it."""
    rank.look(marks_of(1, start_ns=BEGIN_NS), now_ns=6 * S)
    kind = Kind("all_reduce", Group("0", "default_pg", (0, 1)), 8)

    rank.ledger.wait([(rank.follower, Wait(kind, BEGIN_NS + 20_000_000, BEGIN_NS + 30_000_000))])

    facts = told(rank, folder)
    begin_ns = rank.unix_ns(BEGIN_NS)
    assert facts[-1] == Activity(0, 0, "straggler_wait", begin_ns + 20_000_000, begin_ns + 30_000_000)
    assert seconds(history_of(facts))["straggler_wait"] == pytest.approx(0.01)


def test_second_relay_changes_nothing(rank: Rank, reader: RecordingReader, folder: Path) -> None:
    """The first was killed; the next one reads the recording again from its beginning."""
    rank.look(marks_of(3, start_ns=BEGIN_NS), saved(), now_ns=6 * S)
    before = history_of(told(rank, folder))

    again = Rank(reader, RunLedger(folder, "n0", 2, pytest.fail))
    again.look(marks_of(3, start_ns=BEGIN_NS), saved(), now_ns=6 * S)

    after = history_of(told(again, folder))
    assert len(list((folder / "ledger").iterdir())) == 2
    assert seconds(after) == seconds(before)
    assert after.clock(0).steps(0, 1 << 62) == (3, 0)


def test_disk_that_refuses_is_tried_again(reader: RecordingReader, folder: Path) -> None:
    """It is said once, and nothing is lost when there is room again."""
    said: list[str] = []
    rank = Rank(reader, RunLedger(folder, "n0", 1, said.append))
    (folder / "ledger").write_text("in the way")
    rank.look(marks_of(1, start_ns=BEGIN_NS), now_ns=6 * S)
    rank.ledger.write(0)
    rank.ledger.write(10 * S)
    (folder / "ledger").unlink()
    rank.ledger.write(20 * S)

    facts = facts_in(folder)

    assert len(said) == 1
    assert "ledger cannot be written" in said[0]
    assert [type(fact).__name__ for fact in facts] == ["Begun", "Activity", "Activity", "Step"]


def test_disk_that_refuses_is_asked_every_ten_seconds(reader: RecordingReader, folder: Path) -> None:
    """What waits for it grows, and to write all of that anew at each look would take a processor of its own."""
    rank = Rank(reader, RunLedger(folder, "n0", 1, lambda _: None))
    (folder / "ledger").write_text("in the way")
    rank.look(marks_of(1, start_ns=BEGIN_NS), now_ns=6 * S)
    rank.ledger.write(100 * S)
    (folder / "ledger").unlink()

    written = []
    for tenths in range(1002, 1112, 2):
        rank.ledger.write(tenths * S // 10)
        written.append((folder / "ledger").exists())

    assert written == [False] * 49 + [True] * 6


def test_same_facts_can_be_asked_at_once(rank: Rank) -> None:
    """What the metrics say and what `trainspan goodput` says comes from one engine."""
    rank.look(marks_of(50, start_ns=BEGIN_NS), now_ns=9 * S)

    now_ns = rank.unix_ns(9 * S)
    said = rank.ledger.history.of_rank(0, 0, now_ns)

    asked = report(history_of(told(rank, rank.ledger._folder.parent)), Window(now_ns=now_ns), Scope(rank=0))
    assert set(said.goodput.values()) == {asked.goodput}
    assert said.deviation_s == pytest.approx(0.0, abs=1e-9)
    assert rank.ledger.history.restarts() == {"failure": 0, "planned": 0}


def test_closing_packs_the_file(rank: Rank, folder: Path) -> None:
    """A finished run is small."""
    rank.look(marks_of(1000, start_ns=BEGIN_NS), now_ns=6 * S)
    rank.ledger.close()

    (file,) = (folder / "ledger").iterdir()

    assert file.suffix == ".packed"
    assert file.stat().st_size < 20_000
    assert sum(len(fact.told()) for fact in facts_in(folder) if isinstance(fact, StepRun)) == 1000


def test_checkpoint_begins_no_step() -> None:
    """Loading one before the loop is not the first step's work."""
    tape = MarkTape(100)
    tape.spend(Phase.CHECKPOINT_LOAD, 50)
    tape.spend(Phase.OTHER, 10)
    tape.spend(Phase.DATA_WAIT, 5)
    tape.step(0, optimizer_ns=20)
    timeline = RankTimeline()

    (step,) = timeline.feed(tape.words)

    assert (step.start_ns, step.end_ns, timeline.first_step_start_ns) == (160, 185, 160)
    assert timeline.invalid == 0


def test_account_keeps_checkpoints_apart() -> None:
    """Before the steps, in them and after the last, they are neither init nor work nor shutdown."""
    account = Account(0)
    phases = [(Phase.FORWARD, 10), (Phase.CHECKPOINT_SAVE, 4)]
    step = rank_step(0, phases, start_ns=100)
    last = rank_step(1, phases, start_ns=114, complete=False)
    account.hold(20, 50, "checkpoint_load")
    account.start(100)
    account.charge(step, phase_times_of(step))

    account.close(ProcessEnd(130, "closed"), last)

    assert account.states() == {
        "init": 70,
        "checkpoint_load": 30,
        "productive": 10,
        "checkpoint_save": 8,
        "shutdown": 12,
    }


NAMED = {"ts": 0, "event": "phase_name", "number": 32, "name": "serve"}


def served(times: int, start_ns: int, each_ns: int) -> MarkTape:
    """A named phase, `times` times, with as long a pause after each."""
    tape = MarkTape(start_ns)
    for _ in range(times):
        tape.mark(ENTER, 32)
        tape.now_ns += each_ns
        tape.mark(RESUME, Phase.OTHER)
        tape.now_ns += each_ns
    return tape


def test_named_phase_before_the_first_step_is_a_state(rank: Rank, folder: Path) -> None:
    """The engine and the live account must agree on what is no init."""
    tape = served(2, 2 * S, 1_000_000)
    tape.spend(Phase.FORWARD, 5_000_000)
    tape.step(0)

    rank.look(tape.words, NAMED, now_ns=6 * S)
    rank.end(ProcessEnd(7 * S, "closed"))

    facts = [fact for fact in told(rank, folder) if isinstance(fact, Activity) and fact.state == "custom.serve"]
    assert [(fact.start_ns, fact.end_ns) for fact in facts] == [
        (rank.unix_ns(2 * S), rank.unix_ns(2 * S + 1_000_000)),
        (rank.unix_ns(2 * S + 2_000_000), rank.unix_ns(2 * S + 3_000_000)),
    ]
    states_ns = rank.follower.account.states()
    assert states_ns["custom.serve"] == 2_000_000
    assert sum(states_ns.values()) == rank.follower.account.elapsed_ns


def test_process_that_only_serves_is_charged_as_it_goes(rank: Rank) -> None:
    """It never makes a step: what is kept of the time before the first one must not grow for ever."""
    start_ns = 2 * S
    rank.look([], NAMED, now_ns=start_ns)

    for _ in range(3):
        tape = served(2 * MOST_HELD, start_ns, 1000)
        rank.look(tape.words, now_ns=tape.now_ns)
        start_ns = tape.now_ns

    states_ns = rank.follower.account.states()
    assert states_ns["custom.serve"] == 3 * 2 * MOST_HELD * 1000
    assert sum(states_ns.values()) == rank.follower.account.elapsed_ns
    assert len(rank.follower.account.held) <= MOST_HELD
