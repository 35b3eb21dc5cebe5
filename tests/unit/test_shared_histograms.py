"""Above 64 ranks a node sends one set of histograms for its ranks: each attempt's own."""

import json
import time
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from trainspan.names import Phase
from trainspan.recording import layout
from trainspan.recording.reader import Refusal, open_recording
from trainspan.recording.writer import RecordingWriter
from trainspan.relay.gpus import no_gpus
from trainspan.relay.pipeline import Pipeline
from trainspan.relay.tail import Sighting
from trainspan.testing.builders import MarkTape, identity_of


class Told(NamedTuple):
    """A point of `training.step.duration`."""

    steps: int
    start_unix_ns: int


def told_in(folder: Path) -> list[dict[int, Told]]:
    """By export, what was told of each attempt's steps."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [_told(json.loads(line)) for line in lines]


def _told(request: Any) -> dict[int, Told]:
    found = {}
    for under in request["resourceMetrics"]:
        attributes = {pair["key"]: pair["value"] for pair in under["resource"]["attributes"]}
        for metric in under["scopeMetrics"][0]["metrics"]:
            if metric["name"] == "training.step.duration":
                (point,) = metric["histogram"]["dataPoints"]
                attempt = int(attributes["training.attempt"]["intValue"])
                found[attempt] = Told(int(point["count"]), int(point["startTimeUnixNano"]))
    return found


def test_each_attempt_counts_its_own_steps_from_its_own_beginning(tmp_path: Path) -> None:
    """A rate over a restart, and a mean step after it, would be those of both attempts together."""
    folder = tmp_path / "run"
    folder.mkdir(mode=0o700)
    environ = {"TRAINSPAN_DIR": str(tmp_path), "OTEL_METRIC_EXPORT_INTERVAL": "1"}
    pipeline = Pipeline(folder, environ, lambda _: None, no_gpus())
    writers = []

    for attempt, steps in enumerate((5, 3)):
        identity = identity_of(world_size=100, attempt=attempt)
        writers.append(RecordingWriter.create(tmp_path, identity, layout.CAPACITY_MIN, time.monotonic_ns()))
        reader = open_recording(writers[-1].path)
        assert not isinstance(reader, Refusal)
        tape, numbers = MarkTape(time.monotonic_ns()), count()
        for _ in range(steps):
            tape.spend(Phase.FORWARD, 100)
            tape.step(next(numbers))
        pipeline.turn(time.monotonic_ns())
        pipeline.take(Sighting(reader, tape.words, 0, [], "closed"), time.monotonic_ns())
        for _ in range(2):
            pipeline.turn(time.monotonic_ns() + 10_000_000)
    pipeline.close(time.monotonic_ns() + 20_000_000, 0.0)

    told = told_in(folder)
    first, last = told[0][0], told[-1][1]
    assert [(at.get(0, first).steps, at.get(1, last).steps) for at in told] == [(5, 3)] * len(told)
    assert [0 in at for at in told] == sorted((0 in at for at in told), reverse=True)
    assert 0 not in told[-1]
    assert last.start_unix_ns > first.start_unix_ns
    assert {at[1].start_unix_ns for at in told if 1 in at} == {last.start_unix_ns}
    for writer in writers:
        writer.close(time.monotonic_ns())
