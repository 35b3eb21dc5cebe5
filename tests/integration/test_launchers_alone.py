"""Launchers that come to no rank: what they waited for and why they gave up is all that such a job has to tell."""

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.integration.relayed import (
    PATIENCE_S,
    SCRIPTS,
    TORCHRUN,
    SpanSeen,
    latest_numbers,
    run_folder,
    spans_of,
    train_with,
    training_environ,
    wait_for_relay,
)
from tests.ports import free_port
from trainspan.cli.report import report_of
from trainspan.errors import RunNotFound
from trainspan.identity import span_id_of
from trainspan.report.model import LauncherReport, RunReport
from trainspan.report.quantities import duration
from trainspan.report.render import console_for, render
from trainspan.testing.otlp_sink import OtlpSink, attributes_of

RUN = "nobody-came"
ERROR = "torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError"


def waits_for(nodes: int, port: int, *options: str) -> list[str]:
    """A command that launches `nodes` nodes, of which this is one."""
    place = ("--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", f"--rdzv-id={RUN}")
    return [*TORCHRUN, f"--nnodes={nodes}", *place, *options]


def shown(report: RunReport) -> list[str]:
    """What `trainspan report` prints."""
    console = console_for()
    with console.capture() as capture:
        console.print(render(report))
    return capture.get().splitlines()


def by_name(spans: Sequence[SpanSeen]) -> dict[str, SpanSeen]:
    """The spans by name; one of each."""
    found = {span.name: span for span in spans}
    assert len(found) == len(spans)
    return found


def test_rendezvous_that_fails_is_exported_and_reported(tmp_path: Path) -> None:
    """The commonest way in which a job of many nodes never begins: one of them does not come."""
    with OtlpSink() as sink:
        command = [*waits_for(2, free_port(), "--rdzv-conf=join_timeout=3"), str(SCRIPTS / "two_nodes_ddp.py")]

        ended = train_with(*command, state=tmp_path, environ=sink.environ)
        folder = wait_for_relay(tmp_path)

        spans, records = by_name(spans_of(sink)), [record.item for record in sink.logs()]
        waited_s = latest_numbers(sink, "training.launch.time")
    launcher, launch = spans["training.launcher"], spans["training.launch"]
    assert ended.exit_code == 1
    assert (launcher.parent, launch.parent) == ("", launcher.span)
    assert launcher.links == (f"{span_id_of(RUN, 0, 'attempt'):016x}",)
    assert launcher.attributes == {"training.end.reason": "exception"}
    assert launcher.error == launch.error == f"{ERROR} left the rendezvous of the launcher"
    assert launch.attributes == {"training.launch.operation": "rendezvous", "error.type": ERROR}
    assert launch.duration_ns >= 3e9
    assert "training.node_rank" not in launch.resource
    told = {record.event_name: attributes_of(record.attributes)["state"] for record in records}
    assert told == {"torchelastic.worker.status.RENDEZVOUS": "RENDEZVOUS"}
    assert waited_s == {(None, "rendezvous"): pytest.approx(launch.duration_ns / 1e9)}
    report = report_of(folder)
    assert report.state == "failed"
    after = duration(launch.duration_ns / 1e9)
    assert shown(report)[0] == f"no rank ever started: rendezvous failed after {after} (RendezvousTimeoutError)"


def standing_of(state: Path) -> LauncherReport | None:
    """The launcher of the one run below `state`; None as long as there is none."""
    try:
        (launcher,) = report_of(run_folder(state)).launchers
    except (RunNotFound, ValueError, FileNotFoundError):
        return None
    return launcher


def wait_until_it_waits(state: Path) -> None:
    """Return when the launcher below `state` is in a rendezvous."""
    deadline = time.monotonic() + PATIENCE_S
    while (standing := standing_of(state)) is None or standing.operation is None:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_launcher_killed_while_it_waits_is_exported_and_reported(tmp_path: Path) -> None:
    """A scheduler's time limit ends it so; until then, the report says what it waits for."""
    with OtlpSink() as sink:
        command = [*waits_for(2, free_port()), str(SCRIPTS / "two_nodes_ddp.py")]
        with subprocess.Popen(command, env=training_environ(tmp_path, sink.environ)) as process:
            wait_until_it_waits(tmp_path)
            (waiting, *_) = shown(report_of(run_folder(tmp_path)))

            process.send_signal(signal.SIGKILL)
        folder = wait_for_relay(tmp_path)

        spans = by_name(spans_of(sink))
    assert waiting.startswith("no rank has started yet: its launcher has been in rendezvous for ")
    launcher, launch = spans["training.launcher"], spans["training.launch"]
    assert launcher.attributes == {"training.end.reason": "died"}
    assert launcher.error == launch.error == "the launcher ended in its rendezvous"
    assert launcher.start_ns < launch.start_ns < launch.end_ns == launcher.end_ns
    report = report_of(folder)
    assert report.state == "failed"
    assert shown(report)[0].startswith("no rank ever started: its launcher was killed after ")
    assert shown(report)[0].endswith(" in rendezvous")


