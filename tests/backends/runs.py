"""Real runs into a real stack, what their relay wrote, and what the report says of them."""

import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from opentelemetry.sdk.trace import ReadableSpan

from tests.backends.telemetry import new_run
from tests.integration.relayed import Ended, run_folder, train, train_with, wait_for_relay
from trainspan.relay.otlp.otlp_json import decode

# Short enough for a run of seconds to be seen while it runs.
METRIC_INTERVAL_MS = 200
DEMO_STEPS = 12


class Run(NamedTuple):
    """A run that is over. `folder`: its run folder, below `state`."""

    name: str
    state: Path
    folder: Path
    ended: Ended

    def report(self) -> dict[str, Any]:
        """What `trainspan report --json` says."""
        command = [sys.executable, "-m", "trainspan", "report", "--json", str(self.folder)]
        said = subprocess.run(command, capture_output=True, text=True, check=True)
        found: dict[str, Any] = json.loads(said.stdout)
        return found

    def log(self) -> str:
        """What the relay said."""
        return "".join(path.read_text() for path in self.folder.glob("relay.*.log"))

    def written_spans(self) -> dict[str, dict[str, ReadableSpan]]:
        """Every span the relay wrote, by trace and by span, in hexadecimal."""
        return spans_in(self.folder)

    def written_exports(self) -> int:
        """How many times the relay exported metrics."""
        return len((self.folder / "metrics.jsonl").read_bytes().splitlines())


def spans_in(folder: Path) -> dict[str, dict[str, ReadableSpan]]:
    """Every span in a run folder, by trace and by span, in hexadecimal."""
    traces: dict[str, dict[str, ReadableSpan]] = defaultdict(dict)
    for line in (folder / "traces.jsonl").read_bytes().splitlines():
        for span in decode("traces", line):
            traces[f"{span.context.trace_id:032x}"][f"{span.context.span_id:016x}"] = span
    return dict(traces)


def demo(*, state: Path, environ: Mapping[str, str]) -> Run:
    """`trainspan demo`, which waits for its relay itself."""
    name = new_run()
    command = [sys.executable, "-m", "trainspan", "demo", "--steps", str(DEMO_STEPS)]
    own = {"TRAINSPAN_RUN_ID": name, "OTEL_METRIC_EXPORT_INTERVAL": str(METRIC_INTERVAL_MS)}
    ended = train_with(*command, state=state, environ={**own, **environ})
    return Run(name, state, run_folder(state), ended)


def run(
    script: str, *arguments: str, state: Path, environ: Mapping[str, str], ranks: int | None = None, name: str = ""
) -> Run:
    """A run of a script of `tests/data/training`, once its relay has left."""
    name = name or new_run()
    own = {"TRAINSPAN_RUN_ID": name, "OTEL_METRIC_EXPORT_INTERVAL": str(METRIC_INTERVAL_MS)}
    ended = train(script, *arguments, state=state, environ={**own, **environ}, ranks=ranks)
    return Run(name, state, wait_for_relay(state), ended)
