"""A rank that dies tells, through its recording, what it was doing; and a collector that fails hurts nobody."""

import json
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.integration.relayed import (
    SCRIPTS,
    TORCHRUN,
    by_trace,
    command_line,
    latest_numbers,
    run_folder,
    spans_of,
    train,
    training_environ,
    wait_for_relay,
)
from trainspan.cli.main import main
from trainspan.relay.otlp.replay import replay
from trainspan.testing.otlp_sink import Fault, OtlpSink

STEP = 6
EXIT_CODE = 7
RUN = {"TRAINSPAN_RUN_ID": "last-words"}
"""A run whose first steps are sampled, and of the next thirty none: which are follows from its name."""
OURS_AT_EXIT_S = {"process": 2.0, "thread": 4.5}
"""What the script may wait for at exit: for nothing, or for a thread that takes 3.5 s at most; and a busy machine."""

SLOWER_END_S = 3.0
"""How much longer the interpreter's own end may take than without us, on a busy machine."""


@pytest.mark.parametrize("phase", ["data_wait", "forward", "backward", "optimizer"])
def test_the_phase_a_rank_was_killed_in_is_an_error_span(tmp_path: Path, phase: str) -> None:
    """SIGKILL leaves no handler to run: what is known must have been recorded before."""
    with OtlpSink() as sink:
        ended = train("mortal.py", phase, "kill", str(STEP), state=tmp_path, environ=sink.environ)
        wait_for_relay(tmp_path)

    trace = next(t for t in by_trace(spans_of(sink)).values() if t[0].attributes.get("training.step") == STEP)
    failed = {span.name: span for span in trace if span.error}
    assert ended.exit_code == -9
    assert set(failed) == {"training.rank_step", f"training.{phase}"}
    assert failed["training.rank_step"].error == f"process ended in {phase} of step {STEP}"
    assert failed["training.rank_step"].attributes["training.end.reason"] == "died"
    assert max(trace, key=lambda span: span.end_ns).end_ns == failed[f"training.{phase}"].end_ns
    assert latest_numbers(sink, "training.steps") == {(0,): STEP}
    started, died = sink.logs()
    assert started.item.event_name == "training.started"
    assert died.item.event_name == "training.died"
    assert died.item.body.string_value == f"process ended in {phase} of step {STEP}"


def test_torchrun_tells_the_signal_and_the_first_to_die_is_the_cause(tmp_path: Path) -> None:
    """Of two ranks that end, one was killed and the other only followed: the attempt must name the first."""
    with OtlpSink() as sink:
        ended = train("killed_ddp.py", state=tmp_path, environ=sink.environ, ranks=2)
        wait_for_relay(tmp_path)

    spans = spans_of(sink)
    (attempt,) = (span for span in spans if span.name == "training.attempt")
    processes = {span.attributes["training.rank"]: span for span in spans if span.name == "training.process"}
    assert ended.exit_code == 1
    assert attempt.error == "rank 1: process ended by SIGKILL"
    assert processes[1].error == "process ended by SIGKILL in backward of step 3"
    assert processes[0].error is not None
    assert processes[0].error.endswith("in backward of step 3")


