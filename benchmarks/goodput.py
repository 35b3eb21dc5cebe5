"""What the account of a long run costs: a cold read of its ledger, one new record, and the room it takes.

The run: 100,000 steps of about 0.28 s with a wait for input each, 199 restarts that each lose 30 steps, a save every
100 steps. CPU time is given beside wall time, because a busy machine stretches only the second.

After a new record every question is asked that there is, and `all_answers_us` is the sum of all answers and of taking
the record in. `every attempt` has 200 rows, of which the newest is made anew: what attempts that are over have shown in
the whole time is kept. In any other window each row is made anew, which no engine does in 1 ms: `every attempt, 3 h`
says what that costs. It is not in the sum, and neither is `the whole command`, which is made of the others.

With `--peer` the engine of Google's ml-goodput-measurement answers about the same run, from entries that are in memory
already (its own suite replaces the reader in the same way). It is installed once, into an environment of its own in
`.cache/`: 33 packages, 0.3 GB.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

from trainspan.relay.goodput.facts import Activity, Begun, Ended, Fact, Piece, Saved, Step
from trainspan.relay.goodput.history import RunHistory
from trainspan.relay.goodput.ledger import LedgerWriter, read
from trainspan.relay.goodput.projection import measure as measure_run
from trainspan.relay.goodput.projection import project
from trainspan.relay.goodput.queries import (
    Scope,
    Window,
    account_ns,
    disruptions_in,
    pace,
    report,
    reports,
    rolling,
)
from trainspan.report.goodput import Question, Source, answer

ROOT = Path(__file__).resolve().parents[1]
PEER = "ml-goodput-measurement==0.2.3"
PEER_ENVIRONMENT = ROOT / ".cache" / "peer-goodput"

S = 1_000_000_000
HOUR_NS = 3600 * S
THE_COMMAND, ALL_ROWS = "the whole command", "every attempt, 3 h"
NOT_IN_THE_SUM = (THE_COMMAND, ALL_ROWS)
APPENDED_AT_ONCE = 50


def facts_of(steps: int, restarts: int) -> Iterator[Fact]:
    """A run of one rank, as a relay would tell it."""
    chance = random.Random(1)
    now, number = 1_700_000_000 * S, 0
    for attempt in range(restarts + 1):
        yield Begun(attempt, 0, now, "node0", 8, True)
        yield Activity(attempt, 0, "init", now, now + 8 * S)
        yield Activity(attempt, 0, "checkpoint_load", now + 8 * S, now + 12 * S)
        now += 15 * S
        for place in range(steps // (restarts + 1)):
            wait_ns = int(chance.expovariate(1 / 30e6))
            end_ns = now + wait_ns + int(chance.gauss(250e6, 5e6)) + (8 * S if place == 0 else 0)
            begin_ns = now
            if place and place % 100 == 0:
                begin_ns, end_ns = now + 3 * S // 10, end_ns + 3 * S // 10
                yield Activity(attempt, 0, "checkpoint_save", now, begin_ns)
                yield Saved(attempt, 0, begin_ns, number)
            yield Step(attempt, 0, number, now, end_ns, (Piece("data_wait", begin_ns, begin_ns + wait_ns),))
            now, number = end_ns, number + 1
        yield Ended(attempt, 0, now, orderly=False)
        now, number = now + 40 * S, max(number - 30, 0)


def write(folder: Path, steps: int, restarts: int) -> float:
    """Write the run's ledger and leave it as a crash does; CPU us a fact."""
    facts = list(facts_of(steps, restarts))
    writer = LedgerWriter(folder, "node0", time.time_ns())
    before = time.process_time()
    for first in range(0, len(facts), APPENDED_AT_ONCE):
        writer.append(facts[first : first + APPENDED_AT_ONCE])
    return (time.process_time() - before) / len(facts) * 1e6


