"""Where each signal goes, from the standard `OTEL_*` variables.

A signal without an endpoint goes nowhere: the run folder is the output. The specification's own default endpoint,
`http://localhost:4318`, would make every run without a collector one with an outage.

A list of exporters (`otlp,console`) is the specification's. Each signal goes to one place here: to OTLP where that is
in the list, else to the console. What stands beside it is for the script's own SDK, and is said.

The protocol is `http/protobuf` where none is given, as the specification says; the SDK's own default is grpc.

Timeouts. The specification counts `OTEL_EXPORTER_OTLP_TIMEOUT` in milliseconds, Python's exporters (1.45.2) read the
same variable in seconds, and both are in use. Here a whole number from 100 on is milliseconds. Anything below, or with
a fraction, is seconds, as whoever wrote it for Python meant it: as milliseconds it would fail every export.

Source: https://opentelemetry.io/docs/specs/otel/protocol/exporter/
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias
from urllib.parse import urlsplit

from opentelemetry.util.re import parse_env_headers

from trainspan.errors import SettingError
from trainspan.relay.otlp.sdk_logs import listening

Signal: TypeAlias = Literal["traces", "metrics", "logs"]
Kind: TypeAlias = Literal["otlp", "console", "folder", "none"]

SIGNALS: tuple[Signal, ...] = ("traces", "metrics", "logs")

DEFAULT_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Destination:
    """Where one signal goes.

    `kind`: an OTLP endpoint; the console; the run folder alone; or nowhere, not even there.
    `url`: as the exporter uses it; grpc takes `host:port` too. The rest counts for `otlp`, but for `beside`: what else
    the list of exporters names.
    """

    signal: Signal
    kind: Kind
    protocol: str = "http/protobuf"
    url: str = ""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    timeout_s: float = DEFAULT_TIMEOUT_S
    gzip: bool = False
    certificate: str | None = None
    client_key: str | None = None
    client_certificate: str | None = None
    insecure: bool = False
    beside: tuple[str, ...] = ()

    @property
    def has_tls(self) -> bool:
        """Whether it is an endpoint to which the connection is encrypted."""
        if self.kind != "otlp":
            return False
        return not self.insecure if self.protocol == "grpc" else self.url.startswith("https://")

    @property
    def place(self) -> str:
        """`url` as it may be shown: without a password, a path or a query, which can hold a token."""
        if self.kind != "otlp":
            return self.kind
        scheme, separator, rest = self.url.rpartition("://")
        return scheme + separator + rest.partition("/")[0].rpartition("@")[2]


def destinations(environ: Mapping[str, str]) -> dict[Signal, Destination]:
    """Where every signal goes.

    Raises:
        SettingError: a variable has a value that is not understood.
    """
    return {signal: destination(signal, environ) for signal in SIGNALS}


def destination(signal: Signal, environ: Mapping[str, str]) -> Destination:
    """Where `signal` goes.

    Raises:
        SettingError: a variable has a value that is not understood.
    """
    choice, beside = _exporter(environ, f"OTEL_{signal.upper()}_EXPORTER")
    if _is_true(environ.get("OTEL_SDK_DISABLED", "")) or choice == "none":
        return Destination(signal, "none")
    if choice == "console":
        return Destination(signal, "console", beside=beside)
    endpoint = _given(environ, signal, "ENDPOINT")
    found = _otlp(signal, environ, *endpoint) if endpoint else Destination(signal, "folder")
    return replace(found, beside=beside)


def _exporter(environ: Mapping[str, str], variable: str) -> tuple[str, tuple[str, ...]]:
    """The exporter that a list names, and what it names beside."""
    named = [name for text in environ.get(variable, "").lower().split(",") if (name := text.strip())]
    for exporter in ("otlp", "console", "none"):
        if exporter in named:
            return exporter, tuple(name for name in named if name not in (exporter, "none"))
    return _choice(environ, (variable,), ("otlp", "none", "console")), ()


def _otlp(signal: Signal, environ: Mapping[str, str], endpoint_variable: str, endpoint: str) -> Destination:
    protocol = _choice(environ, _names(signal, "PROTOCOL"), ("http/protobuf", "grpc"))
    specific = endpoint_variable == _names(signal, "ENDPOINT")[0]
    check, make_url = (_check_grpc, _grpc_url) if protocol == "grpc" else (_check_http, _http_url)
    if not check(endpoint):
        raise _not_understood(endpoint_variable, endpoint, "use http://host:port or https://host:port")
    insecure = _choice(environ, _names(signal, "INSECURE"), ("false", "true"))
    return Destination(
        signal,
        "otlp",
        protocol,
        make_url(signal, endpoint, specific),
        headers=_headers(environ, signal),
        timeout_s=_timeout_s(environ, signal),
        gzip=_choice(environ, _names(signal, "COMPRESSION"), ("none", "gzip")) == "gzip",
        certificate=_file(environ, signal, "CERTIFICATE"),
        client_key=_file(environ, signal, "CLIENT_KEY"),
        client_certificate=_file(environ, signal, "CLIENT_CERTIFICATE"),
        # A scheme says it, and wins over the variable.
        insecure=endpoint.startswith("http://") or (insecure == "true" and not endpoint.startswith("https://")),
    )


def _names(signal: Signal, what: str) -> tuple[str, str]:
    """The variable of one signal, and the one for all."""
    return f"OTEL_EXPORTER_OTLP_{signal.upper()}_{what}", f"OTEL_EXPORTER_OTLP_{what}"


def _given(environ: Mapping[str, str], signal: Signal, what: str) -> tuple[str, str] | None:
    """(variable, value) of the first that is set; an empty value counts as unset, as the specification has it."""
    return next(((name, text) for name in _names(signal, what) if (text := environ.get(name, "").strip())), None)


def _choice(environ: Mapping[str, str], variables: tuple[str, ...], accepted: tuple[str, ...]) -> str:
    """The value of the first variable that is set, else the first that is accepted."""
    for variable in variables:
        text = environ.get(variable, "").strip().lower()
        if text and text not in accepted:
            raise _not_understood(variable, text, f"use {', '.join(accepted[:-1])} or {accepted[-1]}")
        if text:
            return text
    return accepted[0]


def _is_true(text: str) -> bool:
    return text.strip().lower() == "true"


def _check_http(endpoint: str) -> bool:
    try:
        parts = urlsplit(endpoint)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _check_grpc(endpoint: str) -> bool:
    return _check_http(endpoint) if "://" in endpoint else bool(re.fullmatch(r"[^\s/]+:\d{1,5}|unix:\S+", endpoint))


def _http_url(signal: Signal, endpoint: str, specific: bool) -> str:
    """A signal's own endpoint is taken as it is; the one for all gets the signal's path."""
    if specific:
        return endpoint if urlsplit(endpoint).path else f"{endpoint}/"
    return f"{endpoint.rstrip('/')}/v1/{signal}"


def _grpc_url(_signal: Signal, endpoint: str, _specific: bool) -> str:
    return endpoint


def _headers(environ: Mapping[str, str], signal: Signal) -> Mapping[str, str]:
    given = _given(environ, signal, "HEADERS")
    if given is None:
        return {}
    with listening() as heard:
        headers = parse_env_headers(given[1], liberal=True)
    if heard.records:
        # Neither the value nor the SDK's complaint is repeated: both hold the secret.
        raise SettingError(f"{given[0]} is not understood: use name=value, separated by commas")
    return headers


def _timeout_s(environ: Mapping[str, str], signal: Signal) -> float:
    given = _given(environ, signal, "TIMEOUT")
    if given is None:
        return DEFAULT_TIMEOUT_S
    variable, text = given
    if not re.fullmatch(r"\d{1,9}(\.\d{1,9})?", text) or float(text) == 0:
        raise _not_understood(variable, text, "use a number of milliseconds")
    return int(text) / 1000 if text.isdecimal() and int(text) >= 100 else float(text)


def _file(environ: Mapping[str, str], signal: Signal, what: str) -> str | None:
    given = _given(environ, signal, what)
    if given and not os.access(given[1], os.R_OK):
        raise _not_understood(given[0], given[1], "use the path of a PEM file that can be read")
    return given[1] if given else None


def _not_understood(variable: str, value: str, accepted: str) -> SettingError:
    return SettingError(f"{variable}={value!r} is not understood: {accepted}")
