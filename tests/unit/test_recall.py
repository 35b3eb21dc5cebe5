"""What a relay that begins reads of the run's ledger: enough, and never the steps of 16,000 ranks."""

import json
import os
from pathlib import Path

import pytest

from tests.unit.goodput_facts import begun, steps
from trainspan.relay.goodput.ledger import LedgerWriter
from trainspan.relay.recall import MOST_BYTES, files_to_read
from trainspan.relay.timeline.rank_summary import RankSummary
from trainspan.relay.timeline.summary import Summary
from trainspan.testing.builders import identity_of


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of a ledger without files."""
    folder = tmp_path / "ledger"
    folder.mkdir(mode=0o700)
    return folder


def write(folder: Path, node: str, began_ns: int, size_bytes: int = 0) -> Path:
    """A finished file of `node`, made to look as large as that."""
    before = set(folder.iterdir())
    writer = LedgerWriter(folder, node, began_ns)
    writer.append([begun(0), *steps(0, [1, 2])])
    writer.close()
    [path] = set(folder.iterdir()) - before
    if size_bytes:
        os.truncate(path, size_bytes)
    return path


def summary_of_node_0(folder: Path, *hosts: str) -> Path:
    """A summary in which rank 0 has run on these hosts, one attempt after the other."""
    summary = Summary("run-1")
    for attempt, host in enumerate(hosts):
        for rank in (0, 1):
            identity = identity_of(rank, attempt=attempt)._replace(host=host)
            summary.add(RankSummary(f"r{rank}-a{attempt}", identity, 1))
    path = folder.parent / "summary.json"
    path.write_text(json.dumps(summary.to_json()))
    return path


def test_small_ledger_is_read_whole(folder: Path) -> None:
    """What all nodes know of each other is worth having while it costs nothing."""
    files = [write(folder, node, 1) for node in ("n0", "n1", "n2")]

    assert files_to_read(folder, "n1", folder / "summary.json", pytest.fail) == files


def test_run_without_a_ledger_has_no_past(folder: Path) -> None:
    """The first relay of a run comes before its ledger."""
    assert files_to_read(folder / "none", "n1", folder / "summary.json", pytest.fail) == []


def test_of_a_large_ledger_own_files_and_those_of_rank_0_are_read(folder: Path) -> None:
    """A restart must not make each of 2,000 nodes read what all of them have written."""
    summary = summary_of_node_0(folder, "n3", "n0")
    paths = {node: write(folder, node, 1, MOST_BYTES // 4) for node in ("n0", "n1", "n2", "n3", "n4")}
    said: list[str] = []

    read = files_to_read(folder, "n1", summary, said.append)

    assert read == [paths["n0"], paths["n1"], paths["n3"]]
    assert len(said) == 1
    assert "3 of 5 files" in said[0]


def test_of_too_many_the_newest_are_read_and_in_their_order(folder: Path) -> None:
    """After a month what counts is how the run has fared of late."""
    old, newer, newest = (write(folder, "my-host", began_ns, MOST_BYTES // 2) for began_ns in (0x9, 0x10, 0x11))

    assert files_to_read(folder, "my-host", folder / "summary.json", lambda _: None) == sorted([newer, newest])
    assert old.exists()


def test_damaged_summary_and_foreign_names_keep_nobody_from_reading(folder: Path) -> None:
    """Whoever can write to a shared volume can put anything there."""
    own = write(folder, "n1", 1, MOST_BYTES)
    (folder / "x.jsonl").write_text("")
    (folder / "--zz--.packed").write_text("{}")
    summary = folder.parent / "summary.json"
    summary.write_text("{")

    assert files_to_read(folder, "n1", summary, lambda _: None) == [own]
