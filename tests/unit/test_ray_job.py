"""For which job of Ray's a process works, against the least of Ray that says so."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from trainspan.record import ray_job

WORKER = ["python", "default_worker.py", "--node-manager-port=1", "--session-name=session_7", "--webui="]
AS_STARTED = {"RAY_JOB_ID": "ffffffff"}


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Ray as it is in a worker that it has started before it knew what for."""
    package = ModuleType("ray")
    package.__dict__["get_runtime_context"] = lambda: SimpleNamespace(get_job_id=lambda: "02000000")
    monkeypatch.setitem(sys.modules, "ray", package)
    monkeypatch.setattr(sys, "orig_argv", WORKER)
    monkeypatch.setenv("RAY_JOB_ID", "ffffffff")
    return package


def told() -> dict[str, str]:
    """What is said of Ray."""
    return {name: value for name, value in ray_job.environment().items() if name.startswith("RAY_")}


@pytest.mark.usefixtures("ray")
def test_job_is_the_one_that_ray_knows_in_the_session_it_is_of() -> None:
    """Two ranks of a job would be two runs, if one of their workers waited for its job; and tomorrow's is another."""
    environ = told()

    assert environ == {"RAY_JOB_ID": "02000000", "RAY_SESSION_NAME": "session_7"}


def test_worker_of_a_ray_that_says_nothing_is_as_its_environment_has_it(
    ray: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A version may say it in another way, and a process may have left its cluster."""
    monkeypatch.delattr(ray, "get_runtime_context")

    environ = told()

    assert environ == AS_STARTED


@pytest.mark.usefixtures("ray")
def test_process_that_is_no_worker_has_no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """The script that talks to the cluster may train by itself."""
    monkeypatch.delenv("RAY_JOB_ID")

    environ = told()

    assert environ == {}
