"""What a save has written into a directory is measured by one short look at it."""

import os
from itertools import count
from pathlib import Path

import pytest

from trainspan.record.directory_size import LEAST_PATIENCE_NS, bytes_written_into

S = 1_000_000_000


def write(file: Path, size: int, at_s: int) -> None:
    """Write a file that was last written then."""
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(b"x" * size)
    os.utime(file, (at_s, at_s))


def test_files_of_a_save_are_added_up_also_in_folders(tmp_path: Path) -> None:
    """With DeepSpeed and FSDP the shards of the optimizer lie in a folder of their own."""
    write(tmp_path / "model.safetensors", 3000, 1000)
    write(tmp_path / "rng_state.pth", 14, 1003)
    write(tmp_path / "global_step500" / "optim_states.pt", 6000, 1001)

    assert bytes_written_into(str(tmp_path), 4 * S) == 9014
    assert bytes_written_into(os.fsencode(tmp_path), 4 * S) == 9014


def test_what_was_there_before_is_no_part_of_it(tmp_path: Path) -> None:
    """Some save into the folder of the whole run, with the data set beside it, or over a save of more ranks."""
    write(tmp_path / "model.safetensors", 3000, 1000)
    write(tmp_path / "before" / "model.safetensors", 5000, 900)
    (tmp_path / "link").symlink_to(tmp_path / "model.safetensors")
    (tmp_path / "around").symlink_to(tmp_path, target_is_directory=True)

    assert bytes_written_into(str(tmp_path), 4 * S) == 3000


def test_clock_of_the_file_system_need_not_be_ours(tmp_path: Path) -> None:
    """A server sets the time of what is written to it, and may be hours off."""
    write(tmp_path / "a", 10, 4_000_000_000)
    write(tmp_path / "b", 20, 4_000_000_002)

    assert bytes_written_into(str(tmp_path), S) == 30


@pytest.mark.parametrize(("took_ns", "found"), [(S, None), (100 * 15 * LEAST_PATIENCE_NS, 100)])
def test_look_that_takes_too_long_is_given_up(tmp_path: Path, took_ns: int, found: int | None) -> None:
    """Where each file is a request to a server, a thousand of them would hold up training; a long save allows more."""
    for number in range(10):
        write(tmp_path / str(number), 10, 1000)
    clock = count(0, LEAST_PATIENCE_NS)

    assert bytes_written_into(str(tmp_path), took_ns, lambda: next(clock)) == found


def test_empty_directory_has_no_size(tmp_path: Path) -> None:
    """Nothing was written here, whatever was written elsewhere: a store of another kind behind that name."""
    assert bytes_written_into(str(tmp_path), S) is None
