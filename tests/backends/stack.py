"""The real stack as tests see it: started and ended by scripts/backends, asked through its public query APIs."""

import json
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "backends"
PATIENCE_S = 120.0

Answer = TypeVar("Answer")


class Stack(NamedTuple):
    """Where the Collector, Jaeger and Prometheus of one folder listen."""

    folder: Path
    otlp_http: str
    otlp_grpc: str
    jaeger: str
    prometheus: str

    def trace(self, trace_id: int, spans: int = 1) -> dict[str, Any]:
        """The trace as Jaeger's query API has it, once it holds that many spans."""
        return wait_for(lambda: self._trace(trace_id, spans))

    def has_trace(self, trace_id: int) -> bool:
        """Whether Jaeger has any span of it now."""
        return self._trace(trace_id, 1) is not None

    def series(self, promql: str) -> list[dict[str, Any]]:
        """The result of an instant query, once it is not empty."""
        return wait_for(lambda: self._series(promql))

    def _trace(self, trace_id: int, spans: int) -> dict[str, Any] | None:
        found = get_json(f"{self.jaeger}/api/traces/{trace_id:032x}")
        traces: list[dict[str, Any]] = found["data"] if found else []
        return traces[0] if traces and len(traces[0]["spans"]) >= spans else None

    def _series(self, promql: str) -> list[dict[str, Any]] | None:
        found = get_json(f"{self.prometheus}/api/v1/query?{urllib.parse.urlencode({'query': promql})}")
        return found["data"]["result"] or None if found else None


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """scripts/backends with these arguments."""
    return subprocess.run([sys.executable, SCRIPT, *arguments], capture_output=True, text=True, check=False)


def up(folder: Path, *options: str) -> Stack:
    """A running stack in `folder`."""
    result = run("up", folder, *options)
    assert result.returncode == 0, result.stderr
    found = dict(line.split("=", 1) for line in result.stdout.splitlines())
    assert list(found) == ["OTLP_HTTP", "OTLP_GRPC", "JAEGER", "PROMETHEUS"]
    return Stack(folder, *found.values())


def status(folder: Path) -> dict[str, Any]:
    """What scripts/backends says of `folder`: `binaries`, `services`, `endpoints`."""
    found: dict[str, Any] = json.loads(run("status", folder, "--json").stdout)
    return found


def running(folder: Path) -> set[str]:
    """The services of `folder` that run."""
    return {name for name, service in status(folder)["services"].items() if service["running"]}


def get_json(url: str) -> Any:
    """The JSON at `url`; None where there is nothing, or nobody yet."""
    try:
        with urllib.request.urlopen(url, timeout=5.0) as response:  # noqa: S310  # the address is the stack's own
            return json.load(response)
    except urllib.error.HTTPError as error:
        if error.code not in (404, 503):  # 503: its storage is not ready yet
            raise
        return None
    except (urllib.error.URLError, ConnectionError):
        return None


def wait_for(look: Callable[[], Answer | None]) -> Answer:
    """What `look` finds; it looks until it finds something, or patience ends."""
    deadline = time.monotonic() + PATIENCE_S
    while (found := look()) is None:
        assert time.monotonic() < deadline, f"nothing found in {PATIENCE_S:.0f} s"
        time.sleep(0.2)
    return found
