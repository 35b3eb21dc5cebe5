"""The standard variables mean what the specification says."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from trainspan.errors import SettingError
from trainspan.relay.otlp.destinations import DEFAULT_TIMEOUT_S, Destination, Signal, destination, destinations

ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}


def test_without_endpoint_the_run_folder_is_the_output() -> None:
    """Most first runs have no collector; the specification's default endpoint would give each of them an outage."""
    found = destinations({})

    assert [goal.kind for goal in found.values()] == ["folder", "folder", "folder"]


def test_one_endpoint_serves_all_signals_over_http() -> None:
    """http/protobuf is the specification's default, where the SDK's own is grpc."""
    found = destinations(ENDPOINT)

    assert found == {
        signal: Destination(signal, "otlp", "http/protobuf", f"http://collector:4318/v1/{signal}", insecure=True)
        for signal in ("traces", "metrics", "logs")
    }


@pytest.mark.parametrize(
    ("environ", "url"),
    [
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "https://c:4318/"}, "https://c:4318/v1/traces"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "https://c/otlp"}, "https://c/otlp/v1/traces"),
        ({**ENDPOINT, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://t:9/x"}, "http://t:9/x"),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://t:9"}, "http://t:9/"),
        ({**ENDPOINT, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": " "}, "http://collector:4318/v1/traces"),
        ({**ENDPOINT, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "http://collector:4318"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "c:4317", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "grpc"}, "c:4317"),
    ],
)
def test_url_is_the_specifications(environ: Mapping[str, str], url: str) -> None:
    """A path too much or too little is a 404 that only the collector's log explains."""
    found = destination("traces", environ)

    assert found.url == url


@pytest.mark.parametrize(
    ("environ", "insecure"),
    [
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:1"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "https://c:1", "OTEL_EXPORTER_OTLP_INSECURE": "true"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "c:1"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "c:1", "OTEL_EXPORTER_OTLP_INSECURE": "true"}, True),
    ],
)
def test_scheme_decides_about_encryption(environ: Mapping[str, str], insecure: bool) -> None:
    """What the user marked as https must never go in the clear."""
    found = destination("traces", {**environ, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"})

    assert found.insecure is insecure


@pytest.mark.parametrize(
    ("text", "timeout_s"),
    [
        ("", DEFAULT_TIMEOUT_S),
        ("10000", 10.0),
        ("100", 0.1),
        ("10", 10.0),
        ("99", 99.0),
        ("2.5", 2.5),
        ("250.5", 250.5),
    ],
)
def test_timeout_is_milliseconds_unless_it_cannot_be(text: str, timeout_s: float) -> None:
    """Python's exporters read seconds: 10 ms would fail every export, and 10000 s would hang for hours."""
    found = destination("traces", {**ENDPOINT, "OTEL_EXPORTER_OTLP_TIMEOUT": text})

    assert found.timeout_s == timeout_s


def test_form_of_a_signal_wins(tmp_path: Path) -> None:
    """Traces often go to another vendor than metrics, with another token."""
    pem = tmp_path / "ca.pem"
    pem.write_text("-")
    environ = {
        **ENDPOINT,
        "OTEL_EXPORTER_OTLP_HEADERS": "a=1",
        "OTEL_EXPORTER_OTLP_TRACES_HEADERS": "Authorization=Bearer%20x,b=2",
        "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT": "3000",
        "OTEL_EXPORTER_OTLP_TRACES_COMPRESSION": "gzip",
        "OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE": str(pem),
        "OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY": str(pem),
        "OTEL_EXPORTER_OTLP_TRACES_CLIENT_CERTIFICATE": str(pem),
    }

    traces, metrics = destination("traces", environ), destination("metrics", environ)

    assert traces == Destination(
        "traces",
        "otlp",
        "http/protobuf",
        "http://collector:4318/v1/traces",
        headers={"authorization": "Bearer x", "b": "2"},
        timeout_s=3.0,
        gzip=True,
        certificate=str(pem),
        client_key=str(pem),
        client_certificate=str(pem),
        insecure=True,
    )
    assert metrics.headers == {"a": "1"}
    assert not metrics.gzip


@pytest.mark.parametrize(
    ("environ", "kind"),
    [
        ({**ENDPOINT, "OTEL_TRACES_EXPORTER": "none"}, "none"),
        ({**ENDPOINT, "OTEL_TRACES_EXPORTER": "otlp"}, "otlp"),
        ({**ENDPOINT, "OTEL_TRACES_EXPORTER": "console"}, "console"),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, "folder"),
        ({**ENDPOINT, "OTEL_TRACES_EXPORTER": "otlp,console"}, "otlp"),
        ({**ENDPOINT, "OTEL_TRACES_EXPORTER": " console , OTLP,"}, "otlp"),
        ({**ENDPOINT, "OTEL_TRACES_EXPORTER": "zipkin,console"}, "console"),
        ({**ENDPOINT, "OTEL_TRACES_EXPORTER": "none,otlp"}, "otlp"),
        ({**ENDPOINT, "OTEL_METRICS_EXPORTER": "none"}, "otlp"),
        ({**ENDPOINT, "OTEL_SDK_DISABLED": "TRUE"}, "none"),
        ({**ENDPOINT, "OTEL_SDK_DISABLED": "1"}, "otlp"),
    ],
)
def test_exporter_is_chosen(environ: Mapping[str, str], kind: str) -> None:
    """Who switches a signal off has a reason: a bill, or a rule."""
    found = destination("traces", environ)

    assert found.kind == kind


def test_exporters_beside_the_one_are_known() -> None:
    """Who has asked for two must hear that one of them gets nothing from us."""
    found = destination("metrics", {**ENDPOINT, "OTEL_METRICS_EXPORTER": "prometheus,otlp,none,console"})

    assert (found.kind, found.beside) == ("otlp", ("prometheus", "console"))


@pytest.mark.parametrize(
    ("signal", "variable", "value", "accepted"),
    [
        ("traces", "OTEL_TRACES_EXPORTER", "jaeger", "otlp, none or console"),
        ("traces", "OTEL_TRACES_EXPORTER", "jaeger,zipkin", "otlp, none or console"),
        ("traces", "OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4318", "http://host:port"),
        ("traces", "OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:port", "http://host:port"),
        ("logs", "OTEL_EXPORTER_OTLP_LOGS_ENDPOINT", "ftp://c", "http://host:port"),
        ("traces", "OTEL_EXPORTER_OTLP_PROTOCOL", "http/json", "http/protobuf or grpc"),
        ("traces", "OTEL_EXPORTER_OTLP_COMPRESSION", "zip", "none or gzip"),
        ("traces", "OTEL_EXPORTER_OTLP_TIMEOUT", "-1", "milliseconds"),
        ("traces", "OTEL_EXPORTER_OTLP_TIMEOUT", "0", "milliseconds"),
        ("traces", "OTEL_EXPORTER_OTLP_CERTIFICATE", "/nowhere/ca.pem", "PEM file"),
    ],
)
def test_what_is_not_understood_is_said(signal: Signal, variable: str, value: str, accepted: str) -> None:
    """A misspelt variable that is taken for another value costs somebody a day."""
    environ = {**ENDPOINT, variable: value}

    with pytest.raises(SettingError) as caught:
        destination(signal, environ)

    assert str(caught.value).startswith(f"{variable}={value!r} is not understood: use ")
    assert accepted in str(caught.value)


def test_headers_are_never_shown(capfd: pytest.CaptureFixture[str]) -> None:
    """They hold tokens, and logs of training jobs are read by many; the SDK's own complaint prints the header."""
    good = {**ENDPOINT, "OTEL_EXPORTER_OTLP_HEADERS": "authorization=s3cret"}
    bad = {**ENDPOINT, "OTEL_EXPORTER_OTLP_HEADERS": "authorization: s3cret"}

    shown = repr(destination("traces", good))
    with pytest.raises(SettingError, match="OTEL_EXPORTER_OTLP_HEADERS") as caught:
        destination("traces", bad)

    assert "s3cret" not in shown + str(caught.value) + "".join(capfd.readouterr())


def test_place_shows_no_secret() -> None:
    """It goes into messages and into `doctor`; some vendors put the token into the path."""
    environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": "https://user:s3cret@c:4318/s3cret"}

    place = destination("traces", environ).place

    assert place == "https://c:4318"
