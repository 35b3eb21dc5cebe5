"""Runs scripts under the real `opentelemetry-instrument`, with our entry points as the wheel has them."""

import json
import os
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tests.integration.relayed import PATIENCE_S, REPOSITORY, SCRIPTS, Ended

BIN = Path(sys.executable).parent
# An environment that borrows its packages from another one has no scripts of them.
INSTRUMENT = (
    (str(BIN / "opentelemetry-instrument"),)
    if (BIN / "opentelemetry-instrument").exists()
    else (sys.executable, "-c", "from opentelemetry.instrumentation.auto_instrumentation import run; run()")
)
LAUNCHER = ("torchrun",) if shutil.which("torchrun", path=str(BIN)) else ("python", "-m", "torch.distributed.run")

# Another package of the environment: an instrumentation's last hook, which runs in every Python process and tells.
WITNESS = """
import json, os, sys
from opentelemetry import trace

def tell():
    line = {
        "argv": sys.orig_argv[1:],
        "rank": os.environ.get("RANK"),
        "sdk": "opentelemetry.sdk" in sys.modules,
        "torch": "torch" in sys.modules,
        "provider": type(trace.get_tracer_provider()).__name__,
    }
    with open(os.environ["WITNESS"], "a") as file:
        file.write(json.dumps(line) + "\\n")
"""


class Process(NamedTuple):
    """A Python process that `opentelemetry-instrument` has run in, as it was when its own program began."""

    argv: list[str]
    rank: str | None
    sdk: bool
    torch: bool
    provider: str


class Instrumented:
    """An environment in which `opentelemetry-instrument` finds us, and a witness.

    Args:
        folder: for what is made.
        others: more distributions: name -> (entry points in the format of their file, modules by name).
    """

    def __init__(self, folder: Path, others: Mapping[str, tuple[str, Mapping[str, str]]] | None = None):
        self.site = folder / "site"
        self.witness = folder / "witness.jsonl"
        _entry_points_of_wheel(folder, self.site)
        hook = "[opentelemetry_post_instrument]\nwitness = witness:tell\n"
        for name, (text, modules) in {"witness": (hook, {"witness": WITNESS}), **(others or {})}.items():
            metadata = self.site / f"{name}-1.0.dist-info"
            metadata.mkdir()
            (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
            (metadata / "entry_points.txt").write_text(text)
            for module, source in modules.items():
                (self.site / f"{module}.py").write_text(source)

    def run(self, *command: str, environ: Mapping[str, str]) -> Ended:
        """Run a command below `opentelemetry-instrument` to its end. Recording is not switched on by a variable."""
        everything = {
            **os.environ,
            "PATH": f"{BIN}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
            # The script's own imports, and before everything else what an installation would have.
            "PYTHONPATH": f"{self.site}{os.pathsep}{REPOSITORY}",
            "WITNESS": str(self.witness),
            "OMP_NUM_THREADS": "1",
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
            **environ,
        }
        whole = [*INSTRUMENT, *command]
        done = subprocess.run(whole, env=everything, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        return Ended(done.returncode, time.monotonic(), lines, done.stderr)

    def torchrun(self, script: str, *arguments: str, state: Path, environ: Mapping[str, str]) -> Ended:
        """Run a script of `tests/data/training` on two ranks, recorded below `state`."""
        more = {"TRAINSPAN_DIR": str(state), **environ}
        return self.run(*LAUNCHER, "--nproc-per-node", "2", str(SCRIPTS / script), *arguments, environ=more)

    def processes(self) -> list[Process]:
        """Every process it has run in so far."""
        lines: list[dict[str, Any]] = [json.loads(line) for line in self.witness.read_text().splitlines()]
        return [Process(**line) for line in lines]


def _entry_points_of_wheel(folder: Path, site: Path) -> None:
    """Unpack what a fresh wheel says of itself: an editable install is only as new as its last installation."""
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder / "wheel")]
    subprocess.run(command, cwd=REPOSITORY, capture_output=True, check=True)
    (wheel,) = (folder / "wheel").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if ".dist-info/" in name]
        archive.extractall(site, names)