@contextmanager
def two_hanging_ranks(state: Path, what: str = "hang") -> Iterator[subprocess.Popen[str]]:
    """torchrun, once both of its ranks stand still; on leaving it has ended."""
    script = (str(SCRIPTS / "mortal.py"), "forward", what, str(STEP))
    with subprocess.Popen(
        [*TORCHRUN, "--nproc-per-node=2", *script],
        env=training_environ(state, RUN),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as torchrun:
        assert torchrun.stdout is not None
        assert [torchrun.stdout.readline() for _ in range(2)] == ["hanging\n"] * 2
        yield torchrun


def reported(state: Path, capsys: pytest.CaptureFixture[str]) -> tuple[str, list[tuple[Any, ...]], int]:
    """What the report says of the run; how each rank ended, where and why; and of how many the launcher says so."""
    assert main(["report", "last-words", "--dir", str(state), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    ends = [(rank["ended"], rank["ended_phase"], rank["ended_step"], rank["ended_cause"]) for rank in said["ranks"]]
    return said["state"], ends, sum(launcher["workers_ended"] for launcher in said["launchers"])


def test_job_that_is_told_to_stop_is_stopped_and_no_rank_is_blamed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What preempts a job ends the launcher, which ends its ranks: nothing is wrong with any of them."""
    with two_hanging_ranks(tmp_path) as torchrun:
        torchrun.terminate()
    wait_for_relay(tmp_path)

    state, ends, failed = reported(tmp_path, capsys)

    assert (state, failed) == ("stopped", 0)
    assert ends == [("stopped", "forward", STEP, "SIGTERM")] * 2


@pytest.mark.parametrize("what", ["hang", "ignore"])
def test_rank_that_torchrun_stops_because_another_died_is_not_blamed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], what: str
) -> None:
    """Of eight ranks of a node torchrun ends seven because one was killed; after 30 s with the same signal."""
    with two_hanging_ranks(tmp_path, what) as torchrun:
        os.kill(_pid_of_rank(1, torchrun.pid), signal.SIGKILL)
    wait_for_relay(tmp_path)

    state, ends, failed = reported(tmp_path, capsys)

    assert (state, failed) == ("failed", 1)
    assert ends == [("stopped", "forward", STEP, "SIGTERM"), ("died", "forward", STEP, "SIGKILL")]


def test_an_uncaught_exception_is_told_without_its_message(tmp_path: Path) -> None:
    """A message can hold data; the type and the place do not."""
    with OtlpSink() as sink:
        ended = train("mortal.py", "forward", "raise", str(STEP), state=tmp_path, environ=sink.environ)
        wait_for_relay(tmp_path)

    trace = next(t for t in by_trace(spans_of(sink)).values() if t[0].attributes.get("training.step") == STEP)
    exported = b"".join(received.request.SerializeToString() for received in sink.received())
    _started, record = sink.logs()
    assert ended.exit_code == 1
    assert "ValueError: canary-secret-4711" in ended.stderr
    assert {span.name for span in trace if span.error} == {"training.rank_step", "training.forward"}
    assert record.item.event_name == "training.exception"
    assert b"ValueError" in exported
    assert b"mortal.py" in exported
    assert b"canary-secret" not in exported


@pytest.fixture(scope="module")
def exit_without_s(tmp_path_factory: pytest.TempPathFactory) -> float:
    """How long the interpreter's own end takes when the script is not recorded: that of torch takes a while."""
    ended = train(
        "mortal.py", "none", "nothing", "0", state=tmp_path_factory.mktemp("off"), environ={"TRAINSPAN_ENABLED": "0"}
    )
    return ended.at_s - float(ended.lines[-1]["left_s"])


def _pid_of_rank(rank: int, launcher: int) -> int:
    """The child of a launcher that has this rank."""
    children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    wanted = f"RANK={rank}".encode()
    (pid,) = (int(child) for child in children if wanted in Path(f"/proc/{child}/environ").read_bytes().split(b"\0"))
    return pid


@contextmanager
def _refusing() -> Iterator[dict[str, str]]:
    """An address where nobody listens."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{held.getsockname()[1]}"}


@contextmanager
def _failing(fault: Fault) -> Iterator[dict[str, str]]:
    with OtlpSink() as sink:
        sink.fault = fault
        yield sink.environ


FAULTS: dict[str, Callable[[], AbstractContextManager[dict[str, str]]]] = {
    "refused": _refusing,
    "silent": lambda: _failing(Fault.SILENT),
    "503": lambda: _failing(Fault.REFUSE),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("relay", ["process", "thread"])
def test_a_failing_collector_delays_no_step_and_no_exit_and_loses_nothing(
    tmp_path: Path, fault: str, relay: str, exit_without_s: float
) -> None:
    """Telemetry that hangs the job is the first thing its users fear."""
    with FAULTS[fault]() as environ:
        ended = train(
            "mortal.py", "none", "nothing", "0", state=tmp_path, environ={**environ, **RUN, "TRAINSPAN_RELAY": relay}
        )
        wait_for_relay(tmp_path)

    said, left = ended.lines
    assert ended.exit_code == EXIT_CODE
    # A relay of its own has a log; a thread has none but the rank's stderr, where it says each cause once.
    complaints = ended.stderr.splitlines()
    assert all("Z trainspan relay: http://127.0.0.1:" in line for line in complaints)
    assert len(complaints) <= (3 if relay == "thread" else 0)
    assert said["slowest_s"] < 1
    assert left["left_s"] - said["done_s"] < OURS_AT_EXIT_S[relay]
    assert ended.at_s - left["left_s"] < exit_without_s + SLOWER_END_S
    with OtlpSink() as sink:
        report = replay(run_folder(tmp_path), sink.environ, 10, lambda _: None)
        again = replay(run_folder(tmp_path), sink.environ, 10, lambda _: None)
        assert report.complete
        assert sum(span.name == "training.rank_step" for span in spans_of(sink)) == 6
        assert latest_numbers(sink, "training.steps") == {(0,): 12}
        received = len(sink.received())
        assert again.complete
        assert len(sink.received()) == received


def test_without_a_relay_the_recording_is_delivered_later(tmp_path: Path) -> None:
    """An air-gapped cluster has no endpoint while it trains."""
    ended = train("mortal.py", "none", "nothing", "0", state=tmp_path, environ={**RUN, "TRAINSPAN_RELAY": "off"})

    with OtlpSink() as sink:
        first = command_line("replay", "--json", environ={"TRAINSPAN_DIR": str(tmp_path), **sink.environ})
        second = command_line("replay", "--json", environ={"TRAINSPAN_DIR": str(tmp_path), **sink.environ})

        assert ended.exit_code == EXIT_CODE
        assert first == 0
        assert second == 0
        assert sum(span.name == "training.rank_step" for span in spans_of(sink)) == 6
