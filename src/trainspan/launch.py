"""Sees to it that one relay serves a recording directory, whoever comes first.

The lock is an flock on `relay.lock`. Whoever gets it starts the relay and hands it the locked descriptor: the lock is
held without a gap until the relay is gone, and a second starter finds it taken.
"""

import fcntl
import os
import subprocess
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

from trainspan.guard import warn_once

LOCK_NAME = "relay.lock"
_RELAY_MODULE = "trainspan.relay"
_INSTRUMENTING = "/opentelemetry/instrumentation/auto_instrumentation"
"""Where in PYTHONPATH `opentelemetry-instrument` has what sets up an SDK in every Python that starts."""
# The shell puts the relay in the background and is gone in a millisecond: the relay is nobody's child, so the rank's
# own `wait` calls and SIGCHLD handlers never meet it.
_DETACH = ("/bin/sh", "-c", '"$@" &', "sh")


def ensure_relay(how: str, recording_dir: Path, run_folder: Path, recording: Path) -> None:
    """Start a relay for `recording_dir` if none serves it. Never raises: recordings stay on disk without one.

    Args:
        how: TRAINSPAN_RELAY: process, thread or off.
        recording_dir: where this host's processes of the run record.
        run_folder: where the relay writes.
        recording: this process's own ring file; a relay thread serves it alone.
    """
    try:
        if how == "thread":
            import_module(f"{_RELAY_MODULE}.process").start_thread(recording, run_folder, dict(os.environ))
        elif how == "process":
            _ensure_process(recording_dir, run_folder)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        warn_once("relay", f"no relay ({reason}); `trainspan replay` can deliver {recording_dir}")


def relay_running(recording_dir: Path) -> bool:
    """Whether a relay serves `recording_dir` now."""
    try:
        descriptor = _lock(recording_dir, os.O_RDWR)
    except FileNotFoundError:
        return False  # none was ever started, or it has taken the directory away
    if descriptor is None:
        return True
    os.close(descriptor)
    return False


def take_lock(recording_dir: Path) -> int | None:
    """The descriptor that holds the relay's lock; None if a relay has it."""
    return _lock(recording_dir, os.O_RDWR | os.O_CREAT)


def _lock(recording_dir: Path, flags: int) -> int | None:
    descriptor = os.open(recording_dir / LOCK_NAME, flags | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def _ensure_process(recording_dir: Path, run_folder: Path) -> None:
    descriptor = take_lock(recording_dir)
    if descriptor is None:
        return
    try:
        _spawn(recording_dir, run_folder, descriptor)
    finally:
        os.close(descriptor)


def _spawn(recording_dir: Path, run_folder: Path, lock: int) -> None:
    arguments = ("--run-folder", str(run_folder), "--lock-fd", str(lock))
    command = (*_DETACH, sys.executable, "-m", _RELAY_MODULE, str(recording_dir), *arguments)
    log_path = run_folder / f"relay.{os.uname().nodename}.log"
    log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
    try:
        subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=(lock,),
            start_new_session=True,
            env=_relay_environment(os.environ),
            cwd="/",
            check=True,
        )
    finally:
        os.close(log)


def _relay_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The starter's environment without what would make the relay look for torch, or instrument itself."""
    # Of an endpoint that is down or refuses us, gRPC's own core writes a line for each try; the relay says it once.
    relayed = {"GRPC_VERBOSITY": "NONE", **environ}
    relayed.pop("TRAINSPAN_ENABLED", None)
    if "PYTHONPATH" in relayed:
        kept = (path for path in relayed["PYTHONPATH"].split(os.pathsep) if not path.endswith(_INSTRUMENTING))
        relayed["PYTHONPATH"] = os.pathsep.join(kept)
    return relayed
