"""Runs of the model of `tests/data/training/gpu_model.py`, and what the relay wrote of them.

What a check needs is imported when it runs: on a machine that lacks some of it the others run.
"""

import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from trainspan import names
from trainspan.relay.probes.nvml import NvmlProbe

REPOSITORY = Path(__file__).resolve().parents[2]
MODEL = "gpu_model.py"
SCRIPT = REPOSITORY / "tests" / "data" / "training" / MODEL
EVERYTHING: Mapping[str, str] = {"OTEL_TRACES_SAMPLER": "always_on", "TRAINSPAN_DEVICE_SHARE": "1"}
"""Every step has a trace and is timed on the device."""

PATIENCE_S = 240


class Amounts(NamedTuple):
    """How much is measured."""

    profiled_steps: int = 20
    rounds: int = 60
    steps_of_a_round: int = 20
    energy_s: float = 60
    readings_s: float = 10
    calls: int = 500
    graph_steps: int = 50
    compiled_steps: int = 20


class Bench(NamedTuple):
    """Where checks run.

    `state`: a folder of its own for each check. `arguments`: of every run of the model. `environ`: of every process.
    `probe`: of this machine's GPUs.
    """

    state: Path
    amounts: Amounts = Amounts()
    arguments: tuple[str, ...] = ()
    environ: Mapping[str, str] = {}
    probe: Callable[[], NvmlProbe] = NvmlProbe

    def recorded(self, *arguments: str, environ: Mapping[str, str] = EVERYTHING) -> "Trained":
        """A run of the model with trainspan."""
        from tests.integration.relayed import train, wait_for_relay

        state = self.state / "-".join(argument.strip("-") for argument in arguments)
        ended = train(
            MODEL, *arguments, *self.arguments, state=state, environ={**plain_environ(), **self.environ, **environ}
        )
        assert ended.exit_code == 0, ended.stderr[-2000:]
        return Trained(ended.lines[-1], wait_for_relay(state))

    def unrecorded(self, *arguments: str) -> "Trained":
        """The same without."""
        command = [sys.executable, str(SCRIPT), *arguments, *self.arguments]
        environ = {**plain_environ(), **self.environ}
        done = subprocess.run(command, capture_output=True, text=True, env=environ, timeout=PATIENCE_S, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        return Trained(json.loads(done.stdout.splitlines()[-1]), None)

    def server(self, environ: Mapping[str, str], *arguments: str) -> "Server":
        """The model in a process of its own, with more variables."""
        return Server({**self.environ, **environ}, *arguments, *self.arguments)


class Trained(NamedTuple):
    """A run that is over: the line the script printed, and the run folder; None: it was not recorded."""

    answer: dict[str, Any]
    folder: Path | None

    def spans(self) -> list[Any]:
        """Every span the relay wrote."""
        from trainspan.relay.otlp.otlp_json import decode

        return [span for line in self._lines("traces") for span in decode("traces", line)]

    def device_s(self) -> dict[tuple[int, str], float]:
        """Seconds on the device by step and phase."""
        found: dict[tuple[int, str], float] = defaultdict(float)
        for span in self.spans():
            attributes = span.attributes or {}
            if names.PHASE in attributes and names.DEVICE_DURATION in attributes:
                found[attributes[names.STEP], attributes[names.PHASE]] += attributes[names.DEVICE_DURATION]
        return dict(found)

    def steps_with(self, phase: str) -> int:
        """How many steps have a span of that phase."""
        spans = (span.attributes or {} for span in self.spans())
        return len({attributes[names.STEP] for attributes in spans if attributes.get(names.PHASE) == phase})

    def numbers(self, metric: str) -> dict[tuple[str, ...], float]:
        """The last value of each series of a metric, by the values of its attributes."""
        latest: dict[tuple[str, ...], float] = {}
        for line in self._lines("metrics"):
            for under in json.loads(line)["resourceMetrics"]:
                for found in (m for scope in under["scopeMetrics"] for m in scope["metrics"] if m["name"] == metric):
                    for point in (found.get("sum") or found.get("gauge") or found["histogram"])["dataPoints"]:
                        key = tuple(str(next(iter(a["value"].values()))) for a in point.get("attributes", ()))
                        latest[key] = float(point.get("asDouble", point.get("asInt", point.get("count", 0))))
        return latest

    def _lines(self, signal: str) -> Sequence[bytes]:
        assert self.folder is not None, "the run was not recorded"
        return (self.folder / f"{signal}.jsonl").read_bytes().splitlines()


def plain_environ() -> dict[str, str]:
    """The environment without a word of trainspan."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("TRAINSPAN_", "OTEL_"))}


class Server:
    """The model in a process of its own, which takes steps on command.

    Args:
        environ: beside the plain one.
        arguments: of the script.
    """

    def __init__(self, environ: Mapping[str, str], *arguments: str):
        self._process = subprocess.Popen(
            [sys.executable, str(SCRIPT), "serve", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=REPOSITORY,
            env={**plain_environ(), **environ},
        )

    def seconds_of(self, steps: int) -> float:
        """How long that many steps took."""
        self.begin(steps)
        return self.end()

    def begin(self, steps: int) -> None:
        """Let it take that many steps."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{steps}\n")
        self._process.stdin.flush()

    def end(self) -> float:
        """How long they took, once they are over."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the model ended with exit code {self._process.wait(PATIENCE_S)}"
        answer: dict[str, float] = json.loads(line)
        return answer["seconds"]

    def close(self) -> None:
        """End it, whatever it is doing."""
        try:
            self._process.communicate(timeout=30)
        except (subprocess.TimeoutExpired, BrokenPipeError):
            self._process.kill()
            self._process.communicate()
