"""`trainspan doctor` against real endpoints that fail in the ways endpoints fail."""

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from trainspan.cli.checks import endpoints, installation, job, signals, storage
from trainspan.cli.main import main
from trainspan.relay.otlp.destinations import Destination, Signal
from trainspan.relay.otlp.reach import ask
from trainspan.settings import load
from trainspan.testing.otlp_sink import Fault, OtlpSink, Protocol

PROTOCOLS: tuple[Protocol, ...] = ("http/protobuf", "grpc")
PATIENT_S = 30.0
HASTY_S = 0.5


@pytest.fixture(autouse=True)
def direct(monkeypatch: pytest.MonkeyPatch) -> None:
    """No proxy of the machine between a test and its server."""
    for name in ("http_proxy", "https_proxy", "grpc_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setenv("GRPC_VERBOSITY", "NONE")


@contextmanager
def listener(answer: bytes | None) -> Iterator[int]:
    """The port of a server that takes connections and says `answer` to whatever comes; None: nothing, ever."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(1)
                    connection.sendall(answer or b"")

        if answer is not None:
            threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


def free_port() -> int:
    """A port on which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


def to(protocol: Protocol, url: str, signal: Signal = "traces", **more: Any) -> Destination:
    """Where a signal goes."""
    path = f"/v1/{signal}" if protocol == "http/protobuf" else ""
    return Destination(signal, "otlp", protocol, url + path, insecure=url.startswith("http://"), **more)


@pytest.mark.parametrize("signal", ["traces", "metrics", "logs"])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_empty_export_is_accepted_and_leaves_nothing(protocol: Protocol, signal: Signal) -> None:
    """Only a real request proves that the port takes this signal; a backend must not see a span of it."""
    with OtlpSink(protocol) as sink:
        answer = ask(to(protocol, sink.endpoint, signal, headers={"Authorization": "Bearer x"}), PATIENT_S)

        (received,) = sink.received()

    assert answer.verdict == "accepted"
    assert received.signal == signal
    assert received.headers["authorization"] == "Bearer x"
    assert received.request.ByteSize() == 0


@pytest.mark.parametrize(
    ("fault", "verdict"),
    [
        (Fault.REFUSE, "unavailable"),
        (Fault.FORBID, "unauthorized"),
        (Fault.REJECT, "rejected"),
        (Fault.SILENT, "silent"),
    ],
)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_refusals_are_told_apart(protocol: Protocol, fault: Fault, verdict: str) -> None:
    """A missing token, a full collector and a dropped packet want three different remedies."""
    with OtlpSink(protocol) as sink:
        sink.fault = fault

        answer = ask(to(protocol, sink.endpoint), HASTY_S if fault is Fault.SILENT else PATIENT_S)

    assert answer.verdict == verdict


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_nothing_there_is_refused(protocol: Protocol) -> None:
    """The commonest case: the collector is not running."""
    answer = ask(to(protocol, f"http://127.0.0.1:{free_port()}"), PATIENT_S)

    assert answer.verdict == "refused"
    assert "Connection refused" in answer.seen


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_unknown_host_is_a_matter_of_dns(protocol: Protocol) -> None:
    """A service name from another namespace is no matter of ports."""
    answer = ask(to(protocol, "http://collector.invalid:4318"), PATIENT_S)

    assert answer.verdict == "dns"


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_plain_text_port_fails_the_tls_handshake(protocol: Protocol) -> None:
    """`https://` before a collector without TLS: the exporter would only say that it failed."""
    with OtlpSink("http/protobuf") as sink:
        answer = ask(to(protocol, sink.endpoint.replace("http://", "https://")), PATIENT_S)

    assert answer.verdict == "tls"


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_open_port_that_never_answers_is_silent(protocol: Protocol) -> None:
    """What a firewall that drops packets looks like."""
    with listener(None) as port:
        answer = ask(to(protocol, f"http://127.0.0.1:{port}"), HASTY_S)

    assert answer.verdict == "silent"


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_other_service_is_not_taken_for_otlp(protocol: Protocol) -> None:
    """Port 22, port 9090: an open port is not an endpoint."""
    with listener(b"SSH-2.0-OpenSSH_9.2\r\n") as port:
        answer = ask(to(protocol, f"http://127.0.0.1:{port}"), PATIENT_S)

    assert answer.verdict == "not_otlp"


def test_web_page_is_not_taken_for_otlp() -> None:
    """A login page answers 200 to everything; the exporter would take it for success and everything would be lost."""
    page = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    with listener(page) as port:
        answer = ask(to("http/protobuf", f"http://127.0.0.1:{port}"), PATIENT_S)

    assert answer.verdict == "not_otlp"


def test_the_other_protocols_port_is_recognised() -> None:
    """4317 and 4318 are mixed up every day."""
    with OtlpSink("http/protobuf") as sink:
        answer = ask(to("grpc", sink.endpoint), PATIENT_S)

    assert answer.verdict == "not_otlp"


def test_wrong_path_is_not_found() -> None:
    """A signal's own endpoint is used as it is; without /v1/traces it leads nowhere."""
    with OtlpSink("http/protobuf") as sink:
        answer = ask(Destination("traces", "otlp", "http/protobuf", f"{sink.endpoint}/otlp/"), PATIENT_S)

    assert answer.verdict == "not_found"


def examined(environ: Mapping[str, str]) -> dict[str, Any]:
    """What doctor says as JSON, with its exit code."""
    command = [sys.executable, "-m", "trainspan", "doctor", "--json"]
    ran = subprocess.run(command, env={**os.environ, **environ}, capture_output=True, text=True, check=False)
    return {**json.loads(ran.stdout), "code": ran.returncode, "said": ran.stdout + ran.stderr}


def test_everything_in_place_is_exit_code_0() -> None:
    """A job script runs it before the job."""
    with OtlpSink("grpc") as sink:
        report = examined(sink.environ)

    assert [finding for finding in report["findings"] if finding["state"] == "problem"] == []
    assert (report["ok"], report["code"]) == (True, 0)
    verdicts = [finding["facts"]["verdict"] for finding in report["findings"] if finding["area"] == "export"]
    assert verdicts == ["accepted"] * 3


def test_unreachable_endpoint_is_exit_code_1_and_says_what_to_do() -> None:
    """The message is read by somebody who has never heard of OTLP."""
    environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{free_port()}", "OTEL_LOGS_EXPORTER": "none"}

    report = examined(environ)

    traces, metrics, logs = (finding for finding in report["findings"] if finding["area"] == "export")
    assert (report["ok"], report["code"]) == (False, 1)
    assert (traces["state"], metrics["state"], logs["state"]) == ("problem", "problem", "note")
    assert traces["facts"]["verdict"] == "refused"
    assert traces["advice"].startswith("start the Collector there, or correct OTEL_EXPORTER_OTLP_ENDPOINT")


def test_secrets_are_never_shown() -> None:
    """The output is pasted into tickets."""
    with OtlpSink("http/protobuf") as sink:
        endpoint = sink.endpoint.replace("http://", "http://user:hunter2@")
        report = examined({"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_EXPORTER_OTLP_HEADERS": "x-api-key=hunter2"})

    assert "hunter2" not in report["said"]
    assert report["findings"][-1]["facts"]["headers"] == ["x-api-key"]


def test_bad_setting_is_exit_code_2_and_all_else_is_still_said() -> None:
    """Whoever asks a doctor wants to hear everything at once."""
    report = examined({"TRAINSPAN_RELAY": "sometimes"})

    settings = [finding for finding in report["findings"] if finding["area"] == "settings"]
    assert report["code"] == 2
    assert settings[0]["text"].startswith("TRAINSPAN_RELAY='sometimes' is not understood: use process, thread or off")
    assert {finding["area"] for finding in report["findings"]} >= {"installation", "job", "storage", "export"}


def test_bad_otel_variable_is_a_problem() -> None:
    """A protocol that is misspelled would be found out by an empty dashboard."""
    findings = list(
        endpoints.check({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x:1", "OTEL_EXPORTER_OTLP_PROTOCOL": "htp"})
    )

    assert [finding.state for finding in findings] == ["problem"]
    assert "OTEL_EXPORTER_OTLP_PROTOCOL='htp' is not understood" in findings[0].text


@pytest.mark.parametrize(
    ("environ", "state", "text"),
    [
        (
            {},
            "ok",
            "traces of the first 5 steps of an attempt, 0.01 of the others, and of slow, straggling, failed and last",
        ),
        ({"OTEL_TRACES_SAMPLER": "always_off"}, "note", "no traces, OTEL_TRACES_SAMPLER=always_off"),
        (
            {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.25"},
            "ok",
            "traces of 0.25 of the steps and of those that fail, OTEL_TRACES_SAMPLER=traceidratio",
        ),
        (
            {"TRAINSPAN_SPANS_EVERY": "10"},
            "ok",
            "traces of every step that 10 divides, and of slow, straggling, failed and last",
        ),
    ],
)
def test_sampling_in_force_is_shown(environ: dict[str, str], state: str, text: str) -> None:
    """Which steps are in Jaeger is the first thing that surprises."""
    findings = list(signals.check(environ))

    assert findings[0].state == state
    assert findings[0].text.startswith(text)


@pytest.mark.parametrize(
    ("variable", "value", "accepted"),
    [
        ("OTEL_TRACES_SAMPLER", "bogus", "use always_on, always_off, "),
        ("OTEL_METRIC_EXPORT_INTERVAL", "abc", "use milliseconds from 1; going on with 60000"),
        ("OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION", "exp", "use explicit_bucket_histogram or "),
    ],
)
def test_variable_that_the_relay_would_complain_of_is_a_problem(variable: str, value: str, accepted: str) -> None:
    """The relay's log is read by nobody before the run."""
    report = examined({variable: value})

    [found] = [finding for finding in report["findings"] if finding["state"] == "problem"]
    assert report["code"] == 1
    assert found["text"].startswith(f"{variable}={value!r} is not understood: {accepted}")
    assert found["facts"]["variable"] == variable


@pytest.mark.parametrize(("preferred", "notes"), [("delta", 1), ("LowMemory", 1), ("Cumulative", 0), ("", 0)])
def test_temporality_that_is_not_honoured_is_said(preferred: str, notes: int) -> None:
    """A backend for deltas shows sums that only grow, and nobody knows why."""
    findings = signals.check({"OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE": preferred})

    said = [finding.text for finding in findings if finding.state == "note"]
    assert len(said) == notes
    assert all("is not honoured: metrics are cumulative" in text for text in said)


def test_findings_fit_80_columns(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """It is read in small terminals and in job logs."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TRAINSPAN_RUN_ID", "x" * 128)

    main(["doctor"])

    shown = capsys.readouterr().out
    assert max(len(line) for line in shown.splitlines()) <= 80
    assert "everything is in place" in shown


@pytest.mark.parametrize(
    ("version", "importable", "state", "text"),
    [
        ("2.13.0+cpu", True, "ok", "torch 2.13.0+cpu"),
        ("2.9.0a0+50eac811a6.nv25.10", True, "ok", "torch 2.9.0a0+50eac811a6.nv25.10"),
        ("2.3.1", True, "problem", "torch 2.3.1 is too old"),
        (None, True, "note", "torch is there, but does not say its version"),
        (None, False, "problem", "torch is not installed: there is nothing to record"),
    ],
)
def test_torch_is_judged_by_its_version(version: str | None, importable: bool, state: str, text: str) -> None:
    """Builds of vendors and nightlies have versions that no comparison of strings survives."""
    finding = installation.torch_finding(version, importable=importable)

    assert (finding.state, finding.text) == (state, text)


@pytest.mark.parametrize(("python", "state"), [([sys.executable], "ok"), ([sys.executable, "-S"], "problem")])
def test_start_up_hook_is_seen_to_work_or_not(python: list[str], state: str) -> None:
    """A file that is there proves nothing: -S, a zipped or a broken installation never read it."""
    finding = installation.hook_finding(python, os.environ)

    assert finding.state == state


@pytest.mark.parametrize(
    ("environ", "state", "text"),
    [
        ({}, "ok", "no launcher and no scheduler seen: one process alone"),
        (
            {"SLURM_JOB_ID": "77", "SLURM_STEP_ID": "0", "SLURM_PROCID": "3", "SLURM_NTASKS": "8"},
            "ok",
            "Slurm gives run 77.0, attempt 0, rank 3 of 8",
        ),
        ({"RANK": "1", "WORLD_SIZE": "4"}, "note", "this is rank 1 of 4, but nobody gives the run an id"),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "note", "Kubernetes, and nobody gives the run an id"),
    ],
)
def test_launcher_is_recognised(environ: dict[str, str], state: str, text: str) -> None:
    """Ranks that do not agree on a run id make as many runs as there are ranks."""
    in_force, _ = load(environ)

    finding = list(job.check(in_force, environ))[-1]

    assert (finding.state, finding.text) == (state, text)


def test_storage_that_cannot_be_used_is_a_problem(tmp_path: Path) -> None:
    """A read-only home is usual on compute nodes; found out before the job, it costs one variable."""
    occupied = tmp_path / "file"
    occupied.write_text("", encoding="utf-8")
    environ = {"TRAINSPAN_DIR": str(occupied / "state"), "TRAINSPAN_RECORDING_DIR": str(tmp_path / "recordings")}
    in_force, _ = load(environ)

    runs, recordings = storage.check(in_force, environ)

    assert (runs.state, runs.text) == ("problem", f"run folders: {occupied} is not a directory")
    assert recordings.state == "ok"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"]
