"""The real Collector, Jaeger and Prometheus, and what judges a Compose file: made from which pins, kept where.

Each folder beside this file is a Go module: its `go.mod` pins every dependency and its `go.sum` verifies what is
fetched. The binaries lie outside the tree, in a folder named by a hash of those files, so a machine makes them once
for all checkouts, and again when a pin changes.
"""

import contextlib
import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple

MODULES = Path(__file__).resolve().parent
# readonly: a build never adds to go.sum, so nothing that is not in it can be built.
FLAGS = ("-mod=readonly", "-buildvcs=false", "-trimpath", "-ldflags=-s -w")
NOT_SHOWN = "what the real Collector, Jaeger and Prometheus do with our telemetry is not shown"
REPORT_EVERY_S = 30.0


class Binary(NamedTuple):
    """One program: the name of its file, the module that pins it, and its package there."""

    name: str
    module: str
    package: str

    @property
    def path(self) -> Path:
        """Where it is kept, built or not."""
        return cache() / f"{self.module}-{_pins(self.module)}" / self.name


BINARIES = (
    Binary("otelcol", "collector", "."),
    Binary("prometheus", "prometheus", "github.com/prometheus/prometheus/cmd/prometheus"),
    Binary("promtool", "prometheus", "github.com/prometheus/prometheus/cmd/promtool"),
    Binary("jaeger", "jaeger", "github.com/jaegertracing/jaeger/cmd/jaeger"),
    Binary("compose", "compose", "."),
)


class Unavailable(Exception):
    """The binaries are not here, and cannot be made here."""


class BuildFailed(Exception):
    """`go build` gave up; the message holds its last lines."""


def cache() -> Path:
    """The folder for everything that can be made again."""
    xdg = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(xdg) if xdg.startswith("/") else Path.home() / ".cache"
    return base / "trainspan" / "backends"


def path_of(name: str) -> Path:
    """The binary of that name.

    Raises:
        Unavailable: it has not been built.
    """
    path = next(binary for binary in BINARIES if binary.name == name).path
    if not path.exists():
        raise Unavailable(f"{name} is not built, so {NOT_SHOWN}; run: scripts/backends build")
    return path


def missing() -> list[Binary]:
    """The binaries that are not built."""
    return [binary for binary in BINARIES if not binary.path.exists()]


def build() -> None:
    """Make what is missing, one after the other; what was compiled before an interruption is not compiled again.

    Raises:
        Unavailable: there is no Go.
        BuildFailed: a binary cannot be made.
    """
    if not missing():
        return
    if shutil.which("go") is None:
        raise Unavailable(
            f"Go is not installed, so {NOT_SHOWN}; install Go 1.26 or newer, then: scripts/backends build"
        )
    with _alone():
        for binary in missing():
            _build(binary)


def _pins(module: str) -> str:
    """A hash of everything that decides what the module's binaries are."""
    seen = hashlib.sha256(repr((FLAGS, platform.machine())).encode())
    for file in sorted((MODULES / module).iterdir()):
        if file.suffix in (".go", ".mod", ".sum"):
            seen.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return seen.hexdigest()[:16]


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Hold the lock of the cache: two builds at once would only share the processor and race for the same files."""
    cache().mkdir(parents=True, exist_ok=True)
    with (cache() / "build.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say("another build is running; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build(binary: Binary) -> None:
    binary.path.parent.mkdir(parents=True, exist_ok=True)
    partial = binary.path.with_suffix(".partial")
    # nice: a build takes minutes and is nearly always in the background of something a person waits for.
    command = ["nice", "-n", "19", "go", "build", "-v", *FLAGS, "-o", str(partial), binary.package]
    environment = os.environ | {"CGO_ENABLED": "0"}
    log_path = binary.path.with_suffix(".log")
    with log_path.open("w") as log:
        process = subprocess.Popen(
            command, cwd=MODULES / binary.module, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
        try:
            took_s = _watch(binary.name, process, log_path)
        finally:
            process.terminate()
            process.wait()
    if process.returncode:
        raise BuildFailed(f"{binary.name} was not built; the end of {log_path}:\n{tail(log_path)}")
    partial.replace(binary.path)
    _say(f"{binary.name}: built in {took_s:.0f} s, {binary.path.stat().st_size / 1e6:.0f} MB, {binary.path}")


def _watch(name: str, process: subprocess.Popen[bytes], log_path: Path) -> float:
    """Say how far the build is until it ends; return the seconds it took."""
    start = time.monotonic()
    next_report_s = 0.0
    while process.poll() is None:
        elapsed_s = time.monotonic() - start
        if elapsed_s >= next_report_s:
            lines = log_path.read_text(errors="replace").splitlines()
            fetched = sum(line.startswith("go: downloading") for line in lines)
            _say(f"{name}: {elapsed_s:.0f} s, {fetched} modules fetched, {len(lines) - fetched} packages compiled")
            next_report_s += REPORT_EVERY_S
        time.sleep(0.5)
    return time.monotonic() - start


def tail(log_path: Path, lines: int = 15) -> str:
    """The last lines of a log."""
    return "\n".join(log_path.read_text(errors="replace").splitlines()[-lines:])


def _say(text: str, stream: IO[str] | None = None) -> None:
    print(f"backends: {text}", file=stream or sys.stderr, flush=True)
