"""Recorded GPUs for a real relay: a module `pynvml` that answers from a recording."""

import os
import re
from pathlib import Path

from tests.integration.relayed import REPOSITORY

RECORDED = REPOSITORY / "tests" / "data" / "nvml"

MODULE = """\
import os, sys, trainspan.testing.fake_nvml as fake
sys.modules[__name__] = fake.FakeNvml.from_file(os.environ["RECORDED_MACHINE"])
"""


def recorded_gpus(folder: Path, machine: str) -> dict[str, str]:
    """Variables with which a process finds the GPUs of a recorded machine; the module is made in `folder`.

    They get UUIDs of their own: all relays of a user on a host agree on who speaks for which GPU.
    """
    folder.mkdir(exist_ok=True)
    (folder / "pynvml.py").write_text(MODULE)
    own = folder / f"{machine}.json"
    text = (RECORDED / own.name).read_text()
    own.write_text(re.sub(r'"(GPU|MIG)-[0-9a-f]{8}', rf'"\1-{os.urandom(4).hex()}', text))
    return {"PYTHONPATH": str(folder), "RECORDED_MACHINE": str(own)}
