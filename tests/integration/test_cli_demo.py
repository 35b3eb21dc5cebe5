"""`trainspan demo`, and the example it trains."""

import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import trainspan
from trainspan.cli.demo import find_script


def test_demo_trains_reports_and_says_how_to_look(tmp_path: Path) -> None:
    """It is the first thing a stranger runs: what it shows must be of the run it has just made."""
    command = [sys.executable, "-m", "trainspan", "demo", "--ranks", "2", "--steps", "6", "--dir", str(tmp_path)]

    ran = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)

    folder = next((tmp_path / "runs").iterdir())
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("$ torchrun ")
    assert f"\nrun {folder.name}: finished\nattempt 0, 2 ranks on 1 host\n6 steps in " in ran.stdout
    assert f"and upload {folder / 'traces.jsonl'} at http://localhost:16686" in ran.stdout
    phases = re.findall(r"^  (\w+) +0  ", ran.stdout, re.MULTILINE)
    assert phases == ["data_wait", "h2d", "forward", "backward", "grad_clip", "optimizer", "other"]


def test_demo_without_torch_says_how_to_get_it(tmp_path: Path) -> None:
    """trainspan does not bring torch, and a traceback would not say so."""
    packages = tmp_path / "packages"
    packages.mkdir()
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if not entry.name.startswith("torch"):
            (packages / entry.name).symlink_to(entry)
    source = Path(trainspan.__file__).parents[1]
    # -S: without the site-packages that have torch.
    command = [sys.executable, "-S", "-m", "trainspan", "demo"]

    ran = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": f"{source}:{packages}"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert ran.returncode == 1
    assert ran.stderr == (
        f"trainspan demo: torch is not installed in {sys.executable}; get it with: pip install torch\n"
    )


def test_example_runs_alone_and_learns() -> None:
    """It is a training script like any other: no launcher needed, and its loss falls."""
    command = [sys.executable, str(find_script()), "--steps", "10", "--validate-every", "10"]

    ran = subprocess.run(command, capture_output=True, text=True, timeout=280, check=True)

    losses = [float(loss) for loss in re.findall(r"  loss (\d+\.\d+)", ran.stdout)]
    assert len(losses) == 3
    assert losses[-1] < losses[0] - 0.5
    assert "validation loss" in ran.stdout


def test_example_does_not_know_us() -> None:
    """The whole claim is that a script need not be changed."""
    assert "trainspan" not in find_script().read_text(encoding="utf-8")


@pytest.mark.parametrize("option", ["--ranks", "--steps"])
def test_demo_refuses_numbers_below_one(option: str) -> None:
    """torchrun would start and then say something about rendezvous."""
    command = [sys.executable, "-m", "trainspan", "demo", option, "0"]

    ran = subprocess.run(command, capture_output=True, text=True, check=False)

    assert ran.returncode == 2
    assert f"argument {option}: invalid whole number from 1 value: '0'" in ran.stderr
