"""An OTLP server for tests: real sockets, everything that came in kept, and the ways in which collectors fail.

with OtlpSink("grpc") as sink:
    run_something(env=sink.environ)
    assert sink.wait_for(lambda sink: len(sink.spans()) == 3, timeout_s=10)
    sink.fault = Fault.REFUSE
"""

import gzip
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, NamedTuple, TypeAlias, cast

import grpc
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2, logs_service_pb2_grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2, metrics_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

Signal: TypeAlias = Literal["traces", "metrics", "logs"]
Protocol: TypeAlias = Literal["http/protobuf", "grpc"]


class Fault(Enum):
    """What the sink does with a request: what an HTTP client sees, and a gRPC client."""

    NONE = (200, grpc.StatusCode.OK)
    REFUSE = (503, grpc.StatusCode.UNAVAILABLE)
    REJECT = (400, grpc.StatusCode.INVALID_ARGUMENT)
    FORBID = (403, grpc.StatusCode.PERMISSION_DENIED)
    THROTTLE = (429, grpc.StatusCode.RESOURCE_EXHAUSTED)
    """Over HTTP with the `Retry-After` that the sink is told."""
    SILENT = (0, grpc.StatusCode.UNKNOWN)
    """Takes the request and never answers; when that ends, the connection is cut and the request forgotten."""


class Tls(NamedTuple):
    """PEM files of a server. With `client_ca`, clients must show a certificate of it."""

    certificate: Path
    key: Path
    client_ca: Path | None = None


class Received(NamedTuple):
    """One request that was accepted. Header names are lower case."""

    signal: Signal
    request: Any
    headers: Mapping[str, str]
    path: str


class ReceivedItem(NamedTuple):
    """One span, metric or log record of protobuf's, with the attributes of its resource and the name of its scope."""

    item: Any
    resource: dict[str, Any]
    scope: str


class OtlpSink:
    """A server on 127.0.0.1, running from its construction until `close`.

    `endpoint` is its address for `OTEL_EXPORTER_OTLP_ENDPOINT`, `environ` the variables that lead to it, and `fault`
    what it does with requests; it can be set at any time. `attempts` counts the requests, those it did not accept too.
    `retry_after` is the header of its answers to what it does not accept; of what it accepts it says that it has left
    out `leaves_out` spans, points or log records.

    Args:
        protocol: the one it speaks.
        tls: PEM files; None serves plain text.
        port: 0 takes a free one. A fixed one brings a server back that was gone.
        faulty: which requests `fault` is for; all, unless told.
    """

    def __init__(
        self,
        protocol: Protocol = "http/protobuf",
        tls: Tls | None = None,
        port: int = 0,
        faulty: Callable[[Received], bool] = lambda _: True,
    ):
        self.protocol: Final = protocol
        self.fault = Fault.NONE
        self.attempts = 0
        self.retry_after: str | None = None
        self.leaves_out = 0
        self._faulty = faulty
        self._received: list[Received] = []
        self._changed = threading.Condition()
        self._closed = False
        self._server = _GrpcServer(self, tls, port) if protocol == "grpc" else _HttpServer(self, tls, port)
        scheme = "https" if tls else "http"
        self.endpoint: Final = f"{scheme}://127.0.0.1:{self._server.port}"

    def __enter__(self) -> "OtlpSink":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def port(self) -> int:
        """The port it listens on."""
        return self._server.port

    @property
    def environ(self) -> dict[str, str]:
        """The variables that make an exporter deliver here."""
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": self.endpoint, "OTEL_EXPORTER_OTLP_PROTOCOL": self.protocol}

    def received(self, signal: Signal | None = None) -> list[Received]:
        """The accepted requests, in the order they came in."""
        with self._changed:
            return [one for one in self._received if signal in (None, one.signal)]

    def spans(self) -> list[ReceivedItem]:
        """Every span that came in, in order."""
        return self._items("traces", "resource_spans", "scope_spans", "spans")

    def metrics(self) -> list[ReceivedItem]:
        """Every metric that came in, in order; one that is exported again and again is there as often."""
        return self._items("metrics", "resource_metrics", "scope_metrics", "metrics")

    def logs(self) -> list[ReceivedItem]:
        """Every log record that came in, in order."""
        return self._items("logs", "resource_logs", "scope_logs", "log_records")

    def wait_for(self, predicate: "Callable[[OtlpSink], bool]", timeout_s: float) -> bool:
        """Whether `predicate` has come true within `timeout_s` seconds; asked after every request."""
        deadline = time.monotonic() + timeout_s
        while not predicate(self):
            with self._changed:
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    return False
                # Not for longer, because a request can come between the question and this wait.
                self._changed.wait(min(left_s, 0.05))
        return True

    def close(self) -> None:
        """Cut every connection and free the port."""
        self._closed = True
        self._server.close()

    def take(self, received: Received) -> Fault:
        """What to answer to a request, which is kept if it is accepted. For the servers below."""
        with self._changed:
            self.attempts += 1
        fault = self.fault if self._faulty(received) else Fault.NONE
        if fault is Fault.SILENT:
            self._be_silent()
        elif fault is Fault.NONE:
            with self._changed:
                self._received.append(received)
                self._changed.notify_all()
        return fault

    def response_to(self, signal: Signal) -> Any:
        """The message of an answer. For the servers below."""
        response = _RESPONSES[signal]()
        if self.leaves_out:
            setattr(response.partial_success, _LEFT_OUT[signal], self.leaves_out)
            response.partial_success.error_message = "the test asked for it"
        return response

    def _be_silent(self) -> None:
        while self.fault is Fault.SILENT and not self._closed:
            time.sleep(0.02)

    def _items(self, signal: Signal, by_resource: str, by_scope: str, items: str) -> list[ReceivedItem]:
        return [
            ReceivedItem(item, attributes_of(of_resource.resource.attributes), of_scope.scope.name)
            for one in self.received(signal)
            for of_resource in getattr(one.request, by_resource)
            for of_scope in getattr(of_resource, by_scope)
            for item in getattr(of_scope, items)
        ]


