"""Recordings of other processes: followed at full speed, and told dead from alive."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.unit import recording_programs as programs
from tests.unit.recording_programs import Program
from tests.unit.recordings import CAPACITY, opened
from trainspan.recording import layout
from trainspan.recording.reader import Look, RecordingReader


def numbers_after(passed: int, look: Look) -> int:
    """How many marks are given or lost after `look`; its marks must be the ones that follow without a gap."""
    numbers = [word >> layout.OPERAND_SHIFT for word in look.marks[1::2]]
    assert numbers == list(range(passed + look.lost, passed + look.lost + len(numbers)))
    return passed + look.lost + len(numbers)


@pytest.mark.parametrize(("capacity", "marks"), [(CAPACITY, 400_000), (1 << 16, 400_000)])
def test_writer_at_full_speed_is_followed(tmp_path: Path, capacity: int, marks: int) -> None:
    """The relay shares but a file with the rank: no mark twice, none out of place, the missing ones counted."""
    with Program(programs.mark_at_full_speed, tmp_path, capacity, marks) as program:
        reader = opened(Path(program.said()))
        looks = [reader.look()]
        program.go_on()
        while reader.closed_ns() is None and program.runs():
            looks.append(reader.look())
            time.sleep(0.001)
        looks.append(reader.look(final=True))

    passed = 0
    for look in looks:
        passed = numbers_after(passed, look)
    assert passed == marks
    assert reader.errors == 0
    assert sum(look.lost for look in looks) > 0 or capacity > CAPACITY
    reader.close()


@pytest.mark.parametrize("marks", [5, CAPACITY, 2 * CAPACITY + 5])
def test_mark_cut_in_half_by_a_kill_is_not_given(tmp_path: Path, marks: int) -> None:
    """SIGKILL comes between any two instructions, the two stores of a mark included."""
    with Program(programs.die_in_a_mark, tmp_path, CAPACITY, marks) as program:
        path = Path(program.said())
        assert program.ended() == -signal.SIGKILL
    reader = opened(path)

    look = reader.look(final=True)

    assert numbers_after(0, look) == marks
    assert reader.errors == 0
    reader.close()


def test_writer_lives_until_it_is_killed(tmp_path: Path) -> None:
    """Nothing that is killed can say so: the kernel takes its lock away, and that is how the relay learns."""
    with Program(programs.live, tmp_path, CAPACITY) as program:
        reader = opened(Path(program.said()))
        before = reader.writer_lives()
        program.kill()

    assert before
    assert not reader.writer_lives()
    assert reader.closed_ns() is None
    reader.close()


@pytest.mark.parametrize("program", [programs.leave_at_once, programs.leave_unclosed])
def test_end_without_a_close_is_no_close(tmp_path: Path, program: Any) -> None:
    """`os._exit` skips what runs at exit: the rank is gone, and it has not said that its work was done."""
    with Program(program, tmp_path, CAPACITY) as running:
        reader = opened(Path(running.said()))
        before = reader.writer_lives()
        running.go_on()
        assert running.ended() == 0

    assert before
    assert not reader.writer_lives()
    assert reader.closed_ns() is None
    reader.close()


def test_forked_child_that_lives_on_is_not_the_writer(tmp_path: Path) -> None:
    """DataLoader workers are forked from the rank and may outlive it with every descriptor it had open."""
    with Program(programs.live_twice, tmp_path, CAPACITY) as program:
        reader = opened(Path(program.said()))
        child = int(program.said())
        before = reader.writer_lives()
        try:
            program.kill()
            after = reader.writer_lives()
            os.kill(child, 0)  # it is there
        finally:
            os.kill(child, signal.SIGKILL)

    assert before
    assert not after
    reader.close()


def test_child_that_lets_go_does_not_end_its_parent(tmp_path: Path) -> None:
    """A forked child closes the descriptors of a recording that is not its own; the parent still records."""
    with Program(programs.abandon_in_a_child, tmp_path, CAPACITY) as program:
        reader = opened(Path(program.said()))
        assert program.said() == "abandoned"

        assert reader.writer_lives()
        assert reader.closed_ns() is None
    reader.close()


def test_close_is_told_from_death_while_the_process_lives_on(tmp_path: Path) -> None:
    """A script may go on for hours after its training: the recording is over, and nobody died."""
    with Program(programs.leave_in_order, tmp_path, CAPACITY) as program:
        reader = opened(Path(program.said()))
        open_ns = reader.closed_ns()
        program.go_on()
        assert program.said() == "closed"

        assert open_ns is None
        assert (reader.closed_ns() or 0) > reader.anchor.monotonic_ns
        assert not reader.writer_lives()
    reader.close()


def test_recording_is_complete_when_its_name_appears(tmp_path: Path) -> None:
    """The relay takes whatever it finds in the directory, at any moment, while every rank of the node starts."""
    makers, each = 3, 17
    seen: dict[Path, RecordingReader] = {}
    running = [Program(programs.make_many, tmp_path, CAPACITY, each) for _ in range(makers)]
    try:
        assert [program.said() for program in running] == ["ready"] * makers
        for program in running:
            program.go_on()
        while len(seen) < makers * each and all(program.runs() for program in running):
            for path in tmp_path.glob(f"*{layout.RING_SUFFIX}"):
                if path not in seen:
                    seen[path] = opened(path)
                    assert seen[path].writer_lives()
        leftovers = {path.suffix for path in tmp_path.iterdir()} - {layout.RING_SUFFIX, layout.EVENTS_SUFFIX}
    finally:
        for program in running:
            program.__exit__()

    assert len(seen) == makers * each
    assert leftovers == set()
    for reader in seen.values():
        reader.close()


def test_nothing_is_recorded_after_the_orderly_end(tmp_path: Path) -> None:
    """Handlers of a script's own may train on at exit, when the relay has read the recording to its end."""
    with Program(programs.train_after_the_end, tmp_path) as program:
        assert program.said() == "False"
        assert program.ended() == 0
    [path] = tmp_path.rglob("*.ring")
    reader = opened(path)

    look = reader.look(final=True)

    assert [word & layout.KIND_MASK for word in look.marks[1::2]] == [layout.ENTER, layout.STEP, layout.ENTER]
    assert look.marks[-2] <= (reader.closed_ns() or 0)
    assert [event["event"] for event in reader.events()] == ["taken"]
    reader.close()


