"""A rank that takes the steps it is told to, and relays to be killed beside it: real processes, and no torch.

As a program: DIRECTORY OPTIONS, and on its input one command a line: `step COUNT`, `event JSON`, `close`.
"""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from trainspan.names import Phase
from trainspan.record.marker import make_marker
from trainspan.recording.writer import RecordingWriter
from trainspan.relay.process import start_thread
from trainspan.testing.builders import identity_of

RING_MARKS = 1024
MARKS_PER_STEP = 8
PATIENCE_S = 60


class PointSeen(NamedTuple):
    """One point of a cumulative metric. `value`: of a histogram, its count."""

    instance: str
    rank: int | None
    metric: str
    attributes: tuple[Any, ...]
    start_ns: int
    time_ns: int
    value: float


class SteeredRank:
    """One of them, in a process of its own.

    Args:
        directory: where it records.
        rank: its rank; all are on one node, unless `host` says otherwise.
        world_size: of the job.
        host: where it says it runs.
        serve_into: the run folder that a relay thread of its own serves; None: it has no such thread.
        environ: its settings.
    """

    def __init__(
        self,
        directory: Path,
        rank: int = 0,
        world_size: int = 1,
        host: str | None = None,
        serve_into: Path | None = None,
        **environ: str,
    ):
        asked = {"rank": rank, "world_size": world_size, "host": host, "serve_into": serve_into and str(serve_into)}
        command = [sys.executable, __file__, str(directory), json.dumps(asked)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=clean_environ(**environ)
        )
        self.recording = Path(self._answer())

    def step(self, count: int) -> None:
        """Take so many steps."""
        self._command(f"step {count}")

    def tell(self, **event: Any) -> None:
        """Write an event."""
        self._command(f"event {json.dumps(event)}")

    def close(self) -> None:
        """Close the recording in good order, and end."""
        self._command("close")
        self._process.communicate(timeout=PATIENCE_S)

    def kill(self) -> None:
        """End without a word."""
        self._process.kill()
        self._process.communicate(timeout=PATIENCE_S)

    def _command(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        self._answer()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


def clean_environ(**more: str) -> dict[str, str]:
    """The environment without settings of trainspan and OpenTelemetry, but for `more`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "TRAINSPAN_"))}
    return kept | more


def start_relay(directory: Path, folder: Path, **environ: str) -> "subprocess.Popen[bytes]":
    """A relay that serves `directory` and writes into the run folder."""
    command = [sys.executable, "-m", "trainspan.relay", str(directory), "--run-folder", str(folder)]
    with (folder / "relay.test.log").open("ab") as log:
        return subprocess.Popen(command, env=clean_environ(**environ), stderr=log)


def kill(relay: "subprocess.Popen[bytes]") -> None:
    """End a relay as the kernel does when memory is short."""
    relay.kill()
    relay.wait(PATIENCE_S)


def wait_until(is_so: Callable[[], bool], what: str) -> None:
    """Return once `is_so()`."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline_s, f"after {PATIENCE_S} s: {what} is not so"
        time.sleep(0.01)


def ranks_in(folder: Path) -> list[dict[str, Any]]:
    """What the summaries of a run folder hold of each process."""
    files = sorted(folder.glob("summary*.json"))
    return [rank for file in files for rank in json.loads(file.read_bytes())["ranks"]]


def standings_in(folder: Path) -> dict[int, tuple[int, int | None, str]]:
    """By rank, as the summaries have it: how many steps, the number of the last one, how it stands."""
    return {
        rank["identity"]["rank"]: (rank["steps"], rank["last_step"], rank["ending"]["how"]) for rank in ranks_in(folder)
    }


def points_in(folder: Path, metric: str | None = None, journals: str = "metrics*.jsonl") -> list[PointSeen]:
    """The points of a metric, or of all that only ever grow, in the journals of a run folder, in order."""
    found = []
    for journal in sorted(folder.glob(journals)):
        *lines, _being_written = journal.read_bytes().split(b"\n")
        for line in lines:
            for under in json.loads(line)["resourceMetrics"]:
                who = _attributes(under["resource"])
                for one in (one for scope in under["scopeMetrics"] for one in scope["metrics"]):
                    if metric is None or one["name"] == metric:
                        found += _points(who, one)
    return found


def _points(who: dict[str, Any], metric: dict[str, Any]) -> list[PointSeen]:
    grows = [metric[kind] for kind in ("sum", "histogram") if kind in metric and metric[kind].get("isMonotonic", True)]
    return [
        PointSeen(
            who["service.instance.id"],
            who.get("training.rank"),
            metric["name"],
            tuple(_attributes(point).values()),
            int(point["startTimeUnixNano"]),
            int(point["timeUnixNano"]),
            float(next(point[kind] for kind in ("asInt", "asDouble", "count") if kind in point)),
        )
        for kind in grows
        for point in kind["dataPoints"]
    ]


def _attributes(of: dict[str, Any]) -> dict[str, Any]:
    found = {one["key"]: next(iter(one["value"].items())) for one in of.get("attributes", ())}
    return {key: int(value) if kind == "intValue" else value for key, (kind, value) in found.items()}


def _take_steps(directory: Path, asked: dict[str, Any]) -> None:
    identity = identity_of(asked["rank"], world_size=asked["world_size"])
    identity = identity._replace(pid=os.getpid(), host=asked["host"] or os.uname().nodename)
    writer = RecordingWriter.create(directory, identity, RING_MARKS, time.monotonic_ns())
    marker = make_marker(threading.get_ident)
    marker.attach(writer.words, RING_MARKS)
    if asked["serve_into"]:
        start_thread(writer.path, Path(asked["serve_into"]), os.environ)
    print(writer.path, flush=True)
    for line in sys.stdin:
        command, _, argument = line.strip().partition(" ")
        if command == "step":
            for _ in range(int(argument)):
                for phase in (Phase.DATA_WAIT, Phase.FORWARD, Phase.BACKWARD):
                    marker.resume(marker.enter(phase))
                marker.step(marker.enter(Phase.OPTIMIZER))
        elif command == "event":
            writer.append_event({"ts": time.monotonic_ns(), **json.loads(argument)})
        else:
            writer.close(time.monotonic_ns())
        print("done", flush=True)
        if command == "close":
            return


if __name__ == "__main__":
    _take_steps(Path(sys.argv[1]), json.loads(sys.argv[2]))