def attributes_of(pairs: Any) -> dict[str, Any]:
    """Protobuf's key-value pairs as a dict of plain values."""
    return {pair.key: _plain(pair.value) for pair in pairs}


def _plain(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_plain(inner) for inner in value.array_value.values]
    if kind == "kvlist_value":
        return attributes_of(value.kvlist_value.values)
    return getattr(value, kind) if kind else None


_REQUESTS: Final[Mapping[Signal, Any]] = {
    "traces": trace_service_pb2.ExportTraceServiceRequest,
    "metrics": metrics_service_pb2.ExportMetricsServiceRequest,
    "logs": logs_service_pb2.ExportLogsServiceRequest,
}

_RESPONSES: Final[Mapping[Signal, Any]] = {
    "traces": trace_service_pb2.ExportTraceServiceResponse,
    "metrics": metrics_service_pb2.ExportMetricsServiceResponse,
    "logs": logs_service_pb2.ExportLogsServiceResponse,
}

_LEFT_OUT: Final[Mapping[Signal, str]] = {
    "traces": "rejected_spans",
    "metrics": "rejected_data_points",
    "logs": "rejected_log_records",
}

_SERVICES: Final[Mapping[Signal, Callable[..., Any]]] = {
    "traces": trace_service_pb2_grpc.add_TraceServiceServicer_to_server,
    "metrics": metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server,
    "logs": logs_service_pb2_grpc.add_LogsServiceServicer_to_server,
}


class _HttpServer(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, sink: OtlpSink, tls: Tls | None, port: int):
        super().__init__(("127.0.0.1", port), _Handler)
        self.sink = sink
        self.port: int = self.server_address[1]
        self._connections: set[socket.socket] = set()
        self._context = _ssl_context(tls) if tls else None
        self._thread = threading.Thread(target=self.serve_forever, args=(0.02,), name="otlp-sink", daemon=True)
        self._thread.start()

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, address = super().get_request()
        if self._context:
            # The handshake is the handler's: a client that sends none must not hold up the others.
            connection = self._context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        self._connections.add(connection)
        return connection, address

    def shutdown_request(self, request: Any) -> None:
        self._connections.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nothing: a client that hangs up or refuses our certificate is what tests are about."""

    def close(self) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()
        for connection in list(self._connections):
            self.cut(connection)

    def cut(self, connection: socket.socket) -> None:
        try:
            connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # the client was faster


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else each answer waits 40 ms for the client's delayed acknowledgement

    def do_POST(self) -> None:
        server = cast(_HttpServer, self.server)
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        signal = cast(Signal, self.path.rpartition("/")[2])
        if signal not in _REQUESTS:
            return self._answer(404, b"")
        headers = {name.lower(): value for name, value in self.headers.items()}
        fault = server.sink.take(Received(signal, _REQUESTS[signal].FromString(body), headers, self.path))
        if fault is Fault.SILENT:
            self.close_connection = True
            return server.cut(self.connection)
        return self._answer(fault.value[0], server.sink.response_to(signal).SerializeToString())

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Nothing: a test's output is its result."""

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", str(len(body)))
        sink = cast(_HttpServer, self.server).sink
        if status != Fault.NONE.value[0] and sink.retry_after is not None:
            self.send_header("Retry-After", sink.retry_after)
        self.end_headers()
        self.wfile.write(body)


class _GrpcServer:
    def __init__(self, sink: OtlpSink, tls: Tls | None, port: int):
        self._pool = ThreadPoolExecutor(8, thread_name_prefix="otlp-sink")
        # Without it two servers could share a port, and a test would talk to the wrong one.
        self._server = grpc.server(self._pool, options=(("grpc.so_reuseport", 0),))
        for signal, add in _SERVICES.items():
            add(_Servicer(sink, signal), self._server)
        address = f"127.0.0.1:{port}"
        self.port = (
            self._server.add_secure_port(address, _grpc_credentials(tls))
            if tls
            else self._server.add_insecure_port(address)
        )
        self._server.start()

    def close(self) -> None:
        self._server.stop(grace=None).wait()
        self._pool.shutdown()


class _Servicer:
    def __init__(self, sink: OtlpSink, signal: Signal):
        self._sink = sink
        self._signal = signal

    def Export(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802 - the protocol's name
        headers = {key: str(value) for key, value in context.invocation_metadata()}
        fault = self._sink.take(Received(self._signal, request, headers, f"/{self._signal}"))
        if fault is not Fault.NONE:
            context.abort(fault.value[1], f"the test asked for {fault.name}")
        return self._sink.response_to(self._signal)


def _ssl_context(tls: Tls) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tls.certificate, tls.key)
    if tls.client_ca:
        context.load_verify_locations(tls.client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _grpc_credentials(tls: Tls) -> grpc.ServerCredentials:
    return grpc.ssl_server_credentials(
        [(tls.key.read_bytes(), tls.certificate.read_bytes())],
        root_certificates=tls.client_ca.read_bytes() if tls.client_ca else None,
        require_client_auth=tls.client_ca is not None,
    )
