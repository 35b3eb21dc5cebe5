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
    points_in,
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


@pytest.mark.parametrize("behind", [0, 20])
def test_recording_is_deleted_once_all_it_held_is_on_disk(places: Places, behind: int) -> None:
    """A relay that is killed the moment after has nothing left in its memory that cannot be had again.

    The steps that the other rank has not come to wait for it, for ten seconds.
    """
    first, second = SteeredRank(places.recordings, 0, 2), SteeredRank(places.recordings, 1, 2)
    relay = start_relay(*places)
    first.step(50)
    second.step(50 - behind)
    wait_until(lambda: standings_in(places.folder).get(1, (0,))[0] == 50 - behind, "the relay has read the steps")
    first.close()

    wait_until(lambda: not first.recording.exists(), "the recording is deleted")
    kill(relay)

    assert standings_in(places.folder)[0] == (50, 49, "closed")
    assert [point.value for point in points_in(places.folder, "training.steps") if point.rank == 0] == [50]
    second.close()
    assert start_relay(*places).wait(PATIENCE_S) == 0
    assert standings_in(places.folder)[0] == (50, 49, "closed")


def test_how_a_rank_ended_stays_as_the_first_relay_found_out(places: Places) -> None:
    """It is looked at late by the next one, for which the process has been dead for as long as anybody knows."""
    rank, other = SteeredRank(places.recordings, 0, 2), SteeredRank(places.recordings, 1, 2)
    relay = start_relay(*places)
    for one in (rank, other):
        one.step(10)
    wait_until(lambda: standings_in(places.folder).get(0, (0,))[0] == 10, "the relay has read the steps")
    kept = {
        path: path.read_bytes() for path in (rank.recording, rank.recording.with_suffix(".events")) if path.exists()
    }
    rank.kill()
    wait_until(lambda: standings_in(places.folder)[0][2] == "died", "the end is in the summary")
    kill(relay)
    for path, content in kept.items():
        path.write_bytes(content)  # as if the relay had been killed before it had deleted them
        path.chmod(0o600)
    [found] = [told["ending"] for told in ranks_in(places.folder) if told["identity"]["rank"] == 0]
    other.close()

    assert start_relay(*places).wait(PATIENCE_S) == 0

    assert [told["ending"] for told in ranks_in(places.folder) if told["identity"]["rank"] == 0] == [found]