def peak_mib() -> float:
    """Most memory this process has held. Not from getrusage: that begins with what the parent held."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def read_cold(folder: Path) -> dict[str, float]:
    """Read the ledger and answer once, in this process; times in ms, memory in MiB."""
    imported_mib = peak_mib()
    wall, cpu = time.perf_counter(), time.process_time()
    history = RunHistory()
    history.add_all(read(folder))
    found = report(history)
    took = {"wall_ms": (time.perf_counter() - wall) * 1e3, "cpu_ms": (time.process_time() - cpu) * 1e3}
    memory = {"peak_mib": peak_mib(), "peak_over_imports_mib": peak_mib() - imported_mib}
    return took | memory | {"steps": found.steps + found.steps_lost}


def questions(history: RunHistory, now_ns: int) -> dict[str, Callable[[], object]]:
    """Everything that is asked after a new record; at last what `trainspan goodput` answers, which is most of it."""
    excluded = Window(exclude=((now_ns - 3 * HOUR_NS, now_ns - 2 * HOUR_NS),))
    return {
        "cumulative": lambda: report(history),
        "rolling 1 h": lambda: report(history, rolling(HOUR_NS, now_ns)),
        "rolling 3 h": lambda: report(history, rolling(3 * HOUR_NS, now_ns)),
        "interval": lambda: report(history, Window(now_ns - 5 * HOUR_NS, now_ns - HOUR_NS)),
        "exclusion": lambda: report(history, excluded),
        "rank": lambda: report(history, scope=Scope(rank=0)),
        "states only": lambda: account_ns(history),
        "pace": lambda: pace(history),
        "projection": lambda: project(measure_run(history)),
        "recoveries": lambda: disruptions_in(history),
        "every rank": lambda: reports(history, "rank"),
        "every node": lambda: reports(history, "node"),
        "every attempt": lambda: reports(history, "attempt"),
        ALL_ROWS: lambda: reports(history, "attempt", rolling(3 * HOUR_NS, now_ns)),
        THE_COMMAND: lambda: answer(Source("run", history, 0, ()), Question(Window(), (HOUR_NS, 3 * HOUR_NS))),
    }


def update(folder: Path, rounds: int) -> dict[str, float]:
    """Median CPU us of taking in one more step, and of each question asked after it."""
    history = RunHistory()
    history.add_all(fact for fact in read(folder))
    attempt, now_ns = history.attempts[-1] + 1, (history.last_sign_ns or 0) + 60 * S
    history.add(Begun(attempt, 0, now_ns, "node0", 8, True))
    number = report(history).last_step or 0
    spent: dict[str, list[float]] = {"one step": []}
    for _ in range(rounds):
        end_ns, number = now_ns + 28 * S // 100, number + 1
        fact = Step(attempt, 0, number, now_ns, end_ns, (Piece("data_wait", now_ns, now_ns + S // 100),))
        asked: dict[str, Callable[[], object]] = {"one step": partial(history.add, fact), **questions(history, end_ns)}
        for name, ask in asked.items():
            before = time.process_time()
            ask()
            spent.setdefault(name, []).append((time.process_time() - before) * 1e6)
        now_ns = end_ns
    return {name: round(statistics.median(times), 1) for name, times in spent.items()}


class PeerLog:
    """What stands for Cloud Logging: the entries of the run, the time first in each."""

    def __init__(self, entries: list[dict[str, Any]]):
        self._entries = entries

    def read_cloud_logging_entries(
        self,
        start_time: Any = None,  # noqa: ARG002 - the library passes it
        end_time: Any = None,  # noqa: ARG002 - the same
        last_entry_info: tuple[datetime, str] | None = None,
    ) -> tuple[list[dict[str, Any]], tuple[datetime, str]]:
        """The entries after the last one it was given, and which the last one is now."""
        first = int(last_entry_info[1]) + 1 if last_entry_info else 0
        last = datetime.fromtimestamp(next(iter(self._entries[-1].values())), timezone.utc)
        return self._entries[first:], (last, str(len(self._entries) - 1))


def peer_entries(steps: int, restarts: int) -> list[dict[str, Any]]:
    """The run in the library's own entries, the time first."""
    entries: list[dict[str, Any]] = []
    for fact in facts_of(steps, restarts):
        if isinstance(fact, Begun):
            entries.append({"job_start_time": fact.at_ns / S, "job_name": "job"})
        elif isinstance(fact, Step):
            entries.append({"step_start_time": fact.start_ns / S, "step_count": fact.number, "job_name": "job"})
    return entries


def peer_python() -> Path:
    """The interpreter that has the peer's package.

    Raises:
        SystemExit: it cannot be installed.
    """
    python, stamp = PEER_ENVIRONMENT / "bin" / "python", PEER_ENVIRONMENT / PEER
    if not stamp.exists():
        print(f"installing {PEER} into {PEER_ENVIRONMENT}, once", file=sys.stderr)
        venv.create(PEER_ENVIRONMENT, clear=True, with_pip=True)
        installed = subprocess.run([python, "-m", "pip", "install", "--quiet", PEER], check=False)
        if installed.returncode:
            sys.exit(f"{PEER} could not be installed; leave out --peer, or see what pip says above")
        stamp.touch()
    return python


