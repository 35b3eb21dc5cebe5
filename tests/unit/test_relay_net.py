"""What nobody thought of, in one recording or in one run, costs that one: the relay lives, and serves the others."""

import json
import time
from collections import defaultdict
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.unit.test_otlp_journal import file_size_limit
from trainspan.names import Phase
from trainspan.recording import layout
from trainspan.recording.reader import RecordingReader, Refusal, open_recording
from trainspan.recording.writer import RecordingWriter
from trainspan.relay.gpus import no_gpus
from trainspan.relay.pipeline import Pipeline
from trainspan.relay.tail import Sighting
from trainspan.role import Role
from trainspan.testing.builders import MarkTape, identity_of

UNTHINKABLE: dict[str, Any] = {}
"""An event that no reader lets through: it has no name."""


class Node:
    """A run folder, its pipeline, and recordings of this process that a test shows to it."""

    def __init__(self, place: Path):
        self.folder = place / "run"
        self.folder.mkdir(mode=0o700)
        self.said: list[str] = []
        self.pipeline = Pipeline(self.folder, {"TRAINSPAN_DIR": str(place)}, self.said.append, no_gpus())
        self._recordings = place / "recordings"
        self._recordings.mkdir(mode=0o700)
        self._writers: list[RecordingWriter] = []
        self._tapes: dict[Path, MarkTape] = {}
        self._numbers: defaultdict[Path, Iterator[int]] = defaultdict(count)
        self._has_left = False

    def rank(self, rank: int, role: str = Role.RANK) -> RecordingReader:
        """A recording, read."""
        identity = identity_of(rank, world_size=2)._replace(role=role)
        writer = RecordingWriter.create(self._recordings, identity, layout.CAPACITY_MIN, time.monotonic_ns())
        self._writers.append(writer)
        opened = open_recording(writer.path)
        assert not isinstance(opened, Refusal)
        return opened

    def show(self, reader: RecordingReader, *events: dict[str, Any], steps: int = 0, ended: str | None = None) -> None:
        """Show what one look at a recording gave."""
        tape = self._tapes.setdefault(reader.path, MarkTape(time.monotonic_ns()))
        tape.words = []
        for _ in range(steps):
            tape.spend(Phase.FORWARD, 100)
            tape.step(next(self._numbers[reader.path]), optimizer_ns=10)
        self.pipeline.take(Sighting(reader, tape.words, 0, list(events), ended), time.monotonic_ns())

    def leave(self) -> None:
        """Let the relay leave, once."""
        if not self._has_left:
            self._has_left = True
            self.pipeline.close(time.monotonic_ns(), 0.0)
            for writer in self._writers:
                writer.close(time.monotonic_ns())

    def steps(self) -> dict[int, int]:
        """Steps by rank, as the report would have them."""
        ranks = json.loads((self.folder / "summary.json").read_text())["ranks"]
        return {rank["identity"]["rank"]: rank["steps"] for rank in ranks}

    def errors(self) -> int:
        """The newest value of trainspan.recording.errors."""
        request = json.loads((self.folder / "metrics.jsonl").read_text().splitlines()[-1])
        metrics = request["resourceMetrics"][-1]["scopeMetrics"][0]["metrics"]
        (value,) = (m["sum"]["dataPoints"][0]["asInt"] for m in metrics if m["name"] == "trainspan.recording.errors")
        return int(value)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """One without recordings."""
    made = Node(tmp_path)
    yield made
    made.leave()


def test_recording_that_cannot_be_taken_is_given_up_and_the_others_are_told(node: Node) -> None:
    """A bug of ours that one rank's log brings out must not cost the node its telemetry."""
    bad, good = node.rank(0), node.rank(1)
    node.show(bad, steps=3)
    node.show(good, steps=3)

    node.show(bad, UNTHINKABLE)
    node.show(bad, UNTHINKABLE, steps=2)
    node.show(good, steps=2, ended="closed")
    node.show(bad, ended="closed")
    node.leave()

    (line,) = node.said
    assert str(bad.path) in line
    assert "KeyError" in line
    assert "follower.py" in line
    assert node.steps() == {0: 3, 1: 5}
    assert node.errors() == 1


def test_recording_that_is_given_up_is_kept_and_not_read_again(node: Node) -> None:
    """The next relay would fail over it, too; and whoever repairs that needs it."""
    bad = node.rank(0)

    node.show(bad, UNTHINKABLE)

    kept = sorted(path.name for path in bad.path.parent.iterdir())
    assert kept == [f"{bad.path.stem}.events.damaged", f"{bad.path.stem}.ring.damaged"]


def test_launcher_that_is_given_up_is_not_waited_for(node: Node) -> None:
    """The end of a rank waits for its launcher's word for as long as that lives."""
    launcher, rank = node.rank(0, Role.AGENT), node.rank(0)
    node.show(launcher)
    node.show(launcher, UNTHINKABLE)
    node.show(rank, steps=1, ended="died")

    node.pipeline.turn(time.monotonic_ns())

    assert not node.pipeline.busy()


def test_summary_that_the_disk_does_not_take_is_told_of_once(node: Node) -> None:
    """It is tried every few seconds, and the log lies on the same disk."""
    rank = node.rank(0)
    node.show(rank, steps=3)

    with file_size_limit(10):
        for seconds in range(0, 60, 6):
            node.pipeline.turn(time.monotonic_ns() + seconds * 1_000_000_000)

    node.leave()
    assert len([line for line in node.said if "summary.json cannot be written" in line]) == 1
    assert node.steps() == {0: 3}
