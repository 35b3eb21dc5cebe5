"""Is everything installed in the Python that would train?"""

import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata, util
from pathlib import Path
from typing import Final

import trainspan
from trainspan.cli.checks.finding import Finding

AREA: Final = "installation"
OLDEST_TORCH: Final = (2, 4)

_HOOK_RAN: Final = "import sys; sys.exit('trainspan.startup' not in sys.modules)"
_HOOK_TIMEOUT_S: Final = 60.0
_NVIDIA_DRIVER: Final = Path("/proc/driver/nvidia/version")


def check(environ: Mapping[str, str]) -> Iterator[Finding]:
    """What is found in this Python."""
    facts = {"python": platform.python_version(), "executable": sys.executable, "trainspan": trainspan.__version__}
    yield Finding(AREA, "ok", f"Python {facts['python']} ({sys.executable})", facts=facts)
    yield torch_finding(_version_of("torch"), importable=util.find_spec("torch") is not None)
    yield hook_finding([sys.executable], environ)
    yield from _other_pythons(environ)
    yield nvml_finding(_version_of("nvidia-ml-py"), has_gpu=_NVIDIA_DRIVER.exists())


def _version_of(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def torch_finding(version: str | None, *, importable: bool) -> Finding:
    """What to say of a torch of this version; None: it names none, or there is none."""
    facts = {"torch": version}
    if version is None and importable:
        return Finding(AREA, "note", "torch is there, but does not say its version", facts=facts)
    if version is None:
        return Finding(
            AREA, "problem", "torch is not installed: there is nothing to record", "pip install torch", facts=facts
        )
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if numbers < OLDEST_TORCH:
        oldest = ".".join(map(str, OLDEST_TORCH))
        return Finding(AREA, "problem", f"torch {version} is too old", f"pip install 'torch>={oldest}'", facts=facts)
    return Finding(AREA, "ok", f"torch {version}", facts=facts)


def hook_finding(python: Sequence[str], environ: Mapping[str, str]) -> Finding:
    """Whether a Python started with recording switched on runs our start-up hook: seen by starting one."""
    ran = subprocess.run(
        [*python, "-c", _HOOK_RAN],
        env={**environ, "TRAINSPAN_ENABLED": "1"},
        timeout=_HOOK_TIMEOUT_S,
        capture_output=True,
        check=False,
    )
    works = ran.returncode == 0
    if works:
        return Finding(AREA, "ok", "the start-up hook works", facts={"startup_hook": True})
    return Finding(
        AREA,
        "problem",
        "the start-up hook (trainspan.pth in site-packages) does not run in this Python",
        f"install trainspan into it: {sys.executable} -m pip install --force-reinstall --no-deps trainspan",
        facts={"startup_hook": False},
    )


def _other_pythons(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Commands in PATH that would train with another Python than this one."""
    here = Path(sys.executable).parent
    for command in ("python", "torchrun"):
        found = shutil.which(command, path=environ.get("PATH", os.defpath))
        if found is not None and Path(found).parent != here:
            yield Finding(
                AREA,
                "note",
                f"`{command}` in PATH is {found}, of another environment than this trainspan",
                f"what it trains is recorded only if trainspan is installed there; else use {here / command}",
                facts={command: found},
            )


def nvml_finding(version: str | None, *, has_gpu: bool) -> Finding:
    """What to say of NVIDIA's library; `version` None: it is not installed."""
    facts = {"pynvml": version, "nvidia_driver": has_gpu}
    if version is not None:
        return Finding(AREA, "ok", f"pynvml {version}" + ("" if has_gpu else "; no NVIDIA GPU here"), facts=facts)
    if not has_gpu:
        return Finding(AREA, "ok", "no NVIDIA GPU here", facts=facts)
    return Finding(
        AREA, "note", "there is an NVIDIA GPU, but no pynvml to read it with", "pip install nvidia-ml-py", facts=facts
    )
