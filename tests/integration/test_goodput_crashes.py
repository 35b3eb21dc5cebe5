"""Whatever is killed, the account has every step that was finished."""

import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.integration.relayed import command_line, train, wait_for_relay
from trainspan.cli.main import main
from trainspan.relay.goodput import ledger
from trainspan.relay.goodput.facts import Step
from trainspan.relay.goodput.lines import fact_of

RUN = {"TRAINSPAN_RUN_ID": "crash"}
KILLED_IN = 6


def said_of(state: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """What `trainspan goodput` says of the run."""
    assert main(["goodput", "crash", "--dir", str(state), "--json"]) == 0
    said: dict[str, Any] = json.loads(capsys.readouterr().out)
    return said


def relay_of(state: Path) -> int:
    """The process id of the relay, once the ledger has a step of the run; it says so in its lock."""
    folder = state / "runs" / "crash"
    while not (folder / "ledger").is_dir() or not any(isinstance(f, Step) for f in ledger.read(folder / "ledger")):
        pass
    (lock,) = (folder / "recordings").glob("*/relay.lock")
    return int(lock.read_text())


def test_killed_rank_loses_its_unfinished_step_and_no_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The kernel keeps what was stored; the relay reads it to the end."""
    ended = train("mortal.py", "backward", "kill", str(KILLED_IN), state=tmp_path, environ=RUN)
    wait_for_relay(tmp_path)

    said = said_of(tmp_path, capsys)

    assert ended.exit_code == -signal.SIGKILL
    assert (said["steps"], said["last_step"]) == (KILLED_IN, KILLED_IN - 1)
    assert said["badput_s"]["lost_work"] > 0
    assert said["productive_s"] + sum(said["badput_s"].values()) == pytest.approx(said["total_s"], abs=1e-6)


def test_killed_relay_loses_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The out-of-memory killer takes whom it likes; the recordings are there, and `trainspan replay` folds them."""
    with ThreadPoolExecutor() as beside:
        arguments = ("6", "0.02", str(tmp_path / "model.pt"))
        training = beside.submit(train, "paced.py", *arguments, state=tmp_path, environ=RUN)
        os.kill(relay_of(tmp_path), signal.SIGKILL)
        ended = training.result()

    told = command_line("replay", str(tmp_path / "runs" / "crash"), environ={})
    said = said_of(tmp_path, capsys)

    assert ended.exit_code == 0, ended.stderr
    assert told == 2  # there is no endpoint to deliver to
    assert said["steps"] == ended.lines[0]["steps"]
    assert said["unread"]["lines"] == 0


def test_ledger_cut_by_a_power_failure_loses_the_line_it_was_cut_in(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was synced before is whole; the rest of the line says nothing, and is counted."""
    with ThreadPoolExecutor() as beside:
        arguments = ("6", "0.02", str(tmp_path / "model.pt"))
        training = beside.submit(train, "paced.py", *arguments, state=tmp_path, environ=RUN)
        relay_of(tmp_path)
        (live,) = (tmp_path / "runs" / "crash" / "ledger").glob("*.jsonl")
        lines = live.read_bytes().splitlines(keepends=True)
        training.result()
    wait_for_relay(tmp_path)
    for file in (tmp_path / "runs" / "crash" / "ledger").iterdir():
        file.unlink()
    live.write_bytes(b"".join(lines[:-1]) + lines[-1][:-2])

    said = said_of(tmp_path, capsys)

    steps = sum(isinstance(fact_of(line), Step) for line in lines[:-1])
    assert said["steps"] == steps
    assert said["unread"]["lines"] == 1
