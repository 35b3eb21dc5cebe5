"""Recorded GPUs for a real relay: a module `pynvml` that answers from a recording."""

from pathlib import Path

from tests.integration.relayed import REPOSITORY

RECORDED = REPOSITORY / "tests" / "data" / "nvml"

MODULE = """\
import os, sys, trainspan.testing.fake_nvml as fake
sys.modules[__name__] = fake.FakeNvml.from_file(os.environ["RECORDED_MACHINE"])
"""


def recorded_gpus(folder: Path, machine: str) -> dict[str, str]:
    """Variables with which a process finds the GPUs of a recorded machine; the module is made in `folder`."""
    folder.mkdir(exist_ok=True)
    (folder / "pynvml.py").write_text(MODULE)
    return {"PYTHONPATH": str(folder), "RECORDED_MACHINE": str(RECORDED / f"{machine}.json")}
