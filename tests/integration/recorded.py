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
from trainspan.relay.timeline.records import RankStep
from trainspan.relay.timeline.steps import RankTimeline

REPOSITORY = Path(__file__).resolve().parents[2]
SCRIPTS = REPOSITORY / "tests" / "data" / "training"
PATIENCE_S = 240


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


class Run(NamedTuple):
    """One script that has ended. `lines`: the JSON it printed."""

    exit_code: int
    lines: list[dict[str, Any]]
    stderr: str
    recordings: list[Recording]


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
        stdout, stderr = self._process.communicate(timeout=PATIENCE_S)
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
    look = reader.look(final=True)
    timeline.gap(look.lost)
    steps = timeline.feed(look.marks)
    closed_ns = reader.closed_ns()
    unfinished = timeline.end(closed_ns or timeline.last_mark_ns or 0)
    marks = len(look.marks) // 2
    recording = Recording(
        reader.identity, steps, unfinished, reader.events(), closed_ns, marks, look.lost, timeline.invalid + reader.errors
    )
    reader.close()
    return recording


def phases_of(step: RankStep) -> list[str]:
    """The phases of a step in order, without the user's own code between them; a failed one ends with `!`."""
    named = [interval for interval in step.intervals if interval.phase is not Phase.OTHER]
    return [interval.phase.wire + "!" * interval.failed for interval in named]