def test_process_that_is_given_its_work_is_that_rank_of_that_run(tmp_path: Path) -> None:
    """Ray's workers are started for anything; one can be several trials, each of which is a run of its own."""
    with Program(programs.do_as_told, tmp_path) as program:
        assert program.ended() == 0
    recordings = {path.parents[2].name: opened(path) for path in tmp_path.rglob("*.ring")}
    looks = {run: recording.look(final=True) for run, recording in recordings.items()}

    assert {run: one.identity[2:7] for run, one in recordings.items()} == {
        "first": (0, 0, 0, 0, 1),
        "second": (4, 0, 0, 0, 1),
        "third": (0, 1, 1, 0, 2),
    }
    first_ns, second_ns = (recordings[run].closed_ns() or 0 for run in ("first", "second"))
    assert 0 < first_ns <= recordings["second"].process_start_ns <= second_ns
    assert recordings["third"].process_start_ns >= second_ns
    assert {run: one.closed_ns() is not None for run, one in recordings.items()} == {
        "first": True,
        "second": True,
        "third": False,
    }
    assert {run: len(look.marks) // 2 for run, look in looks.items()} == {"first": 2, "second": 4, "third": 7}
    for recording in recordings.values():
        recording.close()


def test_what_comes_of_a_stop_is_no_news(tmp_path: Path) -> None:
    """Where one rank has died, the exceptions of the others say that it is gone; who ends them has said so before."""
    with Program(programs.do_as_told, tmp_path) as program:
        assert program.ended() == 0
    [path] = (path for path in tmp_path.rglob("*.ring") if path.parents[2].name == "third")
    recording = opened(path)

    events = [(event["event"], event.get("signal")) for event in recording.events()]

    assert events == [("trains", None), ("stopped", "SIGKILL")]
    recording.close()
