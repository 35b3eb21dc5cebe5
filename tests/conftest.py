"""What holds for every test: a known environment, and which machines can run what."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import pytest

BACKENDS = Path(__file__).resolve().parent.parent / "scripts" / "backends"

# Set by a training job, by a user of OpenTelemetry, or by ourselves: none may reach into a test from outside.
FOREIGN = (
    *("TRAINSPAN_", "OTEL_", "TORCHELASTIC_", "SLURM_", "OMPI_", "PMI_", "MPI_LOCAL", "MV2_", "RAY_", "KUBEFLOW_"),
    *("K8S_", "POD_"),
)
FOREIGN_NAMES = (
    *("RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "TRACEPARENT"),
    *("NODE_NAME", "SLURMD_NODENAME"),
)

# No deadline: a test machine is as slow as it is. The same examples every time where a failure must be repeatable.
hypothesis.settings.register_profile("trainspan", deadline=None, print_blob=True, derandomize="CI" in os.environ)
hypothesis.settings.load_profile("trainspan")


def _why_no_gpu() -> str | None:
    try:
        import torch
    except ImportError:
        return "torch is not installed"
    return None if torch.cuda.is_available() else "this machine has no GPU"


def _why_no_backends() -> str | None:
    status = subprocess.run([sys.executable, BACKENDS, "status"], capture_output=True, text=True, check=False)
    return status.stderr.strip() if status.returncode else None


NEEDS: dict[str, Callable[[], str | None]] = {"gpu": _why_no_gpu, "backends": _why_no_backends}
"""Markers that need something, and what tells why it is not there."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what this machine cannot run; the marker's sentence says what it would have shown."""
    for need, why_not in NEEDS.items():
        marked = [(item, marker) for item in items if (marker := item.get_closest_marker(need))]
        reason = why_not() if marked else None
        for item, marker in marked:
            if not marker.args:
                raise pytest.UsageError(f'{item.nodeid}: say what it shows: @pytest.mark.{need}("that ...")')
            if reason:
                item.add_marker(pytest.mark.skip(reason=f"{reason}; would have shown {marker.args[0]}"))


@pytest.fixture(scope="session", autouse=True)
def _known_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No variable from outside, and a state directory of its own: what a test starts inherits both."""
    before = dict(os.environ)
    for name in before:
        if name.startswith(FOREIGN) or name in FOREIGN_NAMES:
            del os.environ[name]
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))

    yield

    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of this checkout."""
    return Path(__file__).resolve().parent.parent
