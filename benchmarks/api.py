"""What a call of `import trainspan` costs, while trainspan is off and while it records.

Each row is the least of some rounds: what a busy machine adds is not ours. The loop around the call is taken off. Off
and on are processes of their own; the one that records has a relay beside it.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping

import trainspan

CALLS_OFF = 5_000
CALLS_ON = 1_000


def _nothing() -> None:
    pass


@trainspan.phase("decorated")
def _decorated() -> None:
    pass


def _with_phase() -> None:
    with trainspan.phase("rollout"):
        pass


def _with_step() -> None:
    with trainspan.step():
        pass


def _with_validation() -> None:
    with trainspan.validation_step():
        pass


def _with_timed() -> None:
    with trainspan.timed("export"):
        pass


def _with_checkpoint() -> None:
    with trainspan.checkpoint_save():
        pass


def _event() -> None:
    trainspan.event("done", n=1)


def _log() -> None:
    trainspan.log("loss", 0.5)


def _log_mapping() -> None:
    trainspan.log({"loss": 0.5, "lr": 1e-3}, step=7)


def _counter() -> None:
    trainspan.counter("skipped")


def _observe() -> None:
    trainspan.observe("queue", _nothing)


def _processed() -> None:
    trainspan.processed(samples=8, tokens=4096)


def _configure() -> None:
    trainspan.configure(global_batch_size=8, perf_tag="8b")


def _callback() -> None:
    trainspan.on_phase_start("rollout")


def _callback_named() -> None:
    trainspan.on_checkpoint_save_start(background=False)


def _callback_end() -> None:
    trainspan.on_checkpoint_save_end()


def _is_enabled() -> None:
    trainspan.is_enabled()


CASES: Mapping[str, Callable[[], None]] = {
    "with phase(name)": _with_phase,
    "@phase(name)": _decorated,
    "with step()": _with_step,
    "with validation_step()": _with_validation,
    "with timed(name)": _with_timed,
    "with checkpoint_save()": _with_checkpoint,
    "event(name, n=1)": _event,
    "log(name, 0.5)": _log,
    "log({2 names}, step=7)": _log_mapping,
    "counter(name)": _counter,
    "observe(name, callback)": _observe,
    "processed(samples, tokens)": _processed,
    "configure(2 of 14)": _configure,
    "on_phase_start(name)": _callback,
    "on_…_start(background=…)": _callback_named,
    "on_…_end()": _callback_end,
    "is_enabled()": _is_enabled,
}
TOLD = (
    "with timed(name)",
    "event(name, n=1)",
    "with checkpoint_save()",
    "configure(2 of 14)",
    "on_…_start(background=…)",
)
"""What writes a line each time: called less often, so that the event log of the process does not come to its bound."""


def time_ns(call: Callable[[], None], calls: int) -> float:
    """Ns of one of `calls` calls."""
    began = time.thread_time_ns()
    for _ in range(calls):
        call()
    return (time.thread_time_ns() - began) / calls


def measure(rounds: int) -> dict[str, float]:
    """Ns of each case in this process, over that of a function that does nothing."""
    is_off = not trainspan.is_enabled()
    result = {}
    for name, call in CASES.items():
        calls = CALLS_OFF if is_off else CALLS_ON // (10 if name in TOLD else 1)
        _ = [time_ns(call, calls) for _ in range(2)]
        least_ns = min(time_ns(_nothing, calls) for _ in range(rounds))
        times = [time_ns(call, calls) - least_ns for _ in range(rounds)]
        result[name] = round(min(times), 1)
    return result


def measured_apart(rounds: int, environ: Mapping[str, str]) -> dict[str, float]:
    """The same in a process of its own, with these variables."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("TRAINSPAN_", "OTEL_"))}
    command = [sys.executable, __file__, "--here", "--rounds", str(rounds)]
    done = subprocess.run(command, env={**plain, **environ}, capture_output=True, text=True, check=True)
    read: dict[str, float] = json.loads(done.stdout)
    return read


def main() -> int:
    """Run the benchmark; prints a table, or JSON."""
    parser = argparse.ArgumentParser(prog="scripts/bench api", description=__doc__)
    parser.add_argument("--rounds", type=int, default=50, help="repetitions per case (default: 50)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rounds < 1:
        parser.error(f"--rounds needs at least 1, not {arguments.rounds}")
    if arguments.here:
        print(json.dumps(measure(arguments.rounds)))
        return 0
    with tempfile.TemporaryDirectory() as state:
        off = measured_apart(arguments.rounds, {})
        on = measured_apart(arguments.rounds, {"TRAINSPAN_ENABLED": "1", "TRAINSPAN_DIR": state})
    if arguments.json:
        print(json.dumps({"off_ns": off, "on_ns": on}, indent=2))
        return 0
    print("a call of                       off         recording")
    for name in CASES:
        print(f"  {name:<26} {off[name]:6.0f} ns  {on[name] / 1e3:10.2f} µs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
