"""`trainspan replay` and `trainspan relay`: what was recorded without an exporter is delivered later, once."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from trainspan.testing.otlp_sink import OtlpSink

STEPS = 12
SAMPLED = 6
"""The first five, and the last."""

TRAINS = f"""
import torch
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range({STEPS}):
    model(torch.randn(8, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def trainspan(*words: str, **more: str) -> "subprocess.CompletedProcess[str]":
    """The command with these words and environment variables, to its end."""
    command = [sys.executable, "-m", "trainspan", *words]
    return subprocess.run(command, env={**os.environ, **more}, capture_output=True, text=True, timeout=180, check=False)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A state directory with one run, `air-gapped`, that was recorded with the relay off."""
    state = tmp_path / "state"
    ran = trainspan(
        *("run", "--dir", str(state), "--run-id", "air-gapped", "--", sys.executable, "-c", TRAINS),
        TRAINSPAN_RELAY="off",
    )
    assert ran.stderr.endswith(f"deliver it with: trainspan replay {state}/runs/air-gapped\n")
    return state


def replayed(state: Path, sink: OtlpSink) -> dict[str, Any]:
    """What a replay says as JSON."""
    ran = trainspan("replay", "air-gapped", "--json", "--dir", str(state), **sink.environ)
    assert ran.returncode == 0, ran.stderr
    report: dict[str, Any] = json.loads(ran.stdout)
    return report


def test_air_gapped_run_is_delivered_once(state: Path) -> None:
    """A cluster without a network keeps everything; at home it is delivered, and nothing twice."""
    with OtlpSink("http/protobuf") as sink:
        first = replayed(state, sink)
        spans = [one.item.name for one in sink.spans()]
        second = replayed(state, sink)
        requests = len(sink.received())

    assert (first["complete"], first["dropped"], first["problems"]) == (True, 0, [])
    assert first["delivered"] == requests
    assert spans.count("training.step") == SAMPLED
    assert (second["complete"], second["delivered"]) == (True, 0)


def test_air_gapped_run_can_be_reported_without_an_endpoint(state: Path) -> None:
    """Folding needs no network; the error says what delivering needs."""
    before = trainspan("report", "air-gapped", "--dir", str(state))

    replay = trainspan("replay", "air-gapped", "--dir", str(state))
    report = trainspan("report", "air-gapped", "--json", "--dir", str(state))

    assert before.returncode == 2
    assert "fold the recordings first: trainspan replay" in before.stderr
    assert replay.returncode == 2
    assert re.fullmatch(
        r"trainspan replay: read 1 recording\(s\) that no relay had read\n"
        r"trainspan replay: no endpoint to deliver to: set OTEL_EXPORTER_OTLP_ENDPOINT.*\n",
        replay.stderr,
    )
    assert json.loads(report.stdout)["steps"] == STEPS


def test_replay_says_what_it_could_not_deliver(state: Path) -> None:
    """A collector that is down must not look like a collector that has everything."""
    with OtlpSink("http/protobuf") as sink:
        environ = sink.environ

    ran = trainspan("replay", "air-gapped", "--dir", str(state), "--timeout", "2", **environ)

    assert ran.returncode == 1
    assert "0 batch(es) delivered" in ran.stdout
    assert "could not be delivered and stay; replay again later" in ran.stderr


def test_relay_by_hand_serves_a_directory_of_recordings(tmp_path: Path) -> None:
    """In a pod the ranks record into a volume, and a sidecar exports it."""
    volume = tmp_path / "volume"
    recorded = trainspan(
        *("run", "--run-id", "pod-1", "--", sys.executable, "-c", TRAINS),
        TRAINSPAN_RELAY="off",
        TRAINSPAN_RECORDING_DIR=str(volume),
        TRAINSPAN_DIR=str(tmp_path / "rank"),
    )
    assert recorded.returncode == 0

    with OtlpSink("grpc") as sink:
        ran = trainspan("relay", str(volume), TRAINSPAN_DIR=str(tmp_path / "sidecar"), **sink.environ)
        spans = [one.item.name for one in sink.spans()]

    report = trainspan("report", "pod-1", "--json", TRAINSPAN_DIR=str(tmp_path / "sidecar"))
    assert ran.returncode == 0, ran.stdout
    assert spans.count("training.rank_step") == SAMPLED
    assert json.loads(report.stdout)["steps"] == STEPS


def test_relay_by_hand_waits_for_a_training_that_starts_later(tmp_path: Path) -> None:
    """A sidecar is up before the job is; who watches it wants to know that it waits, and how long."""
    volume = tmp_path / "volume"
    volume.mkdir()
    command = [sys.executable, "-m", "trainspan", "relay", "--wait", "150", str(volume)]
    of_relay = {**os.environ, "TRAINSPAN_DIR": str(tmp_path / "sidecar")}
    with subprocess.Popen(command, env=of_relay, stderr=subprocess.PIPE, text=True) as relay:
        assert relay.stderr is not None
        said = relay.stderr.readline()

        recorded = trainspan(
            *("run", "--run-id", "pod-1", "--", sys.executable, "-c", TRAINS),
            TRAINSPAN_RELAY="off",
            TRAINSPAN_RECORDING_DIR=str(volume),
            TRAINSPAN_DIR=str(tmp_path / "rank"),
        )
        rest = relay.stderr.read()

    assert recorded.returncode == 0
    assert said.endswith(f" trainspan relay: waiting for a recording in {volume}, up to 150 s\n")
    assert (relay.returncode, rest) == (0, "")
    report = trainspan("report", "pod-1", "--json", TRAINSPAN_DIR=str(tmp_path / "sidecar"))
    assert json.loads(report.stdout)["steps"] == STEPS


def test_relay_by_hand_to_which_no_recording_comes_fails(tmp_path: Path) -> None:
    """A volume that is mounted in another place looks like this, and must not look like a job that was delivered."""
    ran = trainspan("relay", "--wait", "0.5", str(tmp_path))

    said = [line.partition("trainspan relay: ")[2] for line in ran.stderr.splitlines()]
    assert ran.returncode == 1
    assert said == [
        f"waiting for a recording in {tmp_path}, up to 0.5 s",
        f"no recording came in {tmp_path}; is it the directory that the ranks record in (TRAINSPAN_RECORDING_DIR)?",
    ]


def test_relay_that_stays_says_what_it_waits_for_and_ends_when_told(tmp_path: Path) -> None:
    """On a node without jobs it has nothing to do for days, and is drained without an error."""
    command = [sys.executable, "-m", "trainspan", "relay", "--stay", str(tmp_path)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as relay:
        assert relay.stderr is not None
        said = relay.stderr.readline()

        relay.terminate()
        rest = relay.stderr.read()

    assert said.endswith(f" trainspan relay: waiting for recordings in {tmp_path}, until it is told to end\n")
    assert (relay.returncode, rest) == (0, "")


def test_relay_of_a_directory_that_is_not_there_is_bad_usage(tmp_path: Path) -> None:
    """A sidecar whose volume is not mounted must not run on as if there were nothing to do."""
    ran = trainspan("relay", str(tmp_path / "nowhere"))

    assert ran.returncode == 2
    assert ran.stdout == ""
    assert ran.stderr.startswith(f"trainspan relay: {tmp_path}/nowhere is not a directory; name the one")
