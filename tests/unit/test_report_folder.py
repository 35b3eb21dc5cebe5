"""Finding the run that is meant, and reading what its relays wrote."""

import json
import os
from pathlib import Path

import pytest

from tests.unit.report_runs import PLAIN_MS, rank_of, run_of
from trainspan.errors import RecordingError, RunNotFound
from trainspan.report.folder import find_run, load_run

LATER_S = 1_900_000_000


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A state directory with three runs; `llama-7` gave the newest news."""
    for age_s, run in enumerate(("llama-7", "llama-70", "demo-1")):
        folder = tmp_path / "runs" / run
        folder.mkdir(parents=True)
        (folder / "summary.json").write_text("{}", encoding="utf-8")
        when_s = 1_800_000_000 - age_s
        os.utime(folder / "summary.json", (when_s, when_s))
        os.utime(folder, (when_s - 100, when_s - 100))
    return tmp_path


def write_summary(folder: Path, name: str, *ranks: int) -> None:
    """Write what a node with these ranks would."""
    summary = run_of(*(rank_of(rank, [PLAIN_MS], world_size=4) for rank in ranks))
    (folder / name).write_text(json.dumps(summary.to_json()), encoding="utf-8")


def test_newest_run_is_the_one_that_last_gave_news(state: Path) -> None:
    """`trainspan report` without a word shows what runs or ran last, however old its folder is."""
    assert find_run(state, None) == state / "runs" / "llama-7"


@pytest.mark.parametrize("what", ["attempts", "recordings"])
def test_newer_run_that_holds_nothing_is_not_meant(what: str, state: Path) -> None:
    """A process that was killed in its first millisecond must not hide the run before it."""
    (state / "runs" / "empty" / what).mkdir(parents=True)
    os.utime(state / "runs" / "empty", (LATER_S, LATER_S))

    assert find_run(state, None) == state / "runs" / "llama-7"


def test_newer_run_that_is_recorded_and_not_read_yet_is_meant(state: Path) -> None:
    """With TRAINSPAN_RELAY=off, or in its first second: what is said of it says what to do."""
    memory = state / "memory"
    memory.mkdir()
    (memory / "r00000-a0-p1-00000000.ring").touch()
    (state / "runs" / "new" / "recordings").mkdir(parents=True)
    (state / "runs" / "new" / "recordings" / "host").symlink_to(memory)
    os.utime(state / "runs" / "new", (LATER_S, LATER_S))

    assert find_run(state, None) == state / "runs" / "new"


def test_run_that_holds_nothing_is_meant_where_there_is_no_other(tmp_path: Path) -> None:
    """Then it is what the reader has to be told of."""
    (tmp_path / "runs" / "empty").mkdir(parents=True)

    assert find_run(tmp_path, None).name == "empty"


@pytest.mark.parametrize(("wanted", "run"), [("demo-1", "demo-1"), ("de", "demo-1"), ("llama-7", "llama-7")])
def test_run_is_found_by_id_or_its_beginning(state: Path, wanted: str, run: str) -> None:
    """An id that is whole is meant, also where another begins with it."""
    assert find_run(state, wanted).name == run


def test_run_is_found_by_path(state: Path) -> None:
    """A folder copied from a cluster lies in no state directory."""
    folder = state / "runs" / "demo-1"

    assert find_run(Path("/nonexistent"), f"{folder}/") == folder


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ("llama", "'llama' begins the id of 2 runs, name one: llama-7, llama-70"),
        ("gpt", "no run 'gpt' in {state}/runs; there are: llama-7, llama-70, demo-1"),
        ("./gpt", "there is no folder gpt"),
    ],
)
def test_unclear_run_is_refused_with_the_choices(state: Path, wanted: str, message: str) -> None:
    """The next thing the reader types is one of them."""
    with pytest.raises(RunNotFound) as refusal:
        find_run(state, wanted)

    assert str(refusal.value) == message.format(state=state)


def test_no_run_at_all_says_how_to_record_one(tmp_path: Path) -> None:
    """A new user's first command may be the wrong one."""
    with pytest.raises(RunNotFound, match=r"no run in .*/runs; record one: trainspan run -- python train\.py"):
        find_run(tmp_path, None)


def test_summaries_of_all_nodes_are_merged(tmp_path: Path) -> None:
    """A run of many nodes leaves one file for each, and is one run."""
    write_summary(tmp_path, "summary.json", 0, 1)
    write_summary(tmp_path, "summary.1.json", 2, 3)

    loaded = load_run(tmp_path)

    assert [rank.identity.rank for rank in loaded.summary.in_order()] == [0, 1, 2, 3]


def test_run_without_a_summary_says_what_to_do(tmp_path: Path) -> None:
    """With TRAINSPAN_RELAY=off nobody has read the recordings yet."""
    with pytest.raises(RunNotFound, match=r"holds no summary.*trainspan replay"):
        load_run(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not JSON"),
        ("\xff", "is not JSON"),
        ("[" * 200_000, "is not JSON"),
        ("{}", "no summary of trainspan"),
        ('{"schema": "trainspan.summary", "version": 99, "run": "demo", "ranks": []}', "version 99"),
    ],
)
def test_torn_or_foreign_summary_is_refused_with_its_path(tmp_path: Path, content: str, message: str) -> None:
    """The reader must know which file to remove or to read with another version."""
    path = tmp_path / "summary.json"
    path.write_text(content, encoding="latin-1")

    with pytest.raises(RecordingError, match=message) as refusal:
        load_run(tmp_path)

    assert str(refusal.value).startswith(str(path))
