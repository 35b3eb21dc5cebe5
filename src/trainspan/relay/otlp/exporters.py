"""The SDK's exporter for each destination.

Everything is handed over as an argument, checked: from the environment the SDK would take a timeout in other units,
leave out a client certificate, and start with half of what it was told.
"""

import os
import random
import ssl
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from trainspan.errors import SettingError
from trainspan.relay.otlp.destinations import Destination, Kind, Signal
from trainspan.relay.otlp.sdk_logs import listening


class Answer(NamedTuple):
    """What an endpoint answered over HTTP: of it the SDK hands on no more than whether it was a success."""

    status: int
    retry_after: str | None
    body: bytes


def build(found: Destination, hear: Callable[[Answer], None] = lambda _: None) -> Any:
    """The SDK's exporter for a destination, or None where nothing is exported.

    Imports the protocol that is used and no other: each costs 100 to 200 ms.

    Args:
        found: the destination.
        hear: told of every answer over HTTP, before the export returns; not where a credential provider makes the
            session.

    Raises:
        SettingError: there is none to be had: a certificate that is none, a credential provider that fails.
    """
    with listening():
        try:
            _check_certificates(found)
            exporter = _BUILDERS[found.kind](found, hear)
        except Exception as error:  # its causes lie in plugins and files of the user's
            raise SettingError(f"{found.signal} cannot be exported to {found.place} ({error!r:.200})") from error
    _draw_in_private()
    return exporter


_OTLP_CLASSES: Mapping[Signal, tuple[str, str]] = {
    "traces": ("trace_exporter", "OTLPSpanExporter"),
    "metrics": ("metric_exporter", "OTLPMetricExporter"),
    "logs": ("_log_exporter", "OTLPLogExporter"),
}

_CONSOLE_CLASSES: Mapping[Signal, tuple[str, str]] = {
    "traces": ("opentelemetry.sdk.trace.export", "ConsoleSpanExporter"),
    "metrics": ("opentelemetry.sdk.metrics.export", "ConsoleMetricExporter"),
    "logs": ("opentelemetry.sdk._logs.export", "ConsoleLogRecordExporter"),
}


def _build_console(found: Destination, _: Callable[[Answer], None]) -> Any:
    module, name = _CONSOLE_CLASSES[found.signal]
    return getattr(import_module(module), name)(out=sys.stdout)


def _build_otlp(found: Destination, hear: Callable[[Answer], None]) -> Any:
    return _build_grpc(found) if found.protocol == "grpc" else _build_http(found, hear)


def _build_http(found: Destination, hear: Callable[[Answer], None]) -> Any:
    module, name = _OTLP_CLASSES[found.signal]
    compression = import_module("opentelemetry.exporter.otlp.proto.http").Compression
    return getattr(import_module(f"opentelemetry.exporter.otlp.proto.http.{module}"), name)(
        endpoint=found.url,
        certificate_file=found.certificate,
        client_key_file=found.client_key,
        client_certificate_file=found.client_certificate,
        headers=dict(found.headers),
        timeout=found.timeout_s,
        compression=compression.Gzip if found.gzip else compression.NoCompression,
        session=_session(found, hear),
    )


def _session(found: Destination, hear: Callable[[Answer], None]) -> Any:
    """A session whose answers are heard, and that uses the certificate it was given, where the SDK's own may not.

    Requests prefers `REQUESTS_CA_BUNDLE` to the certificate of a session, and the SDK (1.45.2) sets it there: on a host
    with a bundle of its own, `OTEL_EXPORTER_OTLP_CERTIFICATE` would mean nothing.
    """
    requests = import_module("requests")
    if any(name.endswith("_CREDENTIAL_PROVIDER") for name in os.environ):
        return None  # then the SDK takes the provider's
    session = requests.Session()

    def answered(response: Any, *_: Any, **__: Any) -> None:
        hear(Answer(response.status_code, response.headers.get("Retry-After"), response.content))

    session.hooks["response"].append(answered)
    if found.certificate is None:
        return session

    def settings(url: str, proxies: Any, stream: Any, verify: Any, cert: Any) -> Any:
        merged = requests.Session.merge_environment_settings(session, url, proxies, stream, verify, cert)
        return {**merged, "verify": found.certificate if verify is None else verify}

    session.merge_environment_settings = settings
    return session


def _build_grpc(found: Destination) -> Any:
    module, name = _OTLP_CLASSES[found.signal]
    grpc = import_module("grpc")
    return getattr(import_module(f"opentelemetry.exporter.otlp.proto.grpc.{module}"), name)(
        endpoint=found.url,
        insecure=found.insecure,
        # Made here: the SDK leaves a client certificate out where the server's has no file of its own.
        credentials=None if found.insecure else _grpc_credentials(grpc, found),
        headers=dict(found.headers),
        timeout=found.timeout_s,
        compression=grpc.Compression.Gzip if found.gzip else grpc.Compression.NoCompression,
    )


def _grpc_credentials(grpc: Any, found: Destination) -> Any:
    # A certificate's file may hold its key too.
    names = found.certificate, found.client_key or found.client_certificate, found.client_certificate
    return grpc.ssl_channel_credentials(*(Path(name).read_bytes() if name else None for name in names))


def _check_certificates(found: Destination) -> None:
    """Raise for files that do not make a TLS client.

    gRPC ends the whole process over a key without a certificate, and Requests says so at the first export.
    """
    if found.kind != "otlp" or found.insecure:
        return
    context = ssl.create_default_context(cafile=found.certificate)
    if found.client_certificate:
        # With a password to try, OpenSSL does not ask for one at the terminal.
        context.load_cert_chain(found.client_certificate, found.client_key, password="")
    elif found.client_key:
        raise ValueError("a client key without a client certificate")


_BUILDERS: Mapping[Kind, Callable[[Destination, Callable[[Answer], None]], Any]] = {
    "otlp": _build_otlp,
    "console": _build_console,
    "folder": lambda *_: None,
    "none": lambda *_: None,
}

_PRIVATE = random.Random()


def _draw_in_private() -> None:
    """Give the exporters' modules a random source of their own.

    They draw their retry jitter from the module `random`, from a thread. Where the relay is a thread of the rank, that
    is the user's stream: the run would differ with every hiccup of the network (law 1).
    """
    for name, module in list(sys.modules.items()):
        if name.startswith("opentelemetry.exporter") and getattr(module, "random", None) is random:
            module.random = _PRIVATE  # type: ignore[attr-defined]  # only what has the attribute gets here
