"""Processes that outlive the command that started them, and how exactly those are found again and ended."""

import os
import secrets
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import NamedTuple

LOWEST_PORT = 20_000
PORTS = 12_000


class Process(NamedTuple):
    """One process of this boot. A pid comes back after its process has gone; pid and start time together do not."""

    pid: int
    start_ticks: int

    @property
    def alive(self) -> bool:
        """Whether it still runs; a zombie does not."""
        return _look(self.pid) == self


def start(command: list[str], environment: dict[str, str], log_path: Path) -> Process:
    """Start `command` in a session of its own, so that a Ctrl-C meant for its parent does not end it."""
    with log_path.open("a") as log:
        child = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    # Not yet waited for, so even a child that failed at once is still there, as a zombie.
    return _read(child.pid)[0]


def end(processes: list[Process], grace_s: float = 15.0) -> None:
    """End these processes and no others: SIGTERM, so that queues reach the disk; SIGKILL after `grace_s`."""
    for signal_number, wait_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, 5.0)):
        for process in processes:
            if process.alive:
                os.kill(process.pid, signal_number)
        deadline = time.monotonic() + wait_s
        while any(process.alive for process in processes) and time.monotonic() < deadline:
            time.sleep(0.05)


def free_ports(count: int) -> list[int]:
    """Loopback ports that nobody listens on now; somebody else may take one before its owner does.

    They are below those that the system gives to whoever connects (32768 and up): a service that has been ended for a
    while finds its port free when it comes back.
    """
    held: list[socket.socket] = []
    try:
        while len(held) < count:
            candidate = socket.socket()
            try:
                candidate.bind(("127.0.0.1", LOWEST_PORT + secrets.randbelow(PORTS)))
            except OSError:
                candidate.close()
            else:
                held.append(candidate)
        return [each.getsockname()[1] for each in held]
    finally:
        for each in held:
            each.close()


def _look(pid: int) -> Process | None:
    """The process that has this pid now, if it runs."""
    try:
        process, state = _read(pid)
    except FileNotFoundError:
        return None
    return None if state in "ZX" else process


def _read(pid: int) -> tuple[Process, str]:
    """(process, state) from /proc. Source: proc_pid_stat(5), fields 3 and 22."""
    # The command's name, in parentheses, may hold spaces and parentheses of its own.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return Process(pid, int(fields[19])), fields[0]
