"""What docs/existing-stacks/kubernetes.md promises: a container that dies whole still tells its last phase.

Ranks record into a volume and export nothing; a relay in another container, which nobody kills, does.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.integration.relayed import PATIENCE_S, SCRIPTS, TORCHRUN, SpanSeen, spans_of
from trainspan.launch import LOCK_NAME
from trainspan.testing.otlp_sink import OtlpSink

STEP = 4


def children_of(pid: int) -> list[int]:
    """The processes that `pid` has started, and theirs, itself first."""
    found = [pid]
    for one in found:
        for task in Path(f"/proc/{one}/task").glob("*/children"):
            found += [int(child) for child in task.read_text().split()]
    return found


def start(*command: str, environ: Mapping[str, str]) -> subprocess.Popen[str]:
    """A running process whose output can be read."""
    return subprocess.Popen(command, env={**os.environ, **environ}, stdout=subprocess.PIPE, text=True)


def kill_whole(job: subprocess.Popen[str]) -> None:
    """End a tree of processes as the kernel ends a container: all of them, at once, without a word."""
    for pid in children_of(job.pid):
        os.kill(pid, signal.SIGKILL)
    job.communicate()


@pytest.fixture(scope="module")
def spans(tmp_path_factory: pytest.TempPathFactory) -> list[SpanSeen]:
    """What arrived of a job that was killed in step 4, exported by a relay that had been told to end before."""
    folder = tmp_path_factory.mktemp("volume")
    volume = folder / "recordings"
    volume.mkdir()
    of_job = {
        "TRAINSPAN_ENABLED": "1",
        "TRAINSPAN_RELAY": "off",
        "TRAINSPAN_RECORDING_DIR": str(volume),
        "TRAINSPAN_DIR": str(folder / "job"),
        "TRAINSPAN_RUN_ID": "pod-1",
        "TRAINSPAN_RING_MARKS": "65536",
        "POD_NAME": "train-0",
        "OMP_NUM_THREADS": "1",
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    }
    with OtlpSink() as sink:
        of_relay = {"TRAINSPAN_DIR": str(folder / "relay"), "POD_NAME": "relay-x", **sink.environ}
        relay = start(sys.executable, "-m", "trainspan", "relay", "--stay", str(volume), environ=of_relay)
        job = start(
            *TORCHRUN, "--nproc-per-node=2", str(SCRIPTS / "mortal.py"), "backward", "hang", str(STEP), environ=of_job
        )
        try:
            lines = iter(job.stdout.readline, "") if job.stdout else iter(())
            hanging = 0
            while hanging < 2:
                hanging += next(lines) == "hanging\n"
            wait_for(lambda: (volume / LOCK_NAME).read_text() != "")
            # As a node that is drained does it: everybody is told, and the ranks are still there.
            relay.terminate()
        finally:
            kill_whole(job)
        told, _ = relay.communicate(timeout=PATIENCE_S)
        assert relay.returncode == 0, told
        return spans_of(sink)


def wait_for(claim: Callable[[], bool]) -> None:
    """Return once `claim()` holds."""
    deadline = time.monotonic() + PATIENCE_S
    while not claim():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_last_phase_of_a_tree_killed_whole_is_exported_from_the_volume(spans: list[SpanSeen]) -> None:
    """When a node runs out of memory, no process of the container is left to say anything."""
    failed = {(span.name, span.resource["training.rank"]): span.error for span in spans if span.error}

    step = {rank: failed[("training.rank_step", rank)] for rank in (0, 1)}
    assert step == dict.fromkeys((0, 1), f"process ended in backward of step {STEP}")
    assert {("training.backward", 0), ("training.backward", 1)} <= set(failed)
    assert {("training.process", 0), ("training.process", 1)} <= set(failed)


def test_ranks_are_found_in_their_own_pod(spans: list[SpanSeen]) -> None:
    """The relay's pod is another one; whoever follows its name would look at the wrong logs."""
    pods = {span.resource["k8s.pod.name"] for span in spans}

    assert pods == {"train-0"}
