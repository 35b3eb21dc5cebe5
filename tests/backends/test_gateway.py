"""agent.yaml on a node and gateway.yaml behind it: mutual TLS between them, and whole traces kept or dropped."""

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.backends import stack as stacks
from tests.backends import telemetry
from tests.backends.stack import Stack
from tests.ports import free_port

pytestmark = pytest.mark.backends("that agent and gateway hand traces on over mutual TLS, and which the gateway keeps")

CONFIGURATIONS = Path(__file__).resolve().parents[2] / "collector-config"


@pytest.fixture(scope="module")
def gateway(tls_stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`host:port` of a gateway in front of Jaeger that drops every step which is only part of the fixed share."""
    otlp, peers = free_address(), free_address()
    environment = of_gateway(tls_stack, otlp, peers)
    with collector("gateway", environment, tmp_path_factory.mktemp("gateway")):
        yield otlp


@pytest.fixture(scope="module")
def replicas(tls_stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """The same of two that own a part of the traces each. A list in place of a name in DNS that has both addresses."""
    folder = tmp_path_factory.mktemp("replicas")
    listening, peers = (free_address(), free_address()), [free_address(), free_address()]
    both = folder / "peers.yaml"
    resolver = {"dns": None, "static": {"hostnames": peers}}
    both.write_text(json.dumps({"exporters": {"load_balancing": {"resolver": resolver}}}))
    with ExitStack() as running:
        for number, (otlp, peer) in enumerate(zip(listening, peers, strict=True)):
            own = folder / str(number)
            own.mkdir()
            environment = of_gateway(tls_stack, otlp, peer, decision_wait="5s")
            running.enter_context(collector("gateway", environment, own, both))
        yield listening


def of_gateway(stack: Stack, otlp: str, peers: str, decision_wait: str = "1s") -> dict[str, str]:
    """Variables of a gateway that listens there."""
    return {
        "OTLP_GRPC_ENDPOINT": otlp,
        "OTLP_HTTP_ENDPOINT": free_address(),
        "PEER_ENDPOINT": peers,
        "PEERS": "localhost",
        "PEER_PORT": peers.rpartition(":")[2],
        "TRACES_ENDPOINT": f"127.0.0.1:{stacks.status(stack.folder)['ports']['jaeger_otlp']}",
        "TRACES_INSECURE": "true",
        "KEEP_PERCENT": "0",
        "DECISION_WAIT": decision_wait,
        "SELF_METRICS_HOST": "127.0.0.1",
        **certificate(stack, "tls"),
    }


def test_the_gateway_keeps_what_is_worth_a_look(tls_stack: Stack, gateway: str, tmp_path: Path) -> None:
    """Thinning out must never cost the steps somebody will ask for, nor the traces of attempts."""
    ordinary = telemetry.step_spans(telemetry.new_run(), "share")
    failed = telemetry.step_spans(telemetry.new_run(), "share", failed=True)
    slow = telemetry.step_spans(telemetry.new_run(), "slow")
    attempt = telemetry.attempt_spans(telemetry.new_run())
    address = free_address()
    environment = {"OTLP_HTTP_ENDPOINT": address, "GATEWAY_ENDPOINT": gateway, **certificate(tls_stack, "client")}

    with collector("agent", environment, tmp_path):
        for spans in (ordinary, failed, slow, attempt):
            assert telemetry.send_spans(f"http://{address}", spans)
        kept = [tls_stack.trace(spans[0].context.trace_id, len(spans)) for spans in (failed, slow, attempt)]

    assert [len(trace["spans"]) for trace in kept] == [2, 2, 1]
    # It was sent first, so it was decided first.
    assert not tls_stack.has_trace(ordinary[0].context.trace_id)


def test_a_step_found_slow_late_is_kept(tls_stack: Stack, gateway: str, tmp_path: Path) -> None:
    """The node of a straggler says `slow` after the others' spans have been dropped as ordinary."""
    ordinary = telemetry.step_spans(telemetry.new_run(), "share")
    next_one = telemetry.step_spans(telemetry.new_run(), "share")
    markers = [telemetry.step_spans(telemetry.new_run(), "slow") for _ in range(2)]
    late = telemetry.step_spans(telemetry.new_run(), "slow", beside=ordinary[-1])
    address = free_address()
    environment = {"OTLP_HTTP_ENDPOINT": address, "GATEWAY_ENDPOINT": gateway, **certificate(tls_stack, "client")}

    with collector("agent", environment, tmp_path):
        # The gateway remembers the last trace that it dropped, and decides in no order what it decides at once.
        for dropped, marker in zip((ordinary, next_one), markers, strict=True):
            for spans in (dropped, marker):
                assert telemetry.send_spans(f"http://{address}", spans)
            tls_stack.trace(marker[0].context.trace_id, 2)
        assert not tls_stack.has_trace(ordinary[0].context.trace_id)
        assert telemetry.send_spans(f"http://{address}", late)
        trace = tls_stack.trace(ordinary[0].context.trace_id, 2)

    assert {span["spanID"] for span in trace["spans"]} == {f"{span.context.span_id:016x}" for span in late}


def test_a_straggling_step_is_kept_whole_over_replicas_and_nodes(
    tls_stack: Stack, replicas: tuple[str, str], tmp_path: Path
) -> None:
    """Each node reaches any replica; only where all spans of a trace meet can one slow rank keep the step of all."""
    steps = [telemetry.step_spans(telemetry.new_run(), "share") for _ in range(16)]
    # Those that are dropped are sent first, so they are decided first.
    ordinary, straggling = steps[:8], steps[8:]
    late = [telemetry.step_spans(telemetry.new_run(), "straggler", beside=step[-1]) for step in straggling]
    addresses = free_address(), free_address()

    with ExitStack() as nodes:
        for address, gateway, folder in zip(addresses, replicas, ("one", "two"), strict=True):
            (tmp_path / folder).mkdir()
            environment = {
                "OTLP_HTTP_ENDPOINT": address,
                "GATEWAY_ENDPOINT": gateway,
                **certificate(tls_stack, "client"),
            }
            nodes.enter_context(collector("agent", environment, tmp_path / folder))
        for spans in steps:
            assert telemetry.send_spans(f"http://{addresses[0]}", spans)
        for spans in late:
            assert telemetry.send_spans(f"http://{addresses[1]}", spans)
        kept = [tls_stack.trace(step[0].context.trace_id, 4) for step in straggling]

    assert [len(trace["spans"]) for trace in kept] == [4] * 8
    assert not any(tls_stack.has_trace(step[0].context.trace_id) for step in ordinary)


def test_a_wrong_certificate_delays_and_loses_nothing(tls_stack: Stack, gateway: str, tmp_path: Path) -> None:
    """A certificate that ran out over the weekend must not cost the weekend: the agent keeps what it took."""
    spans = telemetry.step_spans(telemetry.new_run(), "slow")
    address = free_address()
    environment = {"OTLP_HTTP_ENDPOINT": address, "GATEWAY_ENDPOINT": gateway}

    with collector("agent", environment | certificate(tls_stack, "stranger"), tmp_path):
        assert telemetry.send_spans(f"http://{address}", spans)
        stacks.wait_for(lambda: "Exporting failed" in (tmp_path / "agent.log").read_text() or None)
        assert not tls_stack.has_trace(spans[0].context.trace_id)
    with collector("agent", environment | certificate(tls_stack, "client"), tmp_path):
        trace = tls_stack.trace(spans[0].context.trace_id, 2)

    assert len(trace["spans"]) == 2


def certificate(stack: Stack, name: str) -> dict[str, str]:
    """The variables that make a collector show this certificate and trust the stack's authority."""
    tls = stack.folder / "tls"
    files = {"CA_FILE": "ca.crt", "CERT_FILE": f"{name}.crt", "KEY_FILE": f"{name}.key"}
    return {f"TLS_{variable}": str(tls / file) for variable, file in files.items()}


@contextmanager
def collector(configuration: str, environment: dict[str, str], folder: Path, *on_top: Path) -> Iterator[None]:
    """A collector with that configuration and what is put on top; its queues and its log stay in `folder`."""
    health = free_address()
    own = {
        "HEALTH_ENDPOINT": health,
        "STORAGE_DIR": str(folder / "queues"),
        "SELF_METRICS_PORT": free_address().rpartition(":")[2],
        "OTLP_GRPC_ENDPOINT": free_address(),
    }
    binary = stacks.status(folder)["binaries"]["otelcol"]
    files = (CONFIGURATIONS / f"{configuration}.yaml", *on_top)
    command = [binary, *(f"--config={file}" for file in files)]
    with (folder / f"{configuration}.log").open("a") as log:
        process = subprocess.Popen(command, env={**os.environ, **own, **environment}, stdout=log, stderr=log)
    try:
        stacks.wait_for(lambda: stacks.get_json(f"http://{health}/"))
        yield
    finally:
        process.terminate()
        process.wait()


def free_address() -> str:
    """A loopback address that nobody listens on now."""
    return f"127.0.0.1:{free_port()}"
