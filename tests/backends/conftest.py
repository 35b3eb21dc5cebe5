"""The stacks and the run that tests of the real backends share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.backends import runs
from tests.backends import stack as stacks
from tests.integration.machines import recorded_gpus
from tests.integration.relayed import REPOSITORY


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[stacks.Stack]:
    """Collector, Jaeger and Prometheus as shipped; one stack for all tests, each of which uses runs of its own."""
    folder = tmp_path_factory.mktemp("stack")
    try:
        yield stacks.up(folder)
    finally:
        stacks.run("down", folder)


@pytest.fixture(scope="session")
def tls_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[stacks.Stack]:
    """The same over mutual TLS, with certificates in its folder's `tls`."""
    folder = tmp_path_factory.mktemp("tls-stack")
    try:
        yield stacks.up(folder, "--mtls")
    finally:
        stacks.run("down", folder)


@pytest.fixture
def own_stack(tmp_path: Path) -> Iterator[stacks.Stack]:
    """A stack for one test, which ends parts of it."""
    folder = tmp_path / "stack"
    try:
        yield stacks.up(folder)
    finally:
        stacks.run("down", folder)


@pytest.fixture(scope="session")
def ddp_run(stack: stacks.Stack, tmp_path_factory: pytest.TempPathFactory) -> runs.Run:
    """Two ranks under torchrun, trained to their end, with the shared stack for an endpoint."""
    state = tmp_path_factory.mktemp("ddp-run")
    return runs.run("clocked_ddp.py", state=state, environ={"OTEL_EXPORTER_OTLP_ENDPOINT": stack.otlp_http}, ranks=2)


@pytest.fixture(scope="session")
def demo_run(stack: stacks.Stack, tmp_path_factory: pytest.TempPathFactory) -> runs.Run:
    """`trainspan demo`, as the README has it, into the shared stack."""
    state = tmp_path_factory.mktemp("demo-run")
    return runs.demo(state=state, environ={"OTEL_EXPORTER_OTLP_ENDPOINT": stack.otlp_http})


@pytest.fixture(scope="session")
def framework_run(stack: stacks.Stack, tmp_path_factory: pytest.TempPathFactory) -> runs.Run:
    """Two epochs in Lightning, which counts them, into the shared stack."""
    state = tmp_path_factory.mktemp("framework-run")
    environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": stack.otlp_http, "PYTHONPATH": str(REPOSITORY)}
    return runs.run("frameworks.py", "lightning", state=state, environ=environ)


@pytest.fixture(scope="session")
def real_runs(
    ddp_run: runs.Run,
    demo_run: runs.Run,
    gpu_run: runs.Run,
    spoken_run: runs.Run,
    paced_run: runs.Run,
    inside_run: runs.Run,
    framework_run: runs.Run,
    stalled_run: runs.Run,
    straggling_run: runs.Run,
) -> list[runs.Run]:
    """All of them, each over by then, and none with an error of its own."""
    found = [ddp_run, demo_run, gpu_run, spoken_run, paced_run, inside_run]
    found += [framework_run, stalled_run, straggling_run]
    assert [run.ended.stderr for run in found if run.ended.exit_code != 0] == []
    return found


@pytest.fixture(scope="session")
def gpu_run(stack: stacks.Stack, tmp_path_factory: pytest.TempPathFactory) -> runs.Run:
    """One process that says it uses a GPU, on a machine of eight recorded ones, into the shared stack."""
    state = tmp_path_factory.mktemp("gpu-run")
    environ = {
        **recorded_gpus(state / "modules", "h100x8"),
        "OTEL_EXPORTER_OTLP_ENDPOINT": stack.otlp_http,
        "TRAINSPAN_CARBON_G_PER_KWH": "380",
    }
    return runs.run("pretended_gpu.py", "8", "0.02", state=state / "runs", environ=environ)


@pytest.fixture(scope="session")
def spoken_run(stack: stacks.Stack, tmp_path_factory: pytest.TempPathFactory) -> runs.Run:
    """A loop without torch that names more phases than there are numbers for, into the shared stack."""
    environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": stack.otlp_http}
    return runs.run("spoken.py", "names", state=tmp_path_factory.mktemp("spoken-run"), environ=environ)


@pytest.fixture(scope="session")
def paced_run(stack: stacks.Stack, tmp_path_factory: pytest.TempPathFactory) -> runs.Run:
    """One process that trains for eight seconds, with one slow step, and saves; into the shared stack."""
    state = tmp_path_factory.mktemp("paced-run")
    flops = {"TRAINSPAN_FLOPS_PER_TOKEN": "1e6", "TRAINSPAN_PEAK_FLOPS": "1e12"}
    environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": stack.otlp_http, **flops}
    return runs.run("paced.py", "8", "0.02", str(state / "model.pt"), "60", state=state, environ=environ)


@pytest.fixture(scope="session")
def stalled_run(stack: stacks.Stack, tmp_path_factory: pytest.TempPathFactory) -> runs.Run:
    """One process with a step of three seconds among short ones, which is a stall of one second and more."""
    state = tmp_path_factory.mktemp("stalled-run")
    environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": stack.otlp_http, "TRAINSPAN_STALL_S": "1"}
    return runs.run("paced.py", "5", "0.15", str(state / "model.pt"), "5", state=state, environ=environ)


@pytest.fixture(scope="session")
def straggling_run(stack: stacks.Stack, tmp_path_factory: pytest.TempPathFactory) -> runs.Run:
    """Two ranks of which one makes every step half as long again, into the shared stack."""
    state = tmp_path_factory.mktemp("straggling-run")
    environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": stack.otlp_http}
    return runs.run("straggling_ddp.py", "40", "0.1", state=state, environ=environ, ranks=2)


@pytest.fixture(scope="session")
def inside_run(stack: stacks.Stack, tmp_path_factory: pytest.TempPathFactory) -> runs.Run:
    """Two ranks with collectives, a gradient scaler and a compiler, into the shared stack."""
    state = tmp_path_factory.mktemp("inside-run")
    environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": stack.otlp_http, "PYTHONPATH": str(REPOSITORY)}
    return runs.run("inside_ddp.py", "600", state=state, environ=environ, ranks=2)
