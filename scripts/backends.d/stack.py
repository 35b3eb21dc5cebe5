"""The real Collector, Jaeger and Prometheus on free loopback ports of this machine, with the shipped configurations."""

import http.client
import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import binaries
import certificates
import processes

CONFIGURATIONS = Path(__file__).resolve().parents[2] / "collector-config"
STATE = "stack.json"
READY_WITHIN_S = 90.0
PORTS = (
    "otlp_http",
    "otlp_grpc",
    "collector_health",
    "jaeger_query",
    "jaeger_query_grpc",
    "jaeger_otlp",
    "jaeger_health",
    "prometheus",
)


class StackFailed(Exception):
    """A service did not come up; the message holds the end of its log."""


class Stack(NamedTuple):
    """What stands in one folder: where its services listen, and the processes that were started for them."""

    folder: Path
    ports: Mapping[str, int]
    mtls: bool
    started: Mapping[str, processes.Process]

    def at(self, port: str) -> str:
        """`host:port` of one of PORTS."""
        return f"127.0.0.1:{self.ports[port]}"

    @property
    def endpoints(self) -> dict[str, str]:
        """What a test or a person needs to know."""
        scheme = "https" if self.mtls else "http"
        return {
            "OTLP_HTTP": f"{scheme}://{self.at('otlp_http')}",
            "OTLP_GRPC": f"{scheme}://{self.at('otlp_grpc')}",
            "JAEGER": f"http://{self.at('jaeger_query')}",
            "PROMETHEUS": f"http://{self.at('prometheus')}",
        }


class Service(NamedTuple):
    """How one service is started, and where it answers 200 once it is ready."""

    command: Callable[[Stack], list[str]]
    environment: Callable[[Stack], dict[str, str]]
    health_port: str
    health_path: str


def _collector_command(stack: Stack) -> list[str]:
    names = ["laptop", "tls"] if stack.mtls else ["laptop"]
    files = [f"--config={CONFIGURATIONS / name}.yaml" for name in names]
    return [str(binaries.path_of("otelcol")), *files]


def _collector_environment(stack: Stack) -> dict[str, str]:
    tls = stack.folder / "tls"
    return {
        "OTLP_HTTP_ENDPOINT": stack.at("otlp_http"),
        "OTLP_GRPC_ENDPOINT": stack.at("otlp_grpc"),
        "HEALTH_ENDPOINT": stack.at("collector_health"),
        "STORAGE_DIR": str(stack.folder / "collector"),
        "JAEGER_ENDPOINT": stack.at("jaeger_otlp"),
        "PROMETHEUS_ENDPOINT": f"http://{stack.at('prometheus')}",
        "TLS_CA_FILE": str(tls / "ca.crt"),
        "TLS_CERT_FILE": str(tls / "tls.crt"),
        "TLS_KEY_FILE": str(tls / "tls.key"),
    }


def _jaeger_command(_: Stack) -> list[str]:
    return [str(binaries.path_of("jaeger")), f"--config={CONFIGURATIONS / 'jaeger.yaml'}"]


def _jaeger_environment(stack: Stack) -> dict[str, str]:
    return {
        "JAEGER_OTLP_ENDPOINT": stack.at("jaeger_otlp"),
        "JAEGER_QUERY_ENDPOINT": stack.at("jaeger_query"),
        "JAEGER_QUERY_GRPC_ENDPOINT": stack.at("jaeger_query_grpc"),
        "JAEGER_HEALTH_ENDPOINT": stack.at("jaeger_health"),
        "JAEGER_STORAGE_DIR": str(stack.folder / "jaeger"),
    }


def _prometheus_command(stack: Stack) -> list[str]:
    return [
        str(binaries.path_of("prometheus")),
        f"--config.file={CONFIGURATIONS / 'prometheus' / 'prometheus.yaml'}",
        f"--storage.tsdb.path={stack.folder / 'prometheus'}",
        f"--web.listen-address={stack.at('prometheus')}",
        *prometheus_flags(),
    ]


def prometheus_flags() -> list[str]:
    """What docker-compose.yml gives Prometheus too; a test compares the two."""
    return ["--web.enable-otlp-receiver", "--enable-feature=created-timestamp-zero-ingestion"]


