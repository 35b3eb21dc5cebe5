"""What an OTLP endpoint says to an empty export: tells "down", "silent", "wrong path" and "no token" apart.

An export request without content is valid OTLP and leaves nothing behind; only a real request finds out whether the
port speaks OTLP, takes this signal, and accepts our credentials.
"""

import socket
import ssl
from http import HTTPStatus
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeAlias

import grpc
import requests

from trainspan.relay.otlp.causes import causes
from trainspan.relay.otlp.destinations import Destination
from trainspan.relay.otlp.handshake import refusal

Verdict: TypeAlias = Literal[
    "accepted",  # it takes this signal
    "rejected",  # it takes no empty export; whether it takes a real one, it does not say
    "refused",  # nothing listens there
    "silent",  # no answer in time
    "dns",  # no such host
    "tls",  # the handshake failed
    "tls_server",  # we do not trust its certificate
    "tls_client",  # it does not accept our certificate
    "tls_client_missing",  # it wants a certificate of us
    "unauthorized",  # it wants other credentials
    "not_found",  # it speaks the protocol, but has nothing for this signal at this path
    "unavailable",  # it takes nothing just now
    "not_otlp",  # something else answers
    "misconfigured",  # the address or a certificate cannot be used
]


class Answer(NamedTuple):
    """What came back. `seen`: the cause, in the words of whoever reported it."""

    verdict: Verdict
    seen: str


CERTIFICATES: Final[dict[Verdict, tuple[str, str]]] = {
    "tls_server": (
        "its certificate is not trusted here",
        "name the authority that signed it with OTEL_EXPORTER_OTLP_CERTIFICATE, and use a host name that is in it",
    ),
    "tls_client": (
        "it does not accept our client certificate",
        "let an authority it trusts sign OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE, and renew it when it has expired",
    ),
    "tls_client_missing": (
        "it wants a client certificate",
        "give one: OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE and OTEL_EXPORTER_OTLP_CLIENT_KEY",
    ),
}
"""What a verdict about certificates means, and what to do: in the same words wherever it is said."""

_SEEN_MAX_CHARACTERS: Final = 200

_OF_STATUS: Final[dict[int, Verdict]] = {
    HTTPStatus.BAD_REQUEST: "rejected",
    HTTPStatus.UNPROCESSABLE_ENTITY: "rejected",
    HTTPStatus.UNAUTHORIZED: "unauthorized",
    HTTPStatus.FORBIDDEN: "unauthorized",
    HTTPStatus.PROXY_AUTHENTICATION_REQUIRED: "unauthorized",
    HTTPStatus.NOT_FOUND: "not_found",
    HTTPStatus.METHOD_NOT_ALLOWED: "not_found",
    HTTPStatus.REQUEST_TIMEOUT: "unavailable",
    HTTPStatus.TOO_MANY_REQUESTS: "unavailable",
    HTTPStatus.INTERNAL_SERVER_ERROR: "unavailable",
    HTTPStatus.BAD_GATEWAY: "unavailable",
    HTTPStatus.SERVICE_UNAVAILABLE: "unavailable",
    HTTPStatus.GATEWAY_TIMEOUT: "unavailable",
}

# By what lies at the bottom of a chain of exceptions; the first kind that is found counts.
_OF_CAUSE: Final[tuple[tuple[type[BaseException], Verdict], ...]] = (
    (socket.gaierror, "dns"),
    (ssl.SSLError, "tls"),
    (requests.Timeout, "silent"),
    (TimeoutError, "silent"),
    (ConnectionRefusedError, "refused"),
    (ConnectionResetError, "not_otlp"),
    (BrokenPipeError, "not_otlp"),
)

_OF_CODE: Final[dict[grpc.StatusCode, Verdict]] = {
    grpc.StatusCode.INVALID_ARGUMENT: "rejected",
    grpc.StatusCode.DEADLINE_EXCEEDED: "silent",
    grpc.StatusCode.UNAUTHENTICATED: "unauthorized",
    grpc.StatusCode.PERMISSION_DENIED: "unauthorized",
    grpc.StatusCode.UNIMPLEMENTED: "not_found",
    grpc.StatusCode.RESOURCE_EXHAUSTED: "unavailable",
    grpc.StatusCode.UNAVAILABLE: "unavailable",
}

# gRPC calls every failure to connect UNAVAILABLE; only its words say which. The first match counts.
_OF_WORDS: Final[tuple[tuple[str, Verdict], ...]] = (
    ("dns", "dns"),
    ("domain name", "dns"),
    ("name resolution", "dns"),
    ("certificate", "tls"),
    ("ssl", "tls"),
    ("tls", "tls"),
    ("handshake", "tls"),
    ("refused", "refused"),
    ("unreachable", "refused"),
    ("no route to host", "refused"),
    ("no such file", "refused"),
    ("timed out", "silent"),
    ("timeout", "silent"),
    ("http1", "not_otlp"),
    ("http2", "not_otlp"),
    ("settings frame", "not_otlp"),
    ("socket closed", "not_otlp"),
    ("reset by peer", "not_otlp"),
)

