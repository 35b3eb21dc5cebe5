"""Who this process is (run, attempt, rank, node), from the environment only.

And the ids that follow from it: hashes, so that every relay knows every peer's ids without a message (law 5).
"""

import os
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import NamedTuple

from trainspan.settings import Settings


class Identity(NamedTuple):
    """One recorded process. `rank`, `local_rank`, `node_rank` and `world_size` are as torch.distributed has them."""

    role: str
    run: str
    attempt: int
    rank: int
    local_rank: int
    node_rank: int
    world_size: int
    local_world_size: int
    host: str
    pid: int
    launcher: str


def identify(settings: Settings, environ: Mapping[str, str], role: str) -> Identity:
    """This process's identity. Variables that are missing or no numbers count as one process alone."""
    elastic_restarts = _number(environ, ("TORCHELASTIC_RESTART_COUNT",), 0)
    scheduler_restarts = _number(environ, ("SLURM_RESTART_COUNT",), 0)
    per_allocation = _number(environ, ("TORCHELASTIC_MAX_RESTARTS",), 0) + 1
    run, launcher = _run_of(settings, environ)
    # A requeued job starts torchrun's count again: each allocation owns `max_restarts + 1` numbers.
    first = scheduler_restarts * per_allocation if settings.attempt is None else settings.attempt
    return Identity(
        role=role,
        run=run,
        attempt=first + elastic_restarts,
        rank=_number(environ, ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"), 0),
        local_rank=_number(environ, ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK"), 0),
        node_rank=_number(environ, ("GROUP_RANK", "NODE_RANK", "SLURM_NODEID"), 0),
        world_size=_number(environ, ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"), 1),
        local_world_size=_number(
            environ, ("LOCAL_WORLD_SIZE", "SLURM_NTASKS_PER_NODE", "OMPI_COMM_WORLD_LOCAL_SIZE"), 1
        ),
        host=os.uname().nodename,
        pid=os.getpid(),
        launcher=launcher,
    )


def _run_of(settings: Settings, environ: Mapping[str, str]) -> tuple[str, str]:
    """(run id, who gave it). An explicit id wins; torchrun's literal `none` is no id."""
    if settings.run_id:
        return settings.run_id, "user"
    elastic = environ.get("TORCHELASTIC_RUN_ID", "none")
    slurm = ".".join(environ[name] for name in ("SLURM_JOB_ID", "SLURM_STEP_ID") if environ.get(name))
    candidates = (
        (environ.get("RAY_JOB_ID", ""), "ray"),
        ("" if elastic == "none" else elastic, "torchrun"),
        (environ.get("KUBEFLOW_TRAINING_JOB_ID", ""), "kubeflow"),
        (slurm, "slurm"),
        (settings.launch_id or "", "trainspan"),
    )
    for run, launcher in candidates:
        if run:
            return _folder_safe(run), launcher
    return new_run_id(), "process"


def _folder_safe(run: str) -> str:
    """`run` with everything that does not belong in a folder name replaced: it comes from outside."""
    # ASCII alone: 128 letters of another script can take more bytes than a file name may have.
    safe = "".join(c if (c.isascii() and c.isalnum()) or c in "._-" else "-" for c in run)[:128].lstrip(".-")
    return safe or "run"


def new_run_id() -> str:
    """An id for a run nobody named: when it began, and 32 bits that no seed of the user's can repeat."""
    # Imported here: only the first process of a nameless run needs it.
    from datetime import datetime, timezone

    return f"{datetime.now(timezone.utc):%Y%m%d-%H%M%S}-{os.urandom(4).hex()}"


def _number(environ: Mapping[str, str], names: Sequence[str], default: int) -> int:
    for name in names:
        text = environ.get(name, "")
        if text.isdecimal() and len(text) < 10:
            return int(text)
    return default


def trace_id_of(run: str, attempt: int, *what: str | int) -> int:
    """The 128-bit trace id of (run, attempt, what): `what` is ("attempt",) or ("step", number)."""
    return _hash(16, run, attempt, "trace", *what)


def span_id_of(run: str, attempt: int, *what: str | int) -> int:
    """The 64-bit span id of (run, attempt, what): ("step", 7, "rank", 3, "training.forward", 0)."""
    return _hash(8, run, attempt, "span", *what)


def _hash(size_bytes: int, *parts: str | int) -> int:
    text = "\0".join(str(part) for part in parts)
    # An id of zero means "no id" on the wire.
    return int.from_bytes(blake2b(text.encode(), digest_size=size_bytes).digest(), "big") or 1
