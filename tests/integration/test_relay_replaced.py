"""A relay that is killed while its ranks go on: the next one, or a replay, continues where it was."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.integration.steered import (
    MARKS_PER_STEP,
    RING_MARKS,
    SteeredRank,
    clean_environ,
    kill,
    ranks_in,
    standings_in,
    start_relay,
    wait_until,
)
from trainspan.recording import layout

PATIENCE_S = 60


class Places(NamedTuple):
    """`recordings`: where the ranks of this host record. `folder`: of their run."""

    recordings: Path
    folder: Path


@pytest.fixture
def places(tmp_path: Path) -> Places:
    """As they lie when TRAINSPAN_DIR is `tmp_path`."""
    folder = tmp_path / "runs" / "run-1"
    recordings = folder / "recordings" / os.uname().nodename
    recordings.mkdir(parents=True)
    for path in (recordings, *recordings.parents[:4]):
        path.chmod(0o700)
    return Places(recordings, folder)


@pytest.fixture
def rank(places: Places) -> Iterator[SteeredRank]:
    """One that has taken 50 steps, which are in the summary of a relay that was then killed."""
    rank = SteeredRank(places.recordings)
    first = start_relay(*places)
    rank.step(50)
    wait_until(lambda: standings_in(places.folder) == {0: (50, 49, "running")}, "50 steps are in the summary")
    kill(first)
    yield rank
    rank.kill()


def start_second_relay(places: Places) -> "subprocess.Popen[bytes]":
    """Another one, which has begun to read."""
    summary = places.folder / "summary.json"
    written_ns = summary.stat().st_mtime_ns
    relay = start_relay(*places)
    wait_until(lambda: summary.stat().st_mtime_ns != written_ns, "the second relay has written a summary")
    return relay


def replay(places: Places) -> None:
    """Fold what no relay has read."""
    command = [sys.executable, "-m", "trainspan", "replay", str(places.folder)]
    environ = clean_environ(TRAINSPAN_DIR=str(places.folder.parents[1]))
    # It has no endpoint to deliver to, and says so.
    subprocess.run(command, env=environ, check=False, capture_output=True, timeout=PATIENCE_S)


def test_report_goes_on_under_another_relay(places: Places, rank: SteeredRank) -> None:
    """The recording is deleted in the end: a report that has stayed behind would stay so for ever."""
    rank.step(20)
    second = start_second_relay(places)
    for _ in range(4):
        rank.step(50)  # the ring holds 128
        time.sleep(0.6)
    rank.close()

    assert second.wait(PATIENCE_S) == 0

    assert standings_in(places.folder) == {0: (270, 269, "closed")}
    assert [told["marks_lost"] for told in ranks_in(places.folder)] == [0]
    assert not rank.recording.exists()


def test_report_goes_on_with_a_replay(places: Places, rank: SteeredRank) -> None:
    """Which is how one saves what a relay has left behind."""
    rank.step(20)
    rank.close()

    replay(places)

    assert standings_in(places.folder) == {0: (70, 69, "closed")}
    assert not rank.recording.exists()


def test_marks_that_nobody_has_read_are_lost_and_no_others(places: Places, rank: SteeredRank) -> None:
    """The next relay finds the ring overwritten, and has no reason to warn of what the first one has read."""
    rank.step(200)
    rank.close()

    assert start_relay(*places).wait(PATIENCE_S) == 0

    [told] = ranks_in(places.folder)
    overwritten = 250 * MARKS_PER_STEP - RING_MARKS + layout.HALF_STORED
    assert told["marks_lost"] == overwritten - 50 * MARKS_PER_STEP
    assert told["steps"] == 50 + RING_MARKS // MARKS_PER_STEP - 1
