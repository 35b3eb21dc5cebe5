"""Several relays on one node write into one run folder, and none into another's files."""

from collections import defaultdict
from pathlib import Path

import pytest

from tests.integration.steered import (
    SteeredRank,
    kill,
    points_in,
    standings_in,
    start_relay,
    wait_until,
)
from trainspan.report.folder import load_run

PATIENCE_S = 60
OFTEN = {"OTEL_METRIC_EXPORT_INTERVAL": "500"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The run folder."""
    folder = tmp_path / "run-1"
    folder.mkdir(mode=0o700)
    return folder


def recording_dir(tmp_path: Path, name: str) -> Path:
    """Where the ranks of a host record."""
    directory = tmp_path / name
    directory.mkdir(mode=0o700)
    return directory


def instances_in(folder: Path, metric: str) -> dict[str, int]:
    """How many journals tell of a metric, by the instance they tell it of."""
    found = defaultdict(set)
    for journal in folder.glob("metrics*.jsonl"):
        for point in points_in(folder, metric, journal.name):
            found[point.instance].add(journal)
    return {instance: len(journals) for instance, journals in found.items()}


def test_ranks_with_relay_threads_are_all_in_the_report(tmp_path: Path, folder: Path) -> None:
    """`TRAINSPAN_RELAY=thread`: the ranks of a node have a relay each, and the same node."""
    directory = recording_dir(tmp_path, "recordings")
    ranks = [SteeredRank(directory, rank, 3, serve_into=folder, **OFTEN) for rank in range(3)]
    for rank in ranks:
        rank.step(20)
    wait_until(lambda: len(instances_in(folder, "trainspan.marks")) == 3, "all have told their metrics")

    for rank in ranks:
        rank.close()

    assert standings_in(folder) == dict.fromkeys(range(3), (20, 19, "closed"))
    assert sorted(rank.identity.rank for rank in load_run(folder).summary.in_order()) == [0, 1, 2]
    told_by = instances_in(folder, "trainspan.marks")
    assert "run-1-node0" in told_by
    assert set(told_by) - {"run-1-node0"} < {f"run-1-node0-rank{rank}" for rank in range(3)}
    assert set(told_by.values()) == {1}
    assert list(instances_in(folder, "training.restarts").values()) == [1]


def test_two_hosts_that_take_themselves_for_one_node_are_both_in_the_report(tmp_path: Path, folder: Path) -> None:
    """With RANK and WORLD_SIZE set by hand and nothing else, each host has node rank 0."""
    hosts = {host: recording_dir(tmp_path, host) for host in ("host-a", "host-b")}
    ranks = [SteeredRank(directory, rank, 2, host=host) for rank, (host, directory) in enumerate(hosts.items())]
    relays = [start_relay(directory, folder) for directory in hosts.values()]
    for rank in ranks:
        rank.step(30)
    wait_until(lambda: sorted(standings_in(folder)) == [0, 1], "both relays have written a summary")

    for rank, relay in zip(ranks, relays, strict=True):
        rank.close()
        assert relay.wait(PATIENCE_S) == 0

    assert standings_in(folder) == dict.fromkeys(range(2), (30, 29, "closed"))
    assert len(instances_in(folder, "trainspan.marks")) == 2


def test_relay_goes_on_from_what_one_beside_it_has_left(tmp_path: Path, folder: Path) -> None:
    """Its file has the name of a process that is gone; what is in it is not lost, and the file does not stay."""
    hosts = {host: recording_dir(tmp_path, host) for host in ("host-a", "host-b")}
    ranks = [SteeredRank(directory, rank, 2, host=host) for rank, (host, directory) in enumerate(hosts.items())]
    relays = []
    for rank, directory in zip(ranks, hosts.values(), strict=True):
        relays.append(start_relay(directory, folder))
        wait_until(lambda: len(list(folder.glob("summary*.json"))) == len(relays), "it has written a summary")
        rank.step(10)
    wait_until(lambda: standings_in(folder).get(1, (0,))[0] == 10, "the steps are in the summary")
    for relay in relays:
        kill(relay)
    ranks[1].step(300)  # the ring has 128
    ranks[1].close()

    assert start_relay(hosts["host-b"], folder).wait(PATIENCE_S) == 0

    assert standings_in(folder)[1] == (10 + 127, 309, "closed")
    assert [path.name for path in folder.glob("summary*.json")] == ["summary.json"]
    ranks[0].close()
