"""Whatever the bytes are, the reader says so: it does not raise, does not hang, and does not make things up."""

import json
import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.recording_damage import BASES, CORPUS, Files, Outcome, base, damage, draw_edits, read_through
from tests.unit.recordings import CAPACITY, opened, record_into
from trainspan.clock import Anchor
from trainspan.recording import layout
from trainspan.recording.reader import Refusal, open_recording

DAMAGES = json.loads((CORPUS / "damages.json").read_text(encoding="utf-8"))
NAME = "r00000-a0-p1-00000000.ring"


def later(files: Files, edits: list[list[Any]], path: Path) -> Callable[[], None]:
    """What damages `files` once more, while a reader has them open."""

    def damage_again() -> None:
        damage(files, edits)
        files.write(path)

    return damage_again


@pytest.mark.parametrize("case", DAMAGES, ids=lambda case: case["name"])
def test_known_damage_is_met_as_agreed(tmp_path: Path, case: dict[str, Any]) -> None:
    """Each of these was thought of, or found by the fuzzer, and has one right answer."""
    files = base(case["base"])
    damage(files, case["edits"])
    path = tmp_path / NAME
    files.write(path)

    outcome = read_through(path, later(files, case.get("while_open", []), path))

    assert outcome == Outcome(**{"refusal": None, **case["expect"]})


@settings(max_examples=300)
@given(
    name=st.sampled_from(list(BASES)), before=st.integers(0, 1 << 32), while_open=st.integers(0, 1 << 32) | st.none()
)
def test_damage_at_random_is_reported_not_raised(
    tmp_path_factory: pytest.TempPathFactory, name: str, before: int, while_open: int | None
) -> None:
    """A disk that fills up, a machine that crashes and a user's own script damage files in ways nobody lists."""
    files = base(name)
    damage(files, draw_edits(Random(before)))
    path = tmp_path_factory.getbasetemp() / NAME
    files.write(path)

    outcome = read_through(path, later(files, [] if while_open is None else draw_edits(Random(while_open)), path))

    assert outcome.refusal is None or outcome == Outcome(outcome.refusal)


@given(size=st.integers(0, layout.HEADER_BYTES + CAPACITY * layout.MARK_BYTES - 1), again=st.integers(0, 30_000))
def test_file_cut_off_while_open_is_an_error_and_no_end(
    tmp_path_factory: pytest.TempPathFactory, size: int, again: int
) -> None:
    """A mapped file that shrinks kills its reader with SIGBUS; the relay serves other ranks too."""
    files = base("closed")
    path = tmp_path_factory.getbasetemp() / NAME
    files.write(path)
    reader = opened(path)
    reader.look()

    os.truncate(path, size)
    first = reader.look()
    os.truncate(path, again)
    second = reader.look(final=True)

    assert reader.errors > 0
    assert len(first.marks) + len(second.marks) <= 2 * CAPACITY
    assert (reader.closed_ns() or 0) >= 0
    reader.close()


def _nothing(path: Path) -> None:
    path.unlink(missing_ok=True)


def _symlink(path: Path) -> None:
    path.symlink_to(BASES["killed"])


