"""A recording is made whole and private, or refused with nothing left behind."""

import os
import stat
import struct
from pathlib import Path

import pytest

from tests.unit import recording_programs as programs
from tests.unit.recording_programs import Program
from tests.unit.recordings import CAPACITY, PROCESS_START_NS, opened, record_into
from trainspan import clock
from trainspan.errors import RecordingRefused
from trainspan.recording import layout
from trainspan.recording.writer import RecordingWriter
from trainspan.testing.builders import identity_of


def test_reader_knows_who_records(tmp_path: Path) -> None:
    """The relay names spans and folders after the header alone: the file's name is only a name."""
    identity = identity_of(3, world_size=16, run="grüße-7", attempt=2)
    before = clock.anchor()
    writer = RecordingWriter.create(tmp_path, identity, 2 * CAPACITY, PROCESS_START_NS)

    reader = opened(writer.path)

    assert reader.identity == identity
    assert (reader.capacity, reader.process_start_ns) == (2 * CAPACITY, PROCESS_START_NS)
    assert before.monotonic_ns <= reader.anchor.monotonic_ns <= clock.anchor().monotonic_ns
    assert (reader.closed_ns(), reader.events_dropped(), reader.errors) == (None, 0, 0)
    reader.close()
    writer.close(1)


def test_header_is_as_the_layout_defines_it(tmp_path: Path) -> None:
    """Another language reads these files by the page alone: magic, version and capacity where it says."""
    writer, _marker = record_into(tmp_path)

    text = writer.path.read_bytes()

    assert text[:8] == b"trspan\r\n"
    assert struct.unpack_from("<2q", text, 8) == (1, CAPACITY)
    assert text[layout.IDENTITY_OFFSET :].startswith(b'{"role":"rank","run":"run-1","attempt":0,"rank":0,')
    assert len(text) == layout.HEADER_BYTES + CAPACITY * layout.MARK_BYTES
    writer.close(1)


def test_files_are_private_whatever_the_umask(tmp_path: Path) -> None:
    """An event may name a user's paths; nobody else on the host is to read them."""
    before = os.umask(0)
    try:
        writer, _marker = record_into(tmp_path)
    finally:
        os.umask(before)

    modes = [stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()]

    assert modes == [0o600, 0o600]
    writer.close(1)


def test_blocks_are_allocated_not_promised(tmp_path: Path) -> None:
    """A store into a hole of a file on a full disk kills the rank with SIGBUS."""
    writer, _marker = record_into(tmp_path, 16 * CAPACITY)

    allocated_bytes = writer.path.stat().st_blocks * 512

    assert allocated_bytes >= layout.HEADER_BYTES + 16 * CAPACITY * layout.MARK_BYTES
    writer.close(1)


@pytest.mark.parametrize("file_bytes", [0, 1000, layout.HEADER_BYTES, layout.HEADER_BYTES + CAPACITY * 16 - 1])
def test_full_disk_is_refused_and_nothing_is_left(tmp_path: Path, file_bytes: int) -> None:
    """Training goes on unrecorded; half a file would be read as a dead rank, and fill the disk a little more."""
    with Program(programs.record_on_a_full_disk, tmp_path, CAPACITY, file_bytes) as program:
        refusal, open_files = program.said(), program.said()

    assert "takes no recording (File too large); free space there, or set TRAINSPAN_RECORDING_DIR" in refusal
    assert list(tmp_path.iterdir()) == []
    assert open_files == "0"


def test_directory_of_somebody_else_is_refused(tmp_path: Path) -> None:
    """A cluster's scratch directory is often made by another user; the message says which one and what to do."""
    tmp_path.chmod(0o500)
    try:
        with Program(programs.record_as_nobody, tmp_path, CAPACITY) as program:
            refusal = program.said()
    finally:
        tmp_path.chmod(0o700)

    assert f"{tmp_path} takes no recording (Permission denied)" in refusal
    assert list(tmp_path.iterdir()) == []


def test_directory_that_is_gone_is_refused(tmp_path: Path) -> None:
    """The last relay of a run removes its directory while a restarted rank is on its way there."""
    with pytest.raises(RecordingRefused, match="No such file or directory"):
        record_into(tmp_path / "gone")


def test_identity_that_does_not_fit_is_refused_and_nothing_is_left(tmp_path: Path) -> None:
    """What a launcher puts into the environment has no bound; the header has one."""
    identity = identity_of(run="x" * layout.IDENTITY_MAX_BYTES)

    with pytest.raises(RecordingRefused, match=r"the identity takes \d+ bytes of 3072; shorten the run id"):
        RecordingWriter.create(tmp_path, identity, CAPACITY, PROCESS_START_NS)

    assert list(tmp_path.iterdir()) == []


def test_event_log_that_cannot_be_made_leaves_no_ring(tmp_path: Path) -> None:
    """The two files are one recording: with one of them missing there is none."""
    with Program(programs.record_with_few_files, tmp_path, CAPACITY) as program:
        refusal, open_files = program.said(), program.said()

    assert "takes no recording (Too many open files)" in refusal
    assert list(tmp_path.iterdir()) == []
    assert open_files == "0"


def test_two_recordings_of_one_process_have_two_names(tmp_path: Path) -> None:
    """In two PID namespaces of one host two ranks may have the same PID."""
    writers = [record_into(tmp_path).writer for _ in range(2)]

    assert len({writer.path for writer in writers}) == 2
    for writer in writers:
        writer.close(1)


def test_late_event_hits_nobody_s_file(tmp_path: Path) -> None:
    """After the close the descriptor's number belongs to whoever opens the next file: it must not be written to."""
    writer, _marker = record_into(tmp_path)
    writer.close(1)
    with (tmp_path / "user.txt").open("wb", buffering=0) as first, (tmp_path / "more.txt").open("wb") as second:
        kept = writer.append_event({"ts": 1, "event": "late"})

        assert not kept
        assert first.tell() == second.tell() == 0
    assert {path.stat().st_size for path in tmp_path.glob("*.txt")} == {0}


def test_reader_removes_both_files(tmp_path: Path) -> None:
    """The relay frees the host's memory when it has taken a recording over; a second removal finds nothing to do."""
    writer, _marker = record_into(tmp_path)
    writer.close(1)
    reader = opened(writer.path)

    reader.remove()
    reader.remove()

    assert list(tmp_path.iterdir()) == []
    reader.close()
