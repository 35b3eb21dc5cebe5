"""The ledger outlives every process: a file cut anywhere loses one record, and packing changes no answer."""

import os
import random
import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.goodput_facts import HISTORIES, S, begun, ended, history_of, steps
from tests.unit.test_goodput_properties import answers_of
from tests.unit.test_otlp_journal import file_size_limit
from trainspan.relay.goodput import ledger, lines
from trainspan.relay.goodput.facts import Activity, Fact, Piece, Saved, Step, StepRun
from trainspan.relay.goodput.ledger import LedgerWriter, Reading
from trainspan.relay.goodput.queries import THE_JOB, Scope, Window, account_ns, report

FACTS: list[Fact] = [
    begun(0),
    *steps(0, range(0, 70, 10), wait=1.0),
    Activity(0, 0, "custom.eval", 60 * S, None, 2),
    Saved(0, 0, 61 * S, 6, "deep/path"),
    Saved(0, 0, 62 * S, 6, "other/path", 4096),
    Step(0, 0, 6, 60 * S, 75 * S, (Piece("validation", 62 * S, 63 * S),), recompiled=True, steps=3, complete=False),
    ended(80),
]

same_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def write(folder: Path, facts: list[Fact], rotate_bytes: int = ledger.ROTATE_BYTES) -> Path:
    """A writer's file with `facts`, left open as a crash leaves it."""
    folder.mkdir(exist_ok=True)
    writer = LedgerWriter(folder, "node/0", len(list(folder.iterdir())), rotate_bytes)
    for fact in facts:
        writer.append([fact])
    return max(folder.iterdir())


def read(folder: Path) -> tuple[list[Fact], Reading]:
    """Everything in a ledger, as it is told to a history."""
    reading = Reading()
    return list(ledger.read(folder, reading)), reading


def told(facts: Iterable[Fact]) -> list[Fact]:
    """The facts, with the steps of a run one by one."""
    return [one for fact in facts for one in (fact.told() if isinstance(fact, StepRun) else [fact])]


def claims(facts: Iterable[Fact]) -> set[Fact]:
    """The facts, with what a rank waited for a slower one as a fact of its own, wherever it is told."""
    claimed: set[Fact] = set()
    for fact in told(facts):
        if not isinstance(fact, Step):
            claimed.add(fact)
            continue
        waits = [piece for piece in fact.pieces if piece.state == "straggler_wait"]
        claimed |= {Activity(*fact[:2], wait.state, wait.start_ns, wait.end_ns) for wait in waits}
        claimed.add(fact._replace(pieces=tuple(piece for piece in fact.pieces if piece not in waits)))
    return claimed


@same_folder
@given(facts=HISTORIES)
def test_what_is_read_is_what_was_written(tmp_path: Path, facts: list[Fact]) -> None:
    """Nothing is rounded, renamed or left out."""
    path = write(tmp_path, facts)

    found, reading = read(tmp_path)

    path.unlink()
    assert Counter(found) == Counter(facts)
    assert (reading.files, reading.facts, reading.damaged) == (1, len(facts), 0)


@same_folder
@given(facts=HISTORIES)
def test_packing_changes_no_answer(tmp_path: Path, facts: list[Fact]) -> None:
    """The packed form makes the same claims."""
    path = write(tmp_path, facts)

    packed = ledger.pack(path)

    assert packed is not None
    found, reading = read(tmp_path)
    packed.unlink()
    assert not path.exists()
    assert reading.damaged == 0
    assert claims(found) == claims(facts)
    for scope in (THE_JOB, Scope(rank=0), Scope(rank=1)):
        packed_answer, answer = report(history_of(found), scope=scope), report(history_of(facts), scope=scope)
        assert packed_answer == answer


def test_file_that_is_packed_while_the_ledger_is_read_is_read(tmp_path: Path) -> None:
    """A large ledger takes minutes to read, and the newest file is the one that its relay packs meanwhile."""
    older, newer = list(steps(0, range(0, 50, 10))), list(steps(4, range(40, 90, 10)))
    write(tmp_path, [*older])
    path = write(tmp_path, [*newer])
    facts = ledger.read(tmp_path)
    found = [next(facts)]

    ledger.pack(path)
    found += facts

    assert set(told(found)) == {*older, *newer}


def test_waits_are_packed_into_their_steps(tmp_path: Path) -> None:
    """Ranks that wait for each other in every step would have ledgers four times as large, and as slow to read."""
    made = list(steps(0, range(0, 1000, 10), wait=1.0))
    waits = [Activity(0, 0, "straggler_wait", step.start_ns + 5 * S, step.start_ns + 6 * S) for step in made]
    between = Activity(0, 0, "straggler_wait", made[-1].start_ns + 5 * S, made[-1].end_ns + S)

    packed = ledger.pack(write(tmp_path, [*made, *waits, between]))

    found, _ = read(tmp_path)
    assert packed is not None
    assert [fact for fact in found if not isinstance(fact, StepRun)] == [between]
    (run,) = [fact for fact in found if isinstance(fact, StepRun)]
    assert run.is_plain()
    assert set(run.counts) == {2}
    assert claims(found) == {*claims(made), *waits, between}


