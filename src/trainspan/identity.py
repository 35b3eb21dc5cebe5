"""Who this process is (run, attempt, rank, node), from its environment, or from what a script has told torch.

And the ids that follow from it: hashes, so that every relay knows every peer's ids without a message (law 5).
"""

import os
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import NamedTuple

from trainspan import mpirun
from trainspan.settings import Settings

# In order of preference: who started the ranks comes before what that one was started in. Ray Train and Kubeflow set
# torch's own names.
_RANK = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK", "SLURM_PROCID")
_LOCAL_RANK = (
    "LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "MPI_LOCALRANKID",
    "MV2_COMM_WORLD_LOCAL_RANK",
    "SLURM_LOCALID",
)
# DeepSpeed's launcher names the node and its size as Horovod's ancestors did; Intel MPI numbers its proxies.
_NODE_RANK = ("GROUP_RANK", "NODE_RANK", "CROSS_RANK", "HYDRA_BSTRAP_NODE_ID", "SLURM_NODEID")
_NODES = ("GROUP_WORLD_SIZE",)
_WORLD_SIZE = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE", "SLURM_NTASKS")
_LOCAL_WORLD_SIZE = (
    "LOCAL_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "MPI_LOCALNRANKS",
    "MV2_COMM_WORLD_LOCAL_SIZE",
    "LOCAL_SIZE",
)
_OF_SLURM_STEP = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_NTASKS", "SLURM_NTASKS_PER_NODE")
RAY_JOB = "RAY_JOB_ID"
RAY_SESSION = "RAY_SESSION_NAME"
"""Which incarnation of a cluster a job of Ray's is in; no variable of Ray's own, which tells it by its command line."""
_SLURM_STEPS_MOST = 0xFFFFFFF0
"""Numbers from here on are no steps of `srun`: the batch script itself, or the shell of an interactive allocation."""


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


class World(NamedTuple):
    """The ranks that train together, as a script tells torch: this process's rank, and how many there are.

    `place`: where they meet, as `host:port` or the path of a file; None if it was not told.
    """

    rank: int
    size: int
    place: str | None


class Assignment(NamedTuple):
    """What a framework has given a process to do that it started for anything: one rank of one training.

    `attempt`: which incarnation of the training it is; None if nobody counts them.
    """

    run: str
    attempt: int | None = None
    rank: int = 0
    local_rank: int = 0
    node_rank: int = 0
    world_size: int = 1
    local_world_size: int = 1


def assigned(identity: Identity, assignment: Assignment, settings: Settings) -> Identity:
    """`identity` with what the process has been given to do; a run that the user has named keeps that name."""
    given = assignment._asdict()
    given["run"] = identity.run if settings.run_id else _folder_safe(assignment.run)
    given["attempt"] = identity.attempt if assignment.attempt is None else assignment.attempt
    return identity._replace(**given, launcher=identity.launcher if settings.run_id else "ray")


def identify(settings: Settings, environ: Mapping[str, str], role: str, world: World | None = None) -> Identity:
    """This process's identity. Variables that are missing or no numbers count as one process alone.

    Args:
        settings: in force.
        environ: of the process.
        role: what it is to the job.
        world: what its script has told torch; it counts more than an environment that says otherwise.
    """
    told = _identify(settings, environ, role)
    place = place_of_world(environ) if world is None else world.place
    if world is None or (told.rank, told.world_size) == (world.rank, world.size):
        # `RANK=1 python train.py`, on one host: nobody counts the ranks of a node, because all are on it.
        knows_node = told.world_size < 2 or _found(environ, _LOCAL_RANK) is not None or not _is_loopback(place)
        return told if knows_node else told._replace(local_rank=told.rank, local_world_size=told.world_size)
    told = told._replace(rank=world.rank, world_size=world.size)
    return told._replace(local_rank=world.rank, local_world_size=world.size) if _is_loopback(place) else told


def _identify(settings: Settings, environ: Mapping[str, str], role: str) -> Identity:
    run, launcher = _run_of(settings, environ)
    local_world_size, node_rank = _local_world_size(environ), _found(environ, _NODE_RANK)
    rank = _found(environ, _RANK)
    if rank is None and _is_on_one_node(environ):
        rank, local_world_size = _found(environ, _LOCAL_RANK), _found(environ, _WORLD_SIZE)
    rank = rank or 0
    if node_rank is None:
        node_rank = mpirun.node_of(environ)
    if node_rank is None:
        # MPICH numbers no nodes, and fills them in order if it is told how many ranks each has.
        node_rank = rank // local_world_size if local_world_size else 0
    return Identity(
        role=role,
        run=run,
        attempt=_attempt_of(settings, environ),
        rank=rank,
        local_rank=_found(environ, _LOCAL_RANK) or 0,
        node_rank=node_rank,
        world_size=_found(environ, _WORLD_SIZE) or 1,
        local_world_size=local_world_size or 1,
        host=os.uname().nodename,
        pid=os.getpid(),
        launcher=launcher,
    )


def _local_world_size(environ: Mapping[str, str]) -> int | None:
    told = _found(environ, _LOCAL_WORLD_SIZE)
    if told is None and environ.get("SLURM_GTIDS") and _in_slurm_step(environ):
        # The tasks of this node: `0,1,2`. The number that was asked for is not always there, or is that of the job.
        return environ["SLURM_GTIDS"].count(",") + 1
    return _found(environ, ("SLURM_NTASKS_PER_NODE",)) if told is None else told


