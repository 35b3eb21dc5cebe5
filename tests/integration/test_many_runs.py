"""A relay that stays serves many runs: it lets go of those that are over, and none of them costs the others theirs."""

import errno
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.unit.recording_programs import Program, live_in_run
from tests.unit.recordings import record_into
from trainspan.recording.reader import Refusal
from trainspan.relay.gpus import NodeGpus
from trainspan.relay.pipeline import Pipeline
from trainspan.relay.probes.ownership import Ownership
from trainspan.relay.process import CLOSE_S, TRY_AGAIN_S, Relay
from trainspan.relay.runs import LINGER_S, MOST_FINISHED, Runs
from trainspan.relay.tail import Tail
from trainspan.testing.clock import FakeClock
from trainspan.testing.otlp_sink import Fault, OtlpSink

PATIENCE_S = 30


class Volume:
    """Recordings of many runs, and the state directory of who serves them."""

    def __init__(self, place: Path):
        self.recordings = place / "recordings"
        self.recordings.mkdir(mode=0o700)
        self.state = place / "state"

    def folder(self, run: str) -> Path:
        """The folder of a run."""
        return self.state / "runs" / run

    def relay(self, **environ: str) -> Relay:
        """One that serves them and sends metrics at every look."""
        base = {"TRAINSPAN_DIR": str(self.state), "OTEL_METRIC_EXPORT_INTERVAL": "1"}
        return Relay(self.recordings, None, {**base, **environ})


@pytest.fixture
def volume(tmp_path: Path) -> Volume:
    """One without recordings."""
    return Volume(tmp_path)


@contextmanager
def recorded(volume: Volume, *runs: str) -> Iterator[Program]:
    """A process that records into each of these runs."""
    with Program(live_in_run, volume.recordings, *runs) as program:
        assert program.said() == "recording"
        yield program


def end_next(program: Program) -> None:
    """Let the next of its runs end."""
    program.go_on()
    assert program.said() == "closed"


def look_until(relay: Relay, claim: Callable[[], bool], timeout_s: float = PATIENCE_S) -> None:
    """Look, as a relay does, until `claim()` holds."""
    deadline = time.monotonic() + timeout_s
    while not claim():
        assert time.monotonic() < deadline
        relay.look()
        time.sleep(0.02)


def look_for(relay: Relay, seconds: float) -> None:
    """Look, as a relay does, for a while."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        relay.look()
        time.sleep(0.02)


def senders() -> int:
    """Threads of this process that deliver."""
    return sum(thread.name.startswith("trainspan-") for thread in threading.enumerate())


def open_files(volume: Volume) -> int:
    """Files of run folders that this process has open: journals, ledgers and what claims a summary."""
    descriptors = Path("/proc/self/fd").iterdir()
    return sum(link.is_symlink() and os.readlink(link).startswith(str(volume.state)) for link in descriptors)


def test_run_that_is_over_is_let_go_of_while_others_live(volume: Volume) -> None:
    """A node sees thousands of runs; three threads and eight descriptors for each would end the relay of all."""
    with OtlpSink() as sink, recorded(volume, "a", "b", "c", "lives") as program:
        relay = volume.relay(**sink.environ)
        look_until(relay, lambda: volume.folder("lives").exists())
        with_four = senders(), open_files(volume)

        for _ in range(3):
            end_next(program)
        look_until(relay, lambda: senders() == 3)

        told_bytes = (volume.folder("a") / "metrics.jsonl").stat().st_size
        living_bytes = (volume.folder("lives") / "metrics.jsonl").stat().st_size
        look_for(relay, 0.2)
        assert with_four == (4 * 3, 4 * open_files(volume))
        assert (volume.folder("a") / "metrics.jsonl").stat().st_size == told_bytes
        assert (volume.folder("lives") / "metrics.jsonl").stat().st_size > living_bytes
        assert '"how":"closed"' in (volume.folder("a") / "summary.json").read_text()
        relay.close()


def test_what_a_run_that_is_over_has_not_delivered_waits_for_the_collector(volume: Volume) -> None:
    """Collectors restart; the last batches of a run say how it ended."""
    with OtlpSink() as sink, recorded(volume, "over", "lives") as program:
        relay = volume.relay(**sink.environ)
        sink.fault = Fault.REFUSE
        look_until(relay, lambda: volume.folder("over").exists())
        end_next(program)
        look_for(relay, LINGER_S + 0.5)
        before = sink.spans()

        sink.fault = Fault.NONE
        look_until(relay, lambda: senders() == 3)

        spans = [item.item.name for item in sink.spans() if item.resource["training.run.id"] == "over"]
        assert before == []
        assert "training.process" in spans
        relay.close()


def test_relay_that_stays_delivers_the_last_run_of_a_quiet_node_when_the_collector_is_back(volume: Volume) -> None:
    """Nothing else may come for days, and nobody looks for what lies on a node's disk."""
    with OtlpSink() as sink:
        sink.fault = Fault.REFUSE
        environ = {**os.environ, **sink.environ, "TRAINSPAN_DIR": str(volume.state)}
        command = [sys.executable, "-m", "trainspan", "relay", "--stay", str(volume.recordings)]
        relay = subprocess.Popen(command, env=environ)
        with recorded(volume, "last") as program:
            end_next(program)
        assert sink.wait_for(lambda sink: sink.attempts > 0, timeout_s=PATIENCE_S)
        time.sleep(LINGER_S + CLOSE_S + 1.5)  # more than the relay of a job takes to leave

        sink.fault = Fault.NONE
        arrived = sink.wait_for(lambda sink: "training.process" in {item.item.name for item in sink.spans()}, 60)

        relay.terminate()
        exit_code = relay.wait(PATIENCE_S)
    assert arrived
    assert exit_code == 0