# Trains, says so by its first file, and ends once there is the second.
TRAINS = """
import os, sys, time, torch
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(5):
    model(torch.randn(8, 4)).sum().backward()
    optimizer.step()
open(sys.argv[1], "w").close()
while not os.path.exists(sys.argv[2]):
    time.sleep(0.05)
"""


def test_node_that_is_turned_away_leaves_the_trace_of_the_attempt_as_it_is(tmp_path: Path) -> None:
    """Others train: their attempt has one root, which the node that waits in vain can neither see nor make."""
    port = free_port()
    script, trained, ended = (tmp_path / name for name in ("train.py", "trained", "ended"))
    script.write_text(TRAINS, encoding="utf-8")
    with OtlpSink() as sink:
        command = [*waits_for(1, port), str(script), str(trained), str(ended)]
        trains, waits = (training_environ(tmp_path / name, sink.environ) for name in ("trains", "waits"))
        with subprocess.Popen(command, env=trains) as first:
            while not trained.exists():
                assert first.poll() is None
                time.sleep(0.05)
            with subprocess.Popen(command, env=waits) as second:
                wait_until_it_waits(tmp_path / "waits")
                second.send_signal(signal.SIGTERM)
            ended.touch()
        for name in ("trains", "waits"):
            wait_for_relay(tmp_path / name)

        spans = spans_of(sink)
    ids = [(span.trace, span.span) for span in spans]
    roots = {span.span: span for span in spans if not span.parent and span.name != "training.step"}
    assert first.returncode == 0
    assert len(set(ids)) == len(ids)
    assert {(span.trace, span.parent) for span in spans if span.parent} <= set(ids)
    assert sorted(root.name for root in roots.values()) == ["training.attempt", "training.launcher"]
    assert roots[f"{span_id_of(RUN, 0, 'attempt'):016x}"].error is None
    (launcher,) = (root for root in roots.values() if root.name == "training.launcher")
    assert launcher.links == (f"{span_id_of(RUN, 0, 'attempt'):016x}",)
    # torchrun handles signals once it has workers: until then SIGTERM ends it at once.
    assert launcher.error == "the launcher ended in its rendezvous"


def test_workers_that_fail_before_torch_are_reported(tmp_path: Path) -> None:
    """A typing error in the name of the script: nothing records, and torchrun alone knows why."""
    command = [*TORCHRUN, "--nproc-per-node=2", "--max-restarts=1", f"--rdzv-id={RUN}", str(tmp_path / "trian.py")]

    ended = train_with(*command, state=tmp_path / "state", environ={})
    report = report_of(wait_for_relay(tmp_path / "state"))

    (launcher,) = report.launchers
    assert ended.exit_code == 1
    assert (launcher.attempt, launcher.came_to_ranks, launcher.outcome) == (1, False, "done")
    assert launcher.workers_ended in (1, 2)
    assert report.state == "failed"
    assert shown(report)[0].startswith("no rank ever started: ")
    assert "failed before the import of torch (exit code 2)" in shown(report)[0]


def test_run_that_trains_says_nothing_of_its_launcher(tmp_path: Path) -> None:
    """The line is for what went wrong, and the files are named as ever."""
    command = [*TORCHRUN, f"--rdzv-id={RUN}", str(SCRIPTS / "two_nodes_ddp.py")]
    own_name = {"TRAINSPAN_RUN_ID": RUN}

    train_with(*command, state=tmp_path, environ=own_name)
    folder = wait_for_relay(tmp_path)
    report = report_of(folder)

    assert [launcher.came_to_ranks for launcher in report.launchers] == [True]
    assert shown(report)[0] == f"run {RUN}: finished"
    journals = {"logs.jsonl", "metrics.jsonl", "traces.jsonl"}
    files = {*journals, "summary.json", ".summary.json.lock", f"relay.{os.uname().nodename}.log"}
    assert {entry.name for entry in folder.iterdir() if entry.is_file()} == files