def test_file_cut_at_any_byte_loses_at_most_the_last_record(tmp_path: Path) -> None:
    """A power cut asks nobody where a record ends."""
    path = write(tmp_path, FACTS)
    raw = path.read_bytes()
    ends = [place + 1 for place, byte in enumerate(raw) if byte == ord("\n")]
    for size in range(len(raw) + 1):
        path.write_bytes(raw[:size])

        found, reading = read(tmp_path)

        whole = sum(end <= size for end in ends)
        assert set(found) == set(FACTS[: len(found)]), size
        assert len(found) in (whole, whole + 1), size
        assert reading.damaged <= 1, size


def test_packed_file_cut_at_any_byte_tells_nothing_that_was_not_told(tmp_path: Path) -> None:
    """Packing syncs before it renames, so this is a broken disk; what it lost is counted and nothing is made up."""
    packed = ledger.pack(write(tmp_path, FACTS))
    assert packed is not None
    raw = packed.read_bytes()
    for size in range(len(raw)):
        packed.write_bytes(raw[:size])

        found, reading = read(tmp_path)

        assert set(told(found)) <= set(FACTS), size
        assert reading.damaged <= 1, size


@given(facts=HISTORIES, nodes=st.integers(1, 3), rotate_bytes=st.integers(1, 1500), seed=st.integers(0, 1 << 32))
def test_rotation_packing_and_nodes_change_no_answer(
    facts: list[Fact], nodes: int, rotate_bytes: int, seed: int
) -> None:
    """Who wrote a fact, into which file, and how often, is nothing that anybody asked."""
    chance = random.Random(seed)
    window = Window(50 * S, 700 * S)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        writers = [LedgerWriter(folder, f"node{node}", seed, rotate_bytes) for node in range(nodes)]
        for fact in facts:
            for writer in chance.sample(writers, chance.randint(1, nodes)):
                writer.append([fact])
        for writer in writers:
            if chance.random() < 0.5:
                writer.close()
            else:
                os.close(writer.descriptor)

        rotated = answers_of(history_of(read(folder)[0]), window)
        ledger.compact(folder)
        compacted = answers_of(history_of(read(folder)[0]), window)

    assert rotated == answers_of(history_of(facts), window)
    assert compacted == rotated


def test_next_writer_does_not_continue_a_torn_line(tmp_path: Path) -> None:
    """Each writer has its own file: what it writes first is not swallowed by what was torn."""
    path = write(tmp_path, FACTS)
    os.truncate(path, path.stat().st_size - 5)

    write(tmp_path, FACTS[-1:])

    found, reading = read(tmp_path)
    assert set(found) == set(FACTS)
    assert (reading.files, reading.damaged, reading.where) == (2, 1, [path.name])


@pytest.mark.parametrize("moment", ["before", "after"])
def test_crash_while_packing_loses_nothing(tmp_path: Path, moment: str) -> None:
    """Beside the file, or both of them: facts met twice change nothing."""
    path = write(tmp_path, FACTS)
    raw = path.read_bytes()
    packed = ledger.pack(path)
    assert packed is not None

    path.write_bytes(raw)
    if moment == "before":
        packed.rename(path.with_suffix(".tmp"))

    assert account_ns(history_of(read(tmp_path)[0])) == account_ns(history_of(FACTS))


def test_rotation_packs_what_is_finished(tmp_path: Path) -> None:
    """A long run is many small files, all but one of them packed."""
    facts: list[Fact] = [begun(0), *steps(0, range(0, 3000, 10), wait=1.0), ended(3000)]

    write(tmp_path, facts, rotate_bytes=4000)

    names = sorted(path.suffix for path in tmp_path.iterdir())
    assert names.count(".jsonl") == 1
    assert names.count(".packed") > 4
    assert report(history_of(read(tmp_path)[0])) == report(history_of(facts))


def test_closed_ledger_is_packed_and_small(tmp_path: Path) -> None:
    """The size of a run's ledger is a promise: see the module."""
    times = [place * 0.251 + place % 7 * 1e-3 for place in range(5000)]
    facts: list[Fact] = [begun(0), *steps(0, times, wait=0.0123), ended(1300)]
    writer = LedgerWriter(tmp_path, "n0", 0)
    writer.append(facts)
    raw_bytes = sum(path.stat().st_size for path in tmp_path.iterdir())

    writer.close()

    (path,) = tmp_path.iterdir()
    assert path.suffix == ".packed"
    assert path.stat().st_size < raw_bytes / 5
    assert path.stat().st_mode & 0o077 == 0


