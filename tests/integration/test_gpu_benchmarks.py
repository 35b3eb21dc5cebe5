"""The benchmarks that the page of the GPUs quotes run, here on a recorded machine and a device that does nothing."""

import json
import subprocess
import sys

import pytest

from tests.integration.relayed import REPOSITORY


@pytest.mark.parametrize(
    ("name", "arguments", "rows"),
    [
        ("gpu_probe", ("--times", "2"), {"recorded, 8 GPUs: our own code", "the same, as metrics"}),
        ("device_events", ("--rounds", "2"), {"a step that is not timed", "a timed step, ten marks"}),
    ],
)
def test_it_measures_what_needs_no_gpu(name: str, arguments: tuple[str, ...], rows: set[str]) -> None:
    """A number on a page that nobody can measure again is a claim."""
    done = subprocess.run(
        [sys.executable, REPOSITORY / "benchmarks" / f"{name}.py", *arguments, "--json"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert set(json.loads(done.stdout)) >= rows
