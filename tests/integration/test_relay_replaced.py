"""A relay that is killed while its ranks go on: the next one, or a replay, continues where it was."""

import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.integration.steered import (
    MARKS_PER_STEP,
    RING_MARKS,
    PointSeen,
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


EVERY_5_S = {"OTEL_METRIC_EXPORT_INTERVAL": "5000"}
EVERY_HALF_S = {"OTEL_METRIC_EXPORT_INTERVAL": "500"}


def series_in(folder: Path) -> dict[tuple[Any, ...], list[PointSeen]]:
    """Every series of the ranks that only grows, in the order in which it was told."""
    series = defaultdict(list)
    for point in points_in(folder):
        if point.rank is not None:
            series[point.instance, point.metric, point.attributes].append(point)
    return series


def falls_in(series: list[PointSeen]) -> list[PointSeen]:
    """Points that are less than the one before them, though nothing says that they count anew."""
    pairs = pairwise(series)
    return [after for before, after in pairs if before.start_ns == after.start_ns and after.value < before.value]


def all_counted(series: list[PointSeen]) -> float:
    """What was counted over all beginnings."""
    return sum({point.start_ns: point.value for point in series}.values())


def tell_of_work(rank: SteeredRank, times: int) -> None:
    """Tell what a script tells now and then, `times` times over by now."""
    now_ns = time.monotonic_ns()
    rank.tell(event="work", samples=100 * times, tokens=1000 * times)
    rank.tell(event="scalars", values={"loss": 1.0}, counters={"texts": 10 * times}, dropped=0)
    saved = {"start_ns": now_ns - 1000, "end_ns": now_ns, "ok": True, "blocking": True, "step": 1}
    rank.tell(event="checkpoint", kind="save", file="model.pt", bytes=64, **saved)


def test_over_two_relays_everything_is_counted_once(places: Places) -> None:
    """The ring has wrapped: what the second finds is a part of what the first has told, and some of it is new."""
    rank = SteeredRank(places.recordings)
    relay = start_relay(places.recordings, places.folder, **EVERY_5_S)
    for told in (0, 100, 200):
        wait_until(partial(has_told, places, "training.steps", told), "the relay has read so far")
        rank.step(100)  # the ring has room for 128
    tell_of_work(rank, 1)
    wait_until(
        lambda: has_told(places, "training.tokens", 1000) and has_told(places, "training.steps", 300), "all told"
    )
    wait_until(lambda: ranks_in(places.folder)[0]["told"]["events"] == 3, "the summary knows what was told")
    rank.step(20)
    kill(relay)
    rank.step(20)
    tell_of_work(rank, 2)
    rank.close()

    assert start_relay(places.recordings, places.folder, **EVERY_5_S).wait(PATIENCE_S) == 0

    series = series_in(places.folder)
    assert [falls_in(one) for one in series.values() if falls_in(one)] == []
    assert {
        name: {all_counted(one) for (_, metric, _), one in series.items() if metric == name} for name in ONCE
    } == ONCE
    began_ns = {point.start_ns for (_, metric, _), one in series.items() if metric in TOTALS for point in one}
    assert len(began_ns) == 1


ONCE = {
    "training.steps": {340.0},
    "training.step.duration": {340.0},
    "training.phase.duration": {340.0},
    "training.samples": {200.0},
    "training.tokens": {2000.0},
    "training.counter": {20.0},
    "training.checkpoint.duration": {2.0},
}
TOTALS = {"training.steps", "training.samples", "training.tokens", "training.counter", "training.time"}


def has_told(places: Places, metric: str, value: float) -> bool:
    """Whether the newest point of a metric has this value."""
    return [point.value for point in points_in(places.folder, metric)][-1:] == [value]


def test_no_series_falls_while_the_second_relay_begins(places: Places) -> None:
    """What it tells first it has from the summary: the ring holds a quarter of the steps."""
    rank = SteeredRank(places.recordings)
    relay = start_relay(places.recordings, places.folder, **EVERY_HALF_S)
    for told in range(0, 500, 100):
        wait_until(partial(has_told, places, "training.steps", told), "the relay has read so far")
        rank.step(100)
    wait_until(lambda: has_told(places, "training.steps", 500), "all steps are told")
    kill(relay)
    second = start_relay(places.recordings, places.folder, **EVERY_HALF_S)
    rank.step(5)
    wait_until(lambda: has_told(places, "training.steps", 505), "the second relay tells of them")
    rank.close()
    assert second.wait(PATIENCE_S) == 0

    series = series_in(places.folder)

    assert [falls_in(one) for one in series.values() if falls_in(one)] == []
