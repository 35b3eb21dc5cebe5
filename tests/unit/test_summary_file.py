"""Which file a relay writes for the report, beside other relays."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.unit.report_runs import PLAIN_MS, rank_of, run_of
from trainspan.relay.otlp.claims import host_in_names
from trainspan.relay.summary_file import SummaryFile

HOLDS = """\
import sys
from pathlib import Path
from trainspan.relay.summary_file import SummaryFile
for _ in range(int(sys.argv[2])):
    held = SummaryFile(Path(sys.argv[1]), 0)
print(held.path, flush=True)
sys.stdin.read()
"""


@contextmanager
def relay_beside(folder: Path, *, second: bool = False) -> Iterator[Path]:
    """The file of a relay that lives: the node's, or with `second` one of its own."""
    command = [sys.executable, "-c", HOLDS, str(folder), "2" if second else "1"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as relay:
        assert relay.stdout is not None
        yield Path(relay.stdout.readline().strip())


def write(path: Path, rank: int, run: str = "run-1") -> None:
    """A summary of one rank."""
    summary = run_of(rank_of(rank, [PLAIN_MS]))
    summary.run = run
    path.write_text(json.dumps(summary.to_json()), encoding="utf-8")


@pytest.mark.parametrize(("node_rank", "name"), [(0, "summary.json"), (3, "summary.3.json")])
def test_relay_alone_has_the_file_of_its_node(tmp_path: Path, node_rank: int, name: str) -> None:
    """One relay after the other writes the same file, so that the run's past stays in it."""
    for _ in range(2):
        file = SummaryFile(tmp_path, node_rank)
        file.release()

        assert (file.path, file.beside) == (tmp_path / name, False)


def test_relay_beside_another_has_a_file_of_its_own(tmp_path: Path) -> None:
    """Each writes its file whole: in one they would destroy each other's ranks."""
    with relay_beside(tmp_path) as held:
        file = SummaryFile(tmp_path, 0)

    assert held == tmp_path / "summary.json"
    assert file.beside
    assert file.path != held
    assert file.path.match("summary*.json")


def test_relay_that_was_killed_holds_nothing(tmp_path: Path) -> None:
    """The next one is to find the run's past where it looks for it."""
    with relay_beside(tmp_path):
        pass

    assert SummaryFile(tmp_path, 0).path == tmp_path / "summary.json"


def test_what_a_relay_of_this_host_has_left_is_taken_over(tmp_path: Path) -> None:
    """With a thread in each of eight ranks, every restart would leave seven files more."""
    left = tmp_path / f"summary.{host_in_names()}-1.json"
    write(left, 5)
    file = SummaryFile(tmp_path, 0)

    found = file.take_left_behind("run-1")
    still_there = left.exists()
    file.remove_left_behind()

    assert [rank.identity.rank for rank in found.in_order()] == [5]
    assert still_there  # until it is in another file
    assert [path.name for path in tmp_path.iterdir()] == [".summary.json.lock"]


def test_what_another_writes_or_nobody_understands_is_left(tmp_path: Path) -> None:
    """It is somebody's, or the report is to say what is wrong with it."""
    others = [
        tmp_path / name for name in (f"summary.{host_in_names()}-2.json", "summary.other-2.json", "summary.2.json")
    ]
    for path in others:
        write(path, 1, run="another" if path is others[0] else "run-1")
    damaged = tmp_path / f"summary.{host_in_names()}-3.json"
    damaged.write_text("{")
    with relay_beside(tmp_path, second=True) as held:
        write(held, 1)
        file = SummaryFile(tmp_path, 1)

        found = file.take_left_behind("run-1")
        file.remove_left_behind()

    assert not found.ranks
    assert all(path.exists() for path in (*others, damaged, held))
