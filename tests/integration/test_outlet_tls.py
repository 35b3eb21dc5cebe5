"""Encrypted endpoints, with and without client certificates, over both protocols."""

import shutil
import subprocess
import time
from pathlib import Path

import pytest
from opentelemetry._logs import LogRecord
from opentelemetry.sdk._logs import ReadableLogRecord
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanContext, TraceFlags

from trainspan.errors import SettingError
from trainspan.relay.otlp.destinations import destination
from trainspan.relay.otlp.exporters import build
from trainspan.relay.otlp.outlet import Outlet
from trainspan.relay.otlp.reach import ask
from trainspan.relay.otlp.replay import replay
from trainspan.relay.otlp.resource import HashedResource
from trainspan.testing.otlp_sink import OtlpSink, Protocol, Tls

NEW_KEY = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"
PROTOCOLS: tuple[Protocol, ...] = ("http/protobuf", "grpc")

pytestmark = pytest.mark.skipif(
    shutil.which("openssl") is None,
    reason="openssl makes the certificates; would have shown that TLS and client certificates work over both protocols",
)


@pytest.fixture(autouse=True)
def _bundle_of_the_host(pem: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many hosts name a bundle of their own, which must not count for an endpoint with a certificate of its own."""
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(pem / "other.pem"))
    monkeypatch.setenv("GRPC_VERBOSITY", "NONE")


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a CA, and a server's and a client's certificate of it."""
    folder = tmp_path_factory.mktemp("pem")
    for name in ("ca", "other"):
        _openssl(folder, f"req -x509 {NEW_KEY} -days 2 -subj /CN={name} -keyout {name}.key -out {name}.pem")
    (folder / "san").write_text("subjectAltName=IP:127.0.0.1")
    for name in ("server", "client"):
        _openssl(folder, f"req {NEW_KEY} -subj /CN={name} -keyout {name}.key -out {name}.csr")
        signing = f"x509 -req -in {name}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile san"
        _openssl(folder, f"{signing} -out {name}.pem")
    return folder


def _openssl(folder: Path, arguments: str) -> None:
    subprocess.run(["openssl", *arguments.split()], cwd=folder, check=True, capture_output=True)


def a_span() -> ReadableSpan:
    """Any span."""
    context = SpanContext(1, 1, False, TraceFlags(1))
    return ReadableSpan("secret", context, resource=HashedResource({"service.name": "t"}))


def a_record() -> ReadableLogRecord:
    """Any log record."""
    return ReadableLogRecord(LogRecord(timestamp=1, body="secret"), HashedResource({"service.name": "t"}))


def deliver(folder: Path, environ: dict[str, str], timeout_s: float) -> bool:
    """Whether a span arrived."""
    outlet = Outlet(folder, 0, environ, 1 << 20, print)
    outlet.put_spans([a_span()])
    return outlet.close(timeout_s)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_server_with_a_certificate_of_its_own_ca(protocol: Protocol, pem: Path, tmp_path: Path) -> None:
    """Clusters have their own CA, and `OTEL_EXPORTER_OTLP_CERTIFICATE` names it."""
    with OtlpSink(protocol, Tls(pem / "server.pem", pem / "server.key")) as sink:
        environ = {**sink.environ, "OTEL_EXPORTER_OTLP_CERTIFICATE": str(pem / "ca.pem")}

        delivered = deliver(tmp_path, environ, timeout_s=20)

    assert delivered


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_server_of_an_unknown_ca_gets_nothing(protocol: Protocol, pem: Path, tmp_path: Path) -> None:
    """Whoever answers at that address is not who the user meant."""
    with OtlpSink(protocol, Tls(pem / "server.pem", pem / "server.key")) as sink:
        delivered = deliver(tmp_path, {**sink.environ, "OTEL_EXPORTER_OTLP_TIMEOUT": "0.4"}, timeout_s=0.5)

        attempts = sink.attempts
    assert not delivered
    assert attempts == 0


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_client_shows_its_certificate(protocol: Protocol, pem: Path, tmp_path: Path) -> None:
    """The SDK's own grpc set-up leaves it out unless the server's CA is given for the same signal."""
    with OtlpSink(protocol, Tls(pem / "server.pem", pem / "server.key", client_ca=pem / "ca.pem")) as sink:
        environ = {
            **sink.environ,
            "OTEL_EXPORTER_OTLP_CERTIFICATE": str(pem / "ca.pem"),
            "OTEL_EXPORTER_OTLP_CLIENT_KEY": str(pem / "client.key"),
            "OTEL_EXPORTER_OTLP_TRACES_CLIENT_CERTIFICATE": str(pem / "client.pem"),
        }

        delivered = deliver(tmp_path, environ, timeout_s=20)

    assert delivered


def with_certificates(sink: OtlpSink, pem: Path, ca: str | None, client: str | None) -> dict[str, str]:
    """The environment of a client that trusts `ca` and shows the certificate of `client`."""
    files = {"CERTIFICATE": ca, "CLIENT_CERTIFICATE": client, "CLIENT_KEY": client and client.replace(".pem", ".key")}
    given = {f"OTEL_EXPORTER_OTLP_{name}": str(pem / file) for name, file in files.items() if file}
    return {**sink.environ, **given}


@pytest.mark.parametrize(
    ("ca", "client", "verdict", "said"),
    [
        ("ca.pem", None, "tls_client_missing", "it wants a client certificate ("),
        ("ca.pem", "other.pem", "tls_client", "it does not accept our client certificate ("),
        ("other.pem", "client.pem", "tls_server", "its certificate is not trusted here ("),
    ],
    ids=["missing", "stranger", "unknown-server"],
)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_refused_certificate_is_said_once(
    protocol: Protocol, pem: Path, tmp_path: Path, ca: str, client: str | None, verdict: str, said: str
) -> None:
    """Three signals have one cause; an exporter alone would say `SSLError`, or nothing before its timeout."""
    messages: list[str] = []
    with OtlpSink(protocol, Tls(pem / "server.pem", pem / "server.key", client_ca=pem / "ca.pem")) as sink:
        environ = with_certificates(sink, pem, ca, client)
        outlet = Outlet(tmp_path, 0, environ, 1 << 20, messages.append)
        outlet.put_spans([a_span()])
        outlet.put_logs([a_record()])

        deadline = time.monotonic() + 60
        while not messages and time.monotonic() < deadline:
            time.sleep(0.02)
        delivered = outlet.close(0.5)
        answer = ask(destination("traces", environ), 20)
        replayed = replay(tmp_path, environ, 120, lambda _: None)

        attempts = sink.attempts
    assert not delivered
    assert attempts == 0
    assert answer.verdict == verdict
    # By hand too, and long before the time is up.
    assert replayed.problems == tuple(messages)
    assert len(messages) == 1
    assert messages[0].startswith(f"{sink.endpoint}: {said}")


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        ({"CLIENT_KEY": "client.key"}, "without a client certificate"),
        ({"CLIENT_KEY": "server.key", "CLIENT_CERTIFICATE": "client.pem"}, "KEY_VALUES_MISMATCH"),
        ({"CERTIFICATE": "san"}, "NO_CERTIFICATE"),
    ],
)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_files_that_make_no_client_are_said_at_the_start(
    protocol: Protocol, names: dict[str, str], reason: str, pem: Path
) -> None:
    """gRPC aborts the process over the first of these, which in thread mode is the training process."""
    files = {f"OTEL_EXPORTER_OTLP_{name}": str(pem / file) for name, file in names.items()}
    environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": "https://127.0.0.1:1", "OTEL_EXPORTER_OTLP_PROTOCOL": protocol, **files}

    with pytest.raises(SettingError) as caught:
        build(destination("traces", environ))

    assert reason in str(caught.value)