def run_peer(python: Path, arguments: argparse.Namespace) -> dict[str, float]:
    """`ask_peer`, in its own environment."""
    size = ["--steps", str(arguments.steps), "--restarts", str(arguments.restarts), "--rounds", str(arguments.rounds)]
    environ = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    asked = subprocess.run(
        [python, __file__, *size, "--ask-peer"], env=environ, check=True, stdout=subprocess.PIPE, text=True
    )
    said: dict[str, float] = json.loads(asked.stdout.splitlines()[-1])
    return said


def ask_peer(steps: int, restarts: int, rounds: int) -> dict[str, float]:
    """Ms of CPU of the peer's first answer, and the median of the one after a new step."""
    from ml_goodput_measurement.src.goodput import GoodputCalculator

    entries = peer_entries(steps, restarts)
    with tempfile.TemporaryDirectory() as cache:
        calculator = GoodputCalculator("job", "logger", PeerLog(entries), cache_dir=cache)
        before = time.process_time()
        calculator.get_job_goodput(include_badput_breakdown=True)
        first_ms = (time.process_time() - before) * 1e3
        spent = []
        for _ in range(rounds):
            last = entries[-1]
            entries.append(
                {**last, "step_start_time": last["step_start_time"] + 0.28, "step_count": last["step_count"] + 1}
            )
            before = time.process_time()
            calculator.get_job_goodput(include_badput_breakdown=True)
            spent.append((time.process_time() - before) * 1e3)
    return {"first_answer_ms": first_ms, "after_one_step_ms": statistics.median(spent), "peak_mib": peak_mib()}


def measure(steps: int, restarts: int, rounds: int) -> dict[str, Any]:
    """All numbers of this benchmark, but those of the peer."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        written_us = write(folder, steps, restarts)
        size = sum(path.stat().st_size for path in folder.iterdir())
        raw = sum(path.stat().st_size for path in folder.glob("*.jsonl"))
        command = [sys.executable, __file__, "--read", name]
        cold = [json.loads(subprocess.run(command, check=True, capture_output=True).stdout) for _ in range(5)]
        updated = update(folder, rounds)
    return {
        "run": {"steps": steps, "restarts": restarts, "load": os.getloadavg()[0]},
        "ledger": {
            "bytes_per_1000_steps": size * 1000 // steps,
            "raw_tail_bytes": raw,
            "write_us_per_fact": written_us,
        },
        "cold_read": {key: round(min(reading[key] for reading in cold), 1) for key in cold[0]},
        "update_us": updated,
        "all_answers_us": round(sum(spent for name, spent in updated.items() if name not in NOT_IN_THE_SUM), 1),
    }


def main() -> int:
    """Run the benchmark; prints a table, or JSON."""
    parser = argparse.ArgumentParser(prog="scripts/bench goodput", description=__doc__)
    parser.add_argument("--steps", type=int, default=100_000, help="steps of the run (default: 100000)")
    parser.add_argument("--restarts", type=int, default=199, help="restarts of the run (default: 199)")
    parser.add_argument("--rounds", type=int, default=300, help="new records measured (default: 300)")
    parser.add_argument("--peer", action="store_true", help="also ask the engine of ml-goodput-measurement")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--read", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--ask-peer", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.read:
        print(json.dumps(read_cold(arguments.read)))
        return 0
    if not 0 <= arguments.restarts < arguments.steps:
        parser.error(f"--restarts must be below --steps, not {arguments.restarts}")
    if arguments.ask_peer:
        print(json.dumps(ask_peer(arguments.steps, arguments.restarts, min(arguments.rounds, 20))))
        return 0
    python = (
        peer_python() if arguments.peer else None
    )  # first: nobody measures for a minute to learn that it is missing
    result = measure(arguments.steps, arguments.restarts, arguments.rounds)
    if python:
        result["peer"] = run_peer(python, arguments)
    if arguments.json:
        print(json.dumps(result, indent=2))
        return 0
    for title, rows in result.items():
        print(f"{title}:" if isinstance(rows, dict) else f"{title}: {rows}")
        for name, value in rows.items() if isinstance(rows, dict) else ():
            print(f"  {name:<24} {value:>12.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