_GRPC_METHODS: Final = {
    "traces": "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
    "metrics": "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
    "logs": "/opentelemetry.proto.collector.logs.v1.LogsService/Export",
}


def ask(where: Destination, timeout_s: float) -> Answer:
    """The endpoint's answer to an empty export. Never raises for what a network or a server can do.

    Args:
        where: an OTLP endpoint.
        timeout_s: bound, in s, for the connection and again for the answer.
    """
    try:
        answer = _ask_grpc(where, timeout_s) if where.protocol == "grpc" else _ask_http(where, timeout_s)
        # A server that wants another certificate hangs up, which looks like many things.
        doubtful = answer.verdict in ("tls", "not_otlp", "unavailable") and not answer.seen.startswith("HTTP ")
        return (doubtful and where.has_tls and _judge_certificates(where, timeout_s)) or answer
    except (OSError, ValueError) as error:
        # An address that is none, a header that cannot be sent, a file that is no certificate.
        return Answer("misconfigured", _line(error))


def _judge_certificates(where: Destination, timeout_s: float) -> Answer | None:
    refused = refusal(where, timeout_s)
    if refused is None:
        return None
    if refused.by == "us":
        return Answer("tls_server", refused.seen)
    return Answer("tls_client" if where.client_certificate else "tls_client_missing", refused.seen)


def _ask_http(where: Destination, timeout_s: float) -> Answer:
    certificate, key = where.client_certificate, where.client_key
    try:
        with requests.post(
            where.url,
            data=b"",
            headers={**where.headers, "Content-Type": "application/x-protobuf"},
            timeout=timeout_s,
            verify=where.certificate or True,
            cert=(certificate, key) if certificate and key else certificate,
            allow_redirects=False,
            stream=True,
        ) as answer:
            return _judge_status(answer.status_code, answer.headers.get("Content-Type", ""))
    except requests.RequestException as error:
        if isinstance(error, ValueError):  # its words for a malformed address or header
            return Answer("misconfigured", _line(error))
        return _judge_cause(list(causes(error)))


def _judge_status(status: int, content_type: str) -> Answer:
    if HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES:
        is_page = "html" in content_type
        return Answer("not_otlp" if is_page else "accepted", f"HTTP {status}" + (" with a web page" if is_page else ""))
    return Answer(_OF_STATUS.get(status, "not_otlp"), f"HTTP {status}")


def _judge_cause(chain: list[BaseException]) -> Answer:
    for kind, verdict in _OF_CAUSE:
        found = next((cause for cause in chain if isinstance(cause, kind)), None)
        if found is not None:
            return Answer(verdict, _line(found))
    # The system's own word (no route to host) is the best left; without one, what answered was no HTTP.
    unreachable = next((cause for cause in chain if isinstance(cause, OSError) and cause.errno), None)
    return Answer("refused", _line(unreachable)) if unreachable else Answer("not_otlp", _line(chain[-1]))


def _ask_grpc(where: Destination, timeout_s: float) -> Answer:
    scheme, separator, rest = where.url.partition("://")
    address = rest.partition("/")[0] if separator and scheme.startswith("http") else where.url
    with _channel(where, address) as channel:
        # Bytes go out and come back as they are: an empty request has no bytes at all.
        export = channel.unary_unary(_GRPC_METHODS[where.signal], request_serializer=bytes, response_deserializer=bytes)
        headers = tuple((name.lower(), text) for name, text in where.headers.items())
        try:
            export(b"", timeout=timeout_s, metadata=headers)
        except grpc.RpcError as error:
            return _judge_code(error)
    return Answer("accepted", "OK")


def _channel(where: Destination, address: str) -> grpc.Channel:
    # One attempt: the second one's error is only that of the first, later.
    options = (("grpc.enable_retries", 0),)
    if where.insecure:
        return grpc.insecure_channel(address, options)
    names = (where.certificate, where.client_key, where.client_certificate)
    root, key, chain = (Path(name).read_bytes() if name else None for name in names)
    return grpc.secure_channel(address, grpc.ssl_channel_credentials(root, key, chain), options)


def _judge_code(error: grpc.RpcError) -> Answer:
    if not isinstance(error, grpc.Call):
        return Answer("not_otlp", _line(error))
    code, words = error.code(), error.details() or ""
    verdict = _OF_CODE.get(code, "not_otlp")
    if code is grpc.StatusCode.UNAVAILABLE:
        verdict = next((verdict for word, verdict in _OF_WORDS if word in words.lower()), "unavailable")
    return Answer(verdict, f"{code.name}: {words.rpartition('last error: ')[2]}"[:_SEEN_MAX_CHARACTERS])


def _line(error: BaseException) -> str:
    """The error in one line."""
    words = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return (words.partition("\n")[0] or type(error).__name__)[:_SEEN_MAX_CHARACTERS]
