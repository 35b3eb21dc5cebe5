"""The SDK's exporter for each destination.

Everything is handed over as an argument, checked: from the environment the SDK would take a timeout in other units,
leave out a client certificate, and start with half of what it was told.
"""

import random
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from trainspan.relay.otlp.destinations import Destination, Kind, Signal
from trainspan.relay.otlp.sdk_logs import listening


def build(found: Destination) -> Any:
    """The SDK's exporter for a destination, or None where nothing is exported.

    Imports the protocol that is used and no other: each costs 100 to 200 ms.

    Raises:
        OSError: a certificate or key is gone since the destination was made.
    """
    with listening():
        exporter = _BUILDERS[found.kind](found)
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


def _build_console(found: Destination) -> Any:
    module, name = _CONSOLE_CLASSES[found.signal]
    return getattr(import_module(module), name)()


def _build_otlp(found: Destination) -> Any:
    return _build_grpc(found) if found.protocol == "grpc" else _build_http(found)


def _build_http(found: Destination) -> Any:
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
    )


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
    root, key, chain = (
        Path(name).read_bytes() if name else None
        for name in (found.certificate, found.client_key, found.client_certificate)
    )
    return grpc.ssl_channel_credentials(root, key, chain)


_BUILDERS: Mapping[Kind, Callable[[Destination], Any]] = {
    "otlp": _build_otlp,
    "console": _build_console,
    "folder": lambda _: None,
    "none": lambda _: None,
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