def _attempt_of(settings: Settings, environ: Mapping[str, str]) -> int:
    elastic_restarts = _found(environ, ("TORCHELASTIC_RESTART_COUNT",))
    if elastic_restarts is not None and settings.launch_attempt is not None:
        return settings.launch_attempt
    scheduler_restarts = _found(environ, ("SLURM_RESTART_COUNT",)) or 0
    # A requeued job starts torchrun's count again, and each node may restart it `max_restarts` times: so many numbers
    # each allocation owns.
    most_restarts = (_found(environ, ("TORCHELASTIC_MAX_RESTARTS",)) or 0) * (_found(environ, _NODES) or 1)
    first = scheduler_restarts * (most_restarts + 1) if settings.attempt is None else settings.attempt
    return first + (elastic_restarts or 0)


def _is_on_one_node(environ: Mapping[str, str]) -> bool:
    """Whether this is a rank that Lightning has started: it tells no rank, but that in the node, which is the same."""
    told = [_number(environ.get(name, "")) for name in ("NODE_RANK", "LOCAL_RANK", "WORLD_SIZE")]
    node_rank, local_rank, world_size = told
    return node_rank == 0 and local_rank is not None and world_size is not None and local_rank < world_size


def is_launched(environ: Mapping[str, str]) -> bool:
    """Whether a launcher or scheduler has started this process as a rank."""
    return _found(environ, _RANK) is not None


def is_named(identity: Identity, environ: Mapping[str, str]) -> bool:
    """Whether the run's id is that of one job: what a batch script or a command is given, all it starts inherits."""
    if identity.launcher == "slurm":
        return _in_slurm_step(environ)
    if identity.launcher == "ray":
        return not environ.get(RAY_SESSION)
    if identity.launcher in ("trainspan", "mpirun"):
        return "TORCHELASTIC_RUN_ID" in environ
    return identity.launcher != "process"


def is_new(identity: Identity) -> bool:
    """Whether the run's id is new with every launch."""
    return identity.launcher in ("process", "trainspan", "mpirun")


def place_of_world(environ: Mapping[str, str]) -> str | None:
    """Where the ranks of this environment meet, as torch has it: `host:port`."""
    host, port = environ.get("MASTER_ADDR", ""), environ.get("MASTER_PORT", "")
    return f"{host}:{port}" if host and port else None


def _is_loopback(place: str | None) -> bool:
    """Whether only processes of one host can meet there."""
    host = (place or "").rpartition(":")[0].strip("[]")
    return host in ("localhost", "::1") or host.startswith("127.")


def _run_of(settings: Settings, environ: Mapping[str, str]) -> tuple[str, str]:
    """(run id, who gave it). An explicit id wins; torchrun's literal `none` is no id."""
    if settings.run_id:
        return settings.run_id, "user"
    elastic = environ.get("TORCHELASTIC_RUN_ID", "none")
    launch = mpirun.key_of(environ, lasting=True)
    ray = environ.get(RAY_JOB, "")
    if ray and environ.get(RAY_SESSION):
        ray = f"{environ[RAY_SESSION]}.{ray}"
    candidates = (
        (ray, "ray"),
        ("" if elastic == "none" else elastic, "torchrun"),
        (environ.get("KUBEFLOW_TRAINING_JOB_ID", ""), "kubeflow"),
        (_slurm_job(environ), "slurm"),
        # `trainspan run` has told its name only to the ranks on its own host.
        (f"mpirun-{launch}" if launch else "", "mpirun"),
        (settings.launch_id or "", "trainspan"),
    )
    for run, launcher in candidates:
        if run:
            return _folder_safe(run), launcher
    return new_run_id(), "process"


def _slurm_job(environ: Mapping[str, str]) -> str:
    """Job and step; of an `mpirun` the job, unless others may run beside it on other nodes; empty: not in Slurm."""
    job = environ.get("SLURM_JOB_ID", "")
    if job and _in_slurm_step(environ):
        return f"{job}.{environ['SLURM_STEP_ID']}"
    launch = mpirun.key_of(environ, lasting=False)
    alone = launch is None or mpirun.has_all(environ, environ.get("SLURM_JOB_NUM_NODES", ""))
    return job if alone or not job else f"{job}.{launch}"


def launch_of(environ: Mapping[str, str]) -> str | None:
    """What all ranks of one `srun` or `mpirun` have, on all nodes, and none of another ever; None: they have nothing.

    A requeued job begins its steps anew.
    """
    job = [environ.get(name, "") for name in ("SLURM_CLUSTER_NAME", "SLURM_JOB_ID", "SLURM_RESTART_COUNT")]
    if job[1] and _in_slurm_step(environ):
        return _folder_safe("-".join(("srun", *job, environ["SLURM_STEP_ID"])))
    key = mpirun.key_of(environ, lasting=not job[1])
    return None if key is None else _folder_safe("-".join(("mpirun", *job, key)))


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


def _found(environ: Mapping[str, str], names: Sequence[str]) -> int | None:
    """The first of these variables that is a number."""
    for name in names:
        number = _number(environ.get(name, ""))
        # A batch script sees the numbers of its job, of which it is no task: what it starts is one process alone.
        if number is not None and (name not in _OF_SLURM_STEP or _in_slurm_step(environ)):
            return number
    return None


def _in_slurm_step(environ: Mapping[str, str]) -> bool:
    if mpirun.is_open_mpi(environ):
        return False  # the step is that of its daemons, which are on all nodes but that of the batch script
    step = environ.get("SLURM_STEP_ID", "")
    return step.isdecimal() and len(step) <= 10 and int(step) < _SLURM_STEPS_MOST


def _number(text: str) -> int | None:
    return int(text) if text.isdecimal() and len(text) < 10 else None


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
