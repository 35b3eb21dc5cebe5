"""Which side refuses which certificate, told by a TLS handshake without a request.

With TLS 1.3 a server judges the client's certificate after the handshake. Whoever has sent a request by then sees a
closed connection (or, in gRPC's words, corrupted data) more often than the reason. Here nothing is sent, so the
server's own word arrives.
"""

import socket
import ssl
from typing import Final, Literal, NamedTuple
from urllib.parse import urlsplit

from requests.utils import DEFAULT_CA_BUNDLE_PATH

from trainspan.relay.otlp.destinations import Destination

_WORD_WITHIN_S: Final = 1.0
"""How long the server's word on our certificate is waited for: a round trip, and what a busy machine makes of it."""

_OF_CERTIFICATES: Final = ("CERTIFICATE", "UNKNOWN_CA", "ACCESS_DENIED", "HANDSHAKE_FAILURE")
"""What an alert's name holds when it is about the client's certificate; TLS 1.2 has no word for a missing one."""

_HANGS_UP: Final = "it hangs up after the handshake"


class Refused(NamedTuple):
    """`by`: who refuses the other's certificate: `us` or `server`. `seen`: why, in the words of the TLS library."""

    by: Literal["us", "server"]
    seen: str


def refusal(where: Destination, timeout_s: float) -> Refused | None:
    """Who refuses whom at an endpoint with TLS; None if nobody does, or it cannot be told.

    Args:
        where: an endpoint with TLS, whose certificate files can be read.
        timeout_s: bound, in s, for the connection and for each answer.
    """
    parts = urlsplit(where.url if "://" in where.url else f"//{where.url}")
    context = ssl.create_default_context(cafile=where.certificate or DEFAULT_CA_BUNDLE_PATH)
    if where.client_certificate:
        context.load_cert_chain(where.client_certificate, where.client_key)
    if where.protocol == "grpc":
        context.set_alpn_protocols(["h2"])
    address = parts.hostname or "", parts.port or 443
    try:
        with (
            socket.create_connection(address, timeout_s) as connection,
            context.wrap_socket(connection, server_hostname=parts.hostname) as secure,
        ):
            secure.settimeout(min(timeout_s, _WORD_WITHIN_S))
            return Refused("server", _HANGS_UP) if _hangs_up(secure) else None
    except ssl.SSLCertVerificationError as error:
        return Refused("us", error.verify_message)
    except ssl.SSLError as error:
        alert = error.reason or ""
        if "ALERT" in alert and any(word in alert for word in _OF_CERTIFICATES):
            return Refused("server", alert.partition("ALERT_")[2].replace("_", " ").lower())
    except OSError:
        pass  # silent, gone: not for us to judge
    return None


def _hangs_up(secure: ssl.SSLSocket) -> bool:
    """Whether the server closes a connection on which it has not been asked anything."""
    try:
        return not secure.recv(1)
    except (ssl.SSLEOFError, ConnectionResetError):
        return True
