"""A real training run over mutual TLS to the real collector: let in, or one clear message and nothing else."""

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.backends.runs import spans_in
from tests.backends.stack import Stack
from tests.integration.relayed import REPOSITORY, command_line, run_folder, train, wait_for_relay
from trainspan.identity import trace_id_of

pytestmark = pytest.mark.backends("that mutual TLS lets in only who is known, and says clearly who is not")

CLIENTS = {
    "missing": ("ca", None, "it wants a client certificate (certificate required); give one: "),
    "stranger": ("ca", "stranger", "it does not accept our client certificate (unknown ca); let an authority "),
    "unknown-server": ("stranger", "client", "its certificate is not trusted here ("),
}


def environment(stack: Stack, protocol: str, ca: str, client: str | None) -> dict[str, str]:
    """What a job is given to reach the stack."""
    tls = stack.folder / "tls"
    shown = {"CLIENT_CERTIFICATE": f"{tls / client}.crt", "CLIENT_KEY": f"{tls / client}.key"} if client else {}
    files = {"CERTIFICATE": str(tls / f"{ca}.crt"), **shown}
    return {
        "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
        "OTEL_EXPORTER_OTLP_ENDPOINT": stack.otlp_grpc if protocol == "grpc" else stack.otlp_http,
        **{f"OTEL_EXPORTER_OTLP_{name}": value for name, value in files.items()},
    }


class Refused(NamedTuple):
    """A job that was not let in. `who`: of CLIENTS."""

    who: str
    folder: Path
    run: str


@pytest.fixture(scope="module", params=["stranger", "missing"])
def refused_run(tls_stack: Stack, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Refused:
    """A job whose certificate was refused, or that has none; it has ended."""
    state = tmp_path_factory.mktemp("refused")
    run = f"mtls-{state.name}-{state.parent.name}"
    ca, client, _ = CLIENTS[request.param]
    secrets = environment(tls_stack, "http/protobuf", ca, client)
    environ = {**secrets, "TRAINSPAN_RUN_ID": run, "PYTHONPATH": str(REPOSITORY)}
    ended = train("ddp.py", state=state, environ=environ, ranks=2)
    assert ended.exit_code == 0, ended.stderr
    assert "trainspan" not in ended.stderr
    wait_for_relay(state)
    return Refused(request.param, run_folder(state), run)


def test_refused_job_trains_and_its_relay_says_why_once(tls_stack: Stack, refused_run: Refused) -> None:
    """Who forgot a secret must read why there is nothing on the screen, and must not lose a step of training."""
    (log,) = refused_run.folder.glob("relay.*.log")

    told, left = (line.partition("trainspan relay: ")[2] for line in log.read_text().splitlines())
    assert told.startswith(f"{tls_stack.otlp_http}: {CLIENTS[refused_run.who][2]}")
    means = CLIENTS[refused_run.who][2].partition(" (")[0]
    assert left == (
        f"{tls_stack.otlp_http} has not taken traces, metrics, logs ({means}); they wait on disk: "
        f"trainspan replay {refused_run.folder}"
    )
    assert not tls_stack.has_trace(trace_id_of(refused_run.run, 0, "attempt"))


def test_right_certificate_delivers_what_was_refused(tls_stack: Stack, refused_run: Refused) -> None:
    """Nothing was lost meanwhile: every step that was sampled is there, with both ranks."""
    _, folder, run = refused_run
    environ = {**environment(tls_stack, "grpc", "ca", "client"), "TRAINSPAN_DIR": str(folder.parents[1])}
    step = trace_id_of(run, 0, "step", 0)
    written = spans_in(folder)[f"{step:032x}"]

    code = command_line("replay", run, environ=environ)

    trace = tls_stack.trace(step, len(written))
    names = sorted(span["operationName"] for span in trace["spans"])
    assert code == 0
    assert names.count("training.rank_step") == 2
    assert all(not span["warnings"] for span in trace["spans"])


@pytest.mark.parametrize("who", CLIENTS)
@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_doctor_says_once_which_certificate_is_wrong(tls_stack: Stack, protocol: str, who: str) -> None:
    """Asked before the job, it saves the job's first hour."""
    ca, client, said = CLIENTS[who]
    environ = environment(tls_stack, protocol, ca, client)

    asked = doctor(environ)

    problems = [line for line in asked.stdout.splitlines() if line.lstrip().startswith("problem")]
    whole = " ".join(asked.stdout.split())
    assert asked.returncode == 1
    assert len(problems) == 1
    assert f"traces, metrics, logs to {environ['OTEL_EXPORTER_OTLP_ENDPOINT']} ({protocol}): " in whole
    assert said.partition(";")[0] in whole
    assert asked.stderr == ""


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_doctor_finds_the_right_certificate_in_place(tls_stack: Stack, protocol: str) -> None:
    """The three files are the whole set-up."""
    asked = doctor(environment(tls_stack, protocol, "ca", "client"))

    assert asked.returncode == 0, asked.stdout
    assert "everything is in place" in asked.stdout


def doctor(environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """`trainspan doctor` with this environment."""
    command = [sys.executable, "-m", "trainspan", "doctor"]
    return subprocess.run(command, env={**os.environ, **environ}, capture_output=True, text=True, check=False)
