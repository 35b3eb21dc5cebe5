"""`trainspan doctor` on recorded machines: which GPUs a relay would read, and what of them it would not."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.integration.machines import recorded_gpus

H100, OLD = "GPU 0: NVIDIA H100 80GB HBM3, GPU-", "GPU 0: Tesla P100-PCIE-16GB, GPU-"


def gpu_findings(folder: Path, machine: str) -> list[dict[str, Any]]:
    """What it says of the GPUs of that machine."""
    command = [sys.executable, "-m", "trainspan", "doctor", "--json"]
    environ = {**os.environ, **recorded_gpus(folder, machine), "TRAINSPAN_DIR": str(folder / "state")}
    said = subprocess.run(command, capture_output=True, text=True, env=environ, check=True)
    return [finding for finding in json.loads(said.stdout)["findings"] if finding["area"] == "gpus"]


@pytest.mark.parametrize(
    ("machine", "count", "state", "begins", "ends"),
    [
        ("h100x8", 8, "ok", H100, "driver 550.90.07"),
        ("mig", 4, "ok", "GPU 0: NVIDIA A100-SXM4-80GB, ", "utilization, encoder, decoder, replaced memory rows"),
        ("old_card", 1, "note", OLD, "it has no energy counter: its power is integrated instead"),
    ],
)
def test_gpus_are_named_with_what_they_do_not_tell(
    tmp_path: Path, machine: str, count: int, state: str, begins: str, ends: str
) -> None:
    """Who misses a panel of the dashboard asks here first."""
    first, *others = gpu_findings(tmp_path, machine)

    assert len(others) == count - 1
    assert first["state"] == state
    assert first["text"].startswith(begins)
    assert first["text"].endswith(ends)
    assert first["facts"]["vendor"] == "NVIDIA"