def _device(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize(
    ("plant", "reason"),
    [
        (_nothing, "cannot be opened: No such file or directory"),
        (Path.mkdir, "is not a regular file"),
        (os.mkfifo, "is not a regular file"),
        (_symlink, "cannot be opened: Too many levels of symbolic links"),
        (_device, "cannot be opened: Too many levels of symbolic links"),
    ],
    ids=["nothing", "directory", "fifo", "symlink", "link to a device"],
)
def test_what_is_no_file_is_refused(tmp_path: Path, plant: Callable[[Path], None], reason: str) -> None:
    """A FIFO under a recording's name must not hold the relay up, and a link must not lead it elsewhere."""
    path = tmp_path / NAME
    plant(path)

    refusal = open_recording(path)

    assert refusal == Refusal(path, reason)


@pytest.mark.parametrize("place", [5, 6, 7], ids=["monotonic", "unix", "start"])
@pytest.mark.parametrize("time_ns", [-1, 1 << 62])
def test_times_that_no_clock_shows_are_refused(tmp_path: Path, place: int, time_ns: int) -> None:
    """All times of the recording are reckoned from them; one beyond 64 bits takes the batch it is in with it."""
    files = base("killed")
    damage(files, [["word", place, time_ns], ["sign"]])
    files.write(tmp_path / NAME)

    refusal = open_recording(tmp_path / NAME)

    assert refusal == Refusal(tmp_path / NAME, "claims times that no clock shows")


def test_file_of_another_user_is_refused(tmp_path: Path) -> None:
    """Who can plant a recording can tell lies about a run; only the user's own processes may."""
    path = tmp_path / NAME
    if os.geteuid() == 0:
        base("killed").write(path)
        os.chown(path, 12345, -1)
    else:
        path = Path("/etc/passwd")
    owner = path.stat().st_uid

    refusal = open_recording(path)

    assert isinstance(refusal, Refusal)
    assert refusal.reason.startswith(f"belongs to user {owner}, not to {os.geteuid()}")


def test_recording_on_a_read_only_copy_is_read(tmp_path: Path) -> None:
    """An archived run folder is often not writable, and reading needs no more than to read."""
    path = tmp_path / NAME
    base("killed").write(path)
    path.chmod(0o400)

    outcome = read_through(path)

    assert outcome == Outcome(None, marks=300, events=2)


@pytest.mark.parametrize("laps", [0, 1, 1 << 17])
def test_eternal_ring_of_nothing_costs_nothing(tmp_path: Path, laps: int) -> None:
    """A sparse file claims 1 GiB and holds none of it; the relay must not take the memory for what it claims."""
    path = tmp_path / NAME
    files = base("killed")
    lap_end = layout.WORD_LAP_ENDS + laps % layout.LAP_ENDS
    damage(files, [["word", layout.WORD_CAPACITY, layout.CAPACITY_MAX], ["sign"]])
    damage(files, [["word", layout.WORD_LAPS, laps], ["word", lap_end, bool(laps)]])
    path.write_bytes(files.ring[: layout.HEADER_BYTES])
    os.truncate(path, layout.HEADER_BYTES + layout.CAPACITY_MAX * layout.MARK_BYTES)
    reader = opened(path)

    tracemalloc.start()
    try:
        looks = [reader.look(), reader.look()]
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert [look.marks for look in looks] == [[], []]
    assert reader.errors > 0 or not laps
    assert peak_bytes < 4 << 20
    reader.close()


def test_recording_of_an_earlier_build_is_read_as_it_was(tmp_path: Path) -> None:
    """These bytes are version 1: if they are read in another way, files that people have lie from then on."""
    path = tmp_path / NAME
    base("closed").write(path)
    reader = opened(path)

    look = reader.look(final=True)

    assert (reader.identity.run, reader.identity.attempt, reader.identity.rank) == ("run-1", 1, 3)
    assert reader.anchor == Anchor(5_000_000_000, 1_760_000_000_000_000_000)
    assert (reader.process_start_ns, reader.capacity) == (4_000_000_000, CAPACITY)
    assert (reader.closed_ns(), reader.events_dropped()) == (look.marks[-2] + 1_000_000, 2)
    assert look.marks[-4:] == [41_220_856_491, layout.RESUME, 41_225_856_512, layout.STEP | 511 << layout.OPERAND_SHIFT]
    assert [event["event"] for event in reader.events()] == ["import", "imported", "checkpoint", "note", "end"]
    reader.close()


def test_writer_that_marks_after_a_damage_is_followed_on(tmp_path: Path) -> None:
    """A live ring whose lap count somebody spoils for a moment is read again when it is right."""
    writer, marker = record_into(tmp_path)
    reader = opened(writer.path)
    for _ in range(CAPACITY + 10):
        marker.step(0)
    first = reader.look()
    writer.words[layout.WORD_LAPS] = -7
    spoiled = reader.look()
    writer.words[layout.WORD_LAPS] = 1
    marker.step(0)

    mended = reader.look(final=True)

    assert (spoiled.marks, spoiled.lost, reader.errors) == ([], 0, 1)
    assert first.lost + mended.lost + len(mended.marks) // 2 == CAPACITY + 11
    reader.close()
    writer.close(1)
