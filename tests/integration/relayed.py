"""Runs training scripts with a relay, as users do, and reads what it exported."""

import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from trainspan.testing.otlp_sink import OtlpSink, ReceivedItem, attributes_of

REPOSITORY = Path(__file__).resolve().parents[2]
SCRIPTS = REPOSITORY / "tests" / "data" / "training"
PATIENCE_S = 480


class Ended(NamedTuple):
    """A script that has ended, at `at_s` of the monotonic clock. `lines`: the JSON it printed."""

    exit_code: int
    at_s: float
    lines: list[dict[str, Any]]
    stderr: str


class SpanSeen(NamedTuple):
    """One span as it came in. Ids are hexadecimal; no parent is the empty string."""

    name: str
    trace: str
    span: str
    parent: str
    start_ns: int
    end_ns: int
    attributes: dict[str, Any]
    error: str | None
    links: tuple[str, ...]
    resource: dict[str, Any]

    @property
    def duration_ns(self) -> int:
        """How long it took."""
        return self.end_ns - self.start_ns


def train(script: str, *arguments: str, state: Path, environ: Mapping[str, str], ranks: int | None = None) -> Ended:
    """Run a script of `tests/data/training` to its end; it is recorded below `state`.

    Args:
        script: its file name.
        arguments: its arguments.
        state: TRAINSPAN_DIR.
        environ: more environment variables.
        ranks: under torchrun, with that many; None: plain Python.
    """
    launcher = [sys.executable] if ranks is None else [*TORCHRUN, f"--nproc-per-node={ranks}"]
    return train_with(*launcher, str(SCRIPTS / script), *arguments, state=state, environ=environ)


def train_with(*command: str, state: Path, environ: Mapping[str, str]) -> Ended:
    """Run `command` to its end; what it trains is recorded below `state`."""
    everything = training_environ(state, environ)
    done = subprocess.run(command, env=everything, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return Ended(done.returncode, time.monotonic(), lines, done.stderr)


def training_environ(state: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of a training that is recorded below `state`, with `environ` in it."""
    return {
        **os.environ,
        "TRAINSPAN_ENABLED": "1",
        "TRAINSPAN_DIR": str(state),
        "OMP_NUM_THREADS": "1",
        # The shared store of torch 2.13 leaves stale keys to a second rendezvous on gloo.
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        **environ,
    }


TORCHRUN = (sys.executable, "-m", "torch.distributed.run")


def command_line(*arguments: str, environ: Mapping[str, str]) -> int:
    """The exit code of `trainspan ARGUMENTS`."""
    command = [sys.executable, "-m", "trainspan", *arguments]
    return subprocess.run(command, env={**os.environ, **environ}, timeout=PATIENCE_S, check=False).returncode


def run_folder(state: Path) -> Path:
    """The one run folder below `state`."""
    (folder,) = (state / "runs").iterdir()
    return folder


def wait_for_relay(state: Path, timeout_s: float = 30) -> Path:
    """The one run folder below `state`, once its relay has left."""
    return _left(run_folder(state), timeout_s)


def wait_for_relays(state: Path, timeout_s: float = 30) -> list[Path]:
    """Every run folder below `state`, once their relays have left."""
    return [_left(folder, timeout_s) for folder in sorted((state / "runs").iterdir())]


def _left(folder: Path, timeout_s: float) -> Path:
    """`folder`, once its relay has left: it takes the link to the recordings away last."""
    deadline = time.monotonic() + timeout_s
    # Hidden: the lock that two ranks who came at the same moment took.
    while any(not entry.name.startswith(".") for entry in (folder / "recordings").iterdir()):
        if time.monotonic() > deadline:
            log = "\n".join(path.read_text() for path in folder.glob("relay.*.log"))
            raise AssertionError(f"the relay is still there after {timeout_s} s; its log: {log}")
        time.sleep(0.05)
    return folder


def spans_of(sink: OtlpSink) -> list[SpanSeen]:
    """Every span that came in."""
    return [_seen(item) for item in sink.spans()]


def _seen(item: ReceivedItem) -> SpanSeen:
    span = item.item
    return SpanSeen(
        span.name,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        attributes_of(span.attributes),
        span.status.message if span.status.code == 2 else None,
        tuple(link.span_id.hex() for link in span.links),
        item.resource,
    )


def by_trace(spans: list[SpanSeen]) -> dict[str, list[SpanSeen]]:
    """The spans by the hexadecimal id of their trace."""
    traces: dict[str, list[SpanSeen]] = defaultdict(list)
    for span in spans:
        traces[span.trace].append(span)
    return dict(traces)


def latest_numbers(sink: OtlpSink, metric: str) -> dict[tuple[Any, ...], float]:
    """The last value of each series of `metric`, by (rank, values of its attributes)."""
    latest: dict[tuple[Any, ...], float] = {}
    for item in sink.metrics():
        if item.item.name != metric:
            continue
        for point in (item.item.sum if item.item.HasField("sum") else item.item.gauge).data_points:
            value = point.as_double if point.HasField("as_double") else float(point.as_int)
            key = (item.resource.get("training.rank"), *attributes_of(point.attributes).values())
            latest[key] = value
    return latest