def test_nodes_share_a_folder(tmp_path: Path) -> None:
    """Merged by reading: names never meet, order never matters."""
    for rank, node in enumerate(("a", "b", "../c")):
        writer = LedgerWriter(tmp_path, node, 7)
        writer.append([begun(0, rank=rank, node=node), *steps(0, range(0, 70, 10), rank=rank)])
        writer.sync()

    history = history_of(read(tmp_path)[0])

    assert history.ranks == [0, 1, 2]
    assert report(history).goodput == 1.0


def test_compact_packs_what_crashes_left(tmp_path: Path) -> None:
    """A finished run is read faster, and takes a fifth of the room."""
    for place in range(3):
        write(tmp_path, FACTS[place:])

    packed = ledger.compact(tmp_path)

    assert packed == 3
    assert ledger.compact(tmp_path) == 0
    assert set(told(read(tmp_path)[0])) == set(FACTS)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"[]",
        b"{}",
        b"null",
        b'["step"]',
        b'["step",0,0,1,20,10]',
        b'["step",0,0,1,1.5,10]',
        b'["step",0,0,1,0,99999999999999999999999999]',
        b'["step",0,0,1,0,10,[["productive",0,1]]]',
        b'["step",0,0,1,0,10,[["data_wait",1]]]',
        b'["activity",0,0,"lost_work",0,1]',
        b'["activity",0,0,"init",0,1,1000]',
        b'["activity",true,0,"init",0,1]',
        b'["begun",0,0,-1,"n",1,true]',
        b'["unheard-of",0,0,1]',
        b'["steps",0,0,"!!!"]',
        b'["steps",0,0,"eJyLjgUAARUAuQ=="]',
        b"[" * 100_000,
        b"\xff\xfe\x00",
        b"\0" * 512,
    ],
)
def test_hostile_line_is_counted_and_left_out(tmp_path: Path, line: bytes) -> None:
    """A shared folder is written by others; reading it must not raise, nor believe what cannot be."""
    path = write(tmp_path, FACTS)
    path.write_bytes(line + b"\n" + path.read_bytes())

    found, reading = read(tmp_path)

    assert set(found) == set(FACTS)
    assert reading.damaged == 1


@given(line=st.binary(max_size=200))
def test_no_line_raises_anything_unexpected(line: bytes) -> None:
    """What reading counts as damage is all that can come out."""
    try:
        lines.fact_of(line)
    except lines.DAMAGE:
        return


def test_columns_that_lie_are_damage(tmp_path: Path) -> None:
    """Every field of every step is checked, also in the packed form."""
    path = write(tmp_path, FACTS)
    packed = ledger.pack(path)
    assert packed is not None
    line = next(line for line in packed.read_bytes().splitlines() if line.startswith(b'["steps"'))

    for attempt in (b"-1", b"1.5", b"null", b"true"):
        with pytest.raises(lines.DAMAGE):
            lines.fact_of(line.replace(b'["steps",0', b'["steps",' + attempt, 1))


def test_full_disk_is_said_and_nothing_follows_a_torn_line(tmp_path: Path) -> None:
    """The relay counts it and goes on; what comes later goes into a new file."""
    writer = LedgerWriter(tmp_path, "n0", 0)
    writer.append(FACTS[:2])
    first = next(tmp_path.iterdir())
    os.close(writer.descriptor)
    os.dup2(os.open("/dev/full", os.O_WRONLY), writer.descriptor)

    with pytest.raises(OSError, match="No space left"):
        writer.append(FACTS[2:4])
    writer.append(FACTS[4:])

    found, reading = read(tmp_path)
    assert set(told(found)) == {*FACTS[:2], *FACTS[4:]}
    assert reading.damaged == 0
    assert not first.exists()


def test_disk_that_stays_full_is_not_filled_with_files(tmp_path: Path) -> None:
    """The relay tries again and again, for as long as it takes somebody to make room, and each file is an inode."""
    writer = LedgerWriter(tmp_path, "n0", 0)
    writer.append(FACTS[:2])
    (file,) = tmp_path.iterdir()
    with file_size_limit(file.stat().st_size + 10):
        for _ in range(20):
            with pytest.raises(OSError, match="File too large"):
                writer.append(FACTS[2:])
        left = list(tmp_path.iterdir())

    writer.append(FACTS[2:])
    writer.close()

    found, reading = read(tmp_path)
    assert left == [file]
    assert (Counter(told(found)), reading.damaged) == (Counter(FACTS), 0)


def test_file_that_cannot_be_packed_leaves_no_half_of_it(tmp_path: Path) -> None:
    """On a disk that is full, that half is what fills it."""
    path = write(tmp_path, FACTS)

    with file_size_limit(10), pytest.raises(OSError, match="File too large"):
        ledger.pack(path)

    assert list(tmp_path.iterdir()) == [path]
    assert read(tmp_path)[1].damaged == 0
