"""Ports for servers that cannot be given port 0, because somebody else is told the number before they start."""

import contextlib
import secrets
import socket

LOWEST = 20_000
COUNT = 12_000


def free_port() -> int:
    """A loopback port that nobody listens on now.

    It is below those that the system gives to whoever connects (32768 and up), so nobody gets it by chance, also while
    its server is away.
    """
    while True:
        port = LOWEST + secrets.randbelow(COUNT)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