def _nothing(_: Stack) -> dict[str, str]:
    return {}


# In the order in which they are started: who is sent to comes before who sends.
SERVICES = {
    "jaeger": Service(_jaeger_command, _jaeger_environment, "jaeger_health", "/status"),
    "prometheus": Service(_prometheus_command, _nothing, "prometheus", "/-/ready"),
    "collector": Service(_collector_command, _collector_environment, "collector_health", "/"),
}


def up(folder: Path, *, mtls: bool = False) -> Stack:
    """Start what does not run; a service that was ended comes back on its old ports, with its old data.

    Raises:
        binaries.Unavailable: they have not been built.
        StackFailed: a service does not get ready.
    """
    stack = load(folder)
    if stack is not None and (stack.mtls == mtls or not _running(stack)):
        return _start(stack._replace(mtls=mtls))
    if stack is not None:
        raise StackFailed(f"the services in {folder} run with another --mtls; run: scripts/backends down {folder}")
    folder.mkdir(parents=True, exist_ok=True)
    tries_left = 3
    while True:
        tries_left -= 1
        ports = dict(zip(PORTS, processes.free_ports(len(PORTS)), strict=True))
        try:
            return _start(Stack(folder.resolve(), ports, mtls, {}))
        except StackFailed as error:
            # Between our look and its start, somebody else has taken one of the ports.
            if "address already in use" not in str(error) or not tries_left:
                raise


def down(folder: Path, names: list[str]) -> list[str]:
    """End these services, and say which ran. Their logs, data and ports stay as they are."""
    stack = load(folder)
    if stack is None:
        return []
    running = _running(stack)
    # Who sends is ended before who is sent to, so that its queue can run empty.
    ended = [name for name in reversed(SERVICES) if name in names and name in running]
    for name in ended:
        processes.end([stack.started[name]])
    return ended


def load(folder: Path) -> Stack | None:
    """What was started in `folder`, or None."""
    try:
        state: dict[str, Any] = json.loads((folder / STATE).read_text())
    except FileNotFoundError:
        return None
    started = {name: processes.Process(*process) for name, process in state["started"].items()}
    return Stack(folder.resolve(), state["ports"], state["mtls"], started)


def _running(stack: Stack) -> list[str]:
    return [name for name, process in stack.started.items() if process.alive]


def _start(stack: Stack) -> Stack:
    """`stack` with every service running and ready."""
    if stack.mtls:
        certificates.make(stack.folder / "tls")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "TRAINSPAN_"))}
    fresh: list[processes.Process] = []
    try:
        for name, service in SERVICES.items():
            if name in _running(stack):
                continue
            environment = inherited | service.environment(stack)
            process = processes.start(service.command(stack), environment, stack.folder / f"{name}.log")
            fresh.append(process)
            stack = stack._replace(started={**stack.started, name: process})
            _save(stack)
            _wait(stack, name)
    except BaseException:
        processes.end(fresh, grace_s=2.0)
        raise
    return stack


def _save(stack: Stack) -> None:
    state = {"ports": stack.ports, "mtls": stack.mtls, "started": stack.started}
    spare = stack.folder / f".{STATE}"
    spare.write_text(json.dumps(state, indent=1))
    spare.replace(stack.folder / STATE)


def _wait(stack: Stack, name: str) -> None:
    """Return once the service answers.

    Raises:
        StackFailed: the process has ended, or the time is up.
    """
    service = SERVICES[name]
    deadline = time.monotonic() + READY_WITHIN_S
    while time.monotonic() < deadline:
        # Asked first: another process on our port must not be taken for ours.
        if not stack.started[name].alive:
            raise StackFailed(f"{name} ended at once; {_last_words(stack, name)}")
        if _answers(stack.ports[service.health_port], service.health_path):
            return
        time.sleep(0.1)
    raise StackFailed(f"{name} was not ready in {READY_WITHIN_S:.0f} s; {_last_words(stack, name)}")


def _last_words(stack: Stack, name: str) -> str:
    log_path = stack.folder / f"{name}.log"
    return f"the end of {log_path}:\n{binaries.tail(log_path)}"


def _answers(port: int, path: str) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2.0)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
