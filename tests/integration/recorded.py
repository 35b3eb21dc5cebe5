"""Runs training scripts as users do, with and without trainspan, and reads what was recorded."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from trainspan.identity import Identity
from trainspan.names import Phase
from trainspan.recording.reader import Refusal, open_recording
from trainspan.relay.timeline.records import Interval, RankStep
from trainspan.relay.timeline.steps import RankTimeline

REPOSITORY = Path(__file__).resolve().parents[2]
SCRIPTS = REPOSITORY / "tests" / "data" / "training"
PATIENCE_S = 480


class Recording(NamedTuple):
    """One recording, read after its process has ended."""

    identity: Identity
    steps: list[RankStep]
    unfinished: RankStep | None
    events: list[dict[str, Any]]
    closed_ns: int | None
    marks: int
    lost: int
    invalid: int
    early: list[Interval]


class Run(NamedTuple):
    """One script that has ended. `lines`: the JSON it printed."""

    exit_code: int
    lines: list[dict[str, Any]]
    stderr: str
    recordings: list[Recording]


class Pair(NamedTuple):
    """The same script, once by itself and once recorded."""

    alone: Run
    recorded: Run

    def differences(self, *apart: str) -> list[dict[str, Any]]:
        """For each line that was printed, what differs in it: (alone, recorded). Fields in `apart` may."""
        assert len(self.alone.lines) == len(self.recorded.lines) > 0
        return [
            {name: (line[name], other[name]) for name in line if name not in apart and line[name] != other[name]}
            for line, other in zip(_sorted(self.alone.lines), _sorted(self.recorded.lines), strict=True)
        ]

    def recording_of(self, scenario: str, rank: int = 0) -> Recording:
        """The one recording of the process that ran `scenario`."""
        [line] = [
            line for line in self.recorded.lines if line.get("scenario") == scenario and line.get("rank", rank) == rank
        ]
        [recording] = [found for found in self.recorded.recordings if found.identity.pid == line["pid"]]
        return recording


class Training:
    """One script that is running."""

    def __init__(self, command: list[str], state: Path | None, more: dict[str, str]):
        self._state = state
        environ = {**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1", **_switches(state), **more}
        self._process = subprocess.Popen(
            command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=REPOSITORY
        )

    def ended(self) -> Run:
        """Wait for its end."""
        try:
            stdout, stderr = self._process.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            raise
        lines = [json.loads(line) for line in stdout.splitlines() if line.startswith("{")]
        recordings = recordings_below(self._state) if self._state else []
        return Run(self._process.returncode, lines, stderr, recordings)


def start(script: str, *arguments: str, state: Path | None = None, **more: str) -> Training:
    """Start a script of `tests/data/training`; it records below `state`, or not at all.

    Args:
        script: its file name.
        arguments: its arguments.
        state: TRAINSPAN_DIR.
        more: environment variables.
    """
    return Training([sys.executable, str(SCRIPTS / script), *arguments], state, more)


def start_ranks(ranks: int, script: str, *arguments: str, state: Path | None = None, **more: str) -> Training:
    """The same under torchrun."""
    # The shared store of torch 2.13 leaves stale keys to a second rendezvous on gloo.
    more = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", **more}
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    return Training([sys.executable, *launcher, str(SCRIPTS / script), *arguments], state, more)


def run_both(script: str, *arguments: str, state: Path, ranks: int | None = None) -> Pair:
    """Run a script by itself and, at the same time, recorded below `state`; under torchrun if there are `ranks`."""
    runs = [
        start(script, *arguments, state=place) if ranks is None else start_ranks(ranks, script, *arguments, state=place)
        for place in (None, state)
    ]
    return Pair(*(run.ended() for run in runs))


def _sorted(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(lines, key=lambda line: (str(line.get("scenario")), str(line.get("name")), line.get("rank", 0)))


def _switches(state: Path | None) -> dict[str, str]:
    if state is None:
        return {}
    return {
        "TRAINSPAN_ENABLED": "1",
        "TRAINSPAN_RELAY": "off",
        "TRAINSPAN_DIR": str(state),
        "TRAINSPAN_RING_MARKS": "65536",
    }


def recordings_below(directory: Path) -> list[Recording]:
    """Every recording below `directory`, by rank and then process."""
    found = [read(path) for path in sorted(directory.rglob("*.ring"))]
    return sorted(found, key=lambda recording: (recording.identity.rank, recording.identity.pid))


def read(path: Path) -> Recording:
    """The recording at `path`, of a process that has ended."""
    reader = open_recording(path)
    assert not isinstance(reader, Refusal), reader
    timeline = RankTimeline()
    events = reader.events()
    for event in events:
        if event["event"] == "phase_name":
            timeline.name(event["number"], event["name"])
    look = reader.look(final=True)
    timeline.gap(look.lost)
    steps = timeline.feed(look.marks)
    closed_ns = reader.closed_ns()
    unfinished = timeline.end(closed_ns or timeline.last_mark_ns or 0)
    recording = Recording(
        identity=reader.identity,
        steps=steps,
        unfinished=unfinished,
        events=events,
        closed_ns=closed_ns,
        marks=len(look.marks) // 2,
        lost=look.lost,
        invalid=timeline.invalid + reader.errors,
        early=timeline.early,
    )
    reader.close()
    return recording


def phases_of(step: RankStep) -> list[str]:
    """The phases of a step in order, without the user's own code between them; a failed one ends with `!`."""
    named = [interval for interval in step.intervals if interval.phase is not Phase.OTHER]
    return [interval.phase.wire + "!" * interval.failed for interval in named]


def partitions(step: RankStep) -> bool:
    """Whether the intervals of `step` fill it without gap or overlap."""
    ends = [step.start_ns, *(interval.end_ns for interval in step.intervals)]
    starts = [*(interval.start_ns for interval in step.intervals), step.end_ns]
    return ends == starts and all(interval.start_ns < interval.end_ns for interval in step.intervals)


def in_good_order(recording: Recording) -> bool:
    """Whether nothing was lost or senseless, every step adds up, they follow each other, and the end was noted."""
    follow = all(
        left.end_ns == right.start_ns for left, right in zip(recording.steps, recording.steps[1:], strict=False)
    )
    numbered = [step.number for step in recording.steps] == list(range(len(recording.steps)))
    whole = not recording.lost and not recording.invalid and recording.closed_ns is not None
    return follow and numbered and whole and all(partitions(step) for step in recording.steps)