def test_runs_that_wait_for_a_collector_have_a_bound(volume: Volume, capfd: pytest.CaptureFixture[str]) -> None:
    """What goes beyond it is on disk, and said."""
    runs = [f"run-{number:02}" for number in range(MOST_FINISHED + 2)]
    with OtlpSink() as sink, recorded(volume, *runs, "lives") as program:
        sink.fault = Fault.REJECT
        relay = volume.relay(**sink.environ)
        for _ in runs:
            end_next(program)

        look_until(relay, lambda: senders() == 3 * (MOST_FINISHED + 1))

        assert capfd.readouterr().err.count("they wait on disk: trainspan replay") == 2
        relay.close()


def test_run_whose_folder_is_open_to_others_is_said_once_and_costs_the_others_nothing(
    volume: Volume, capfd: pytest.CaptureFixture[str]
) -> None:
    """One directory that somebody made by hand ended the relay of the node."""
    volume.folder("bad").mkdir(parents=True, mode=0o700)
    for folder in (volume.state, volume.state / "runs"):
        folder.chmod(0o700)
    volume.folder("bad").chmod(0o755)
    with recorded(volume, "bad", "good") as program:
        relay = volume.relay()
        look_for(relay, 0.2)
        end_next(program)
        end_next(program)
        look_for(relay, 0.2)
        relay.close()

    said = capfd.readouterr().err
    assert said.count("run bad is not served") == 1
    assert "chmod 700" in said
    assert '"how":"closed"' in (volume.folder("good") / "summary.json").read_text()
    assert len(relay.left) == 1
    assert all(path.exists() for path in relay.left)


def test_run_that_was_refused_is_served_from_its_beginning_once_it_can_be(volume: Volume) -> None:
    """A file server that was gone for a minute must not cost the run its telemetry."""
    volume.folder("bad").mkdir(parents=True, mode=0o700)
    for folder in (volume.state, volume.state / "runs"):
        folder.chmod(0o700)
    volume.folder("bad").chmod(0o755)
    clock = FakeClock(time.monotonic_ns())
    with recorded(volume, "bad") as program:
        relay = Relay(volume.recordings, None, {"TRAINSPAN_DIR": str(volume.state)}, clock=clock)
        relay.look()
        end_next(program)
        volume.folder("bad").chmod(0o700)
        relay.look()
        before = relay.recordings

        clock.advance(round(TRY_AGAIN_S * 1e9))
        relay.look()
        relay.close()

    assert (before, relay.recordings) == (0, 1)
    assert '"steps":1' in (volume.folder("bad") / "summary.json").read_text()


def test_summary_that_cannot_be_read_is_no_damage(volume: Volume) -> None:
    """Without a descriptor left, or with a file server gone, it would be put aside and the run begin anew."""
    summary = volume.folder("kept") / "summary.json"
    summary.mkdir(parents=True, mode=0o700)
    for folder in (volume.state, volume.state / "runs", volume.folder("kept")):
        folder.chmod(0o700)
    with recorded(volume, "kept"):
        relay = volume.relay()

        relay.look()

        relay.close()
    assert summary.is_dir()
    assert list(volume.folder("kept").glob("*.damaged")) == []
    assert len(relay.left) == 1


def test_recording_for_which_there_is_no_descriptor_is_followed_later(tmp_path: Path) -> None:
    """It is nothing that is wrong with the recording."""
    writer = record_into(tmp_path).writer
    refusals: list[Refusal] = []
    tail = Tail(tmp_path, refusals.append, own=writer.path)
    with no_descriptor_left():
        nothing = list(tail.look())

    tail.look_again()
    seen = list(tail.look())

    assert nothing == []
    assert [refusal.for_now for refusal in refusals] == [True]
    assert os.strerror(errno.EMFILE) in refusals[0].reason
    assert [sighting.reader.path for sighting in seen] == [writer.path]
    seen[0].reader.close()
    writer.close(1)


@contextmanager
def no_descriptor_left() -> Iterator[None]:
    """In the block, nothing can be opened."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class BrokenGpus(NodeGpus):
    """Those of a node whose driver brings out what nobody thought of."""

    def __init__(self) -> None:
        super().__init__((), Ownership(None, lambda *_: None), lambda *_: None)

    def look(self, now_ns: int) -> None:
        """Raise."""
        raise ZeroDivisionError(f"at {now_ns}")


def test_run_in_which_something_is_raised_is_given_up_and_the_others_live(volume: Volume) -> None:
    """What is wrong in one run is not to end the others."""
    said: list[str] = []
    environ = {"TRAINSPAN_DIR": str(volume.state), "OTEL_METRIC_EXPORT_INTERVAL": "1"}

    def open_pipeline(run: str) -> Pipeline:
        folder = volume.folder(run)
        folder.mkdir(parents=True, mode=0o700)
        gpus = BrokenGpus() if run == "bad" else NodeGpus((), Ownership(None, lambda *_: None), lambda *_: None)
        return Pipeline(folder, environ, said.append, gpus)

    runs = Runs(open_pipeline, said.append)
    with recorded(volume, "bad", "good"):
        tail = Tail(volume.recordings, lambda _: None)
        taken = [runs.take(sighting, time.monotonic_ns()) for sighting in tail.look()]

        left = [run for _ in range(2) for run in runs.turn({"bad", "good"}, time.monotonic_ns() + 10**9)]

        runs.close(time.monotonic_ns(), 0.0)
        tail.leave("bad")
        tail.leave("good")
    assert taken == [True, True]
    assert left == ["bad"]
    (line,) = said
    assert line.startswith("run bad is given up")
    assert "ZeroDivisionError" in line
    assert "test_many_runs.py" in line
    assert (volume.folder("good") / "metrics.jsonl").stat().st_size > 0
