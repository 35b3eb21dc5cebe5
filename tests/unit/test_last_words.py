"""How the command of `trainspan run` ended, from who started it to the relay."""

import stat
from pathlib import Path

import pytest

from trainspan.recording.last_words import LastWords


def test_what_is_noted_is_read(tmp_path: Path) -> None:
    """By another process, in the words of the torchrun agent."""
    words, nested = (LastWords(tmp_path / "state", "20261122-1") for _ in range(2))

    words.started(11)
    nested.started(12)
    nested.ended(12, 3)
    words.ended(11, -9)

    noted = LastWords(tmp_path / "state", "20261122-1").read()
    times_ns = [event.pop("ts") for event in noted]
    assert times_ns == sorted(times_ns)
    assert noted == [
        {"event": "worker_started", "pid": 11},
        {"event": "worker_started", "pid": 12},
        {"event": "worker_ended", "pid": 12, "exit_code": 3, "signal": None},
        {"event": "worker_ended", "pid": 11, "exit_code": -9, "signal": "SIGKILL"},
    ]
    assert stat.S_IMODE((tmp_path / "state" / "launches").stat().st_mode) == 0o700


def test_nothing_is_left_and_nothing_else_is_taken(tmp_path: Path) -> None:
    """A directory that the user has made is the user's, also when it is empty."""
    made, given = LastWords(tmp_path / "made", "one"), LastWords(tmp_path / "given", "one")
    (tmp_path / "given").mkdir()

    for words in (made, given):
        words.started(1)
        words.forget()

    assert [path.name for path in tmp_path.rglob("*")] == ["given"]


@pytest.mark.parametrize("launch", [None, "", "../up", "a/b", ".hidden"])
def test_launch_that_names_no_file_is_nobodys(launch: str | None, tmp_path: Path) -> None:
    """The id comes from the environment."""
    words = LastWords(tmp_path, launch)

    words.started(1)
    words.forget()

    assert (words.read(), list(tmp_path.iterdir())) == ([], [])


@pytest.mark.parametrize("held", [b"\xff\n", b"{\n", b"[]\n", b'{"pid": 1}\n', b"[" * 100_000])
def test_damage_says_nothing(held: bytes, tmp_path: Path) -> None:
    """The relay goes on, as if nobody had told it."""
    (tmp_path / "launches").mkdir(mode=0o700)
    (tmp_path / "launches" / "one").write_bytes(held)

    assert LastWords(tmp_path, "one").read() == []
