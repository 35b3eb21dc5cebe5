"""What the ranks of one `mpirun` have in common, from what it puts into their environment, over all their hosts.

Tried with Open MPI 4.1.4 and 5.0.11, Intel MPI 2021.18, MPICH 4.0.2 and 5.0.2. MPICH tells nothing of the kind.
"""

from collections.abc import Mapping
from hashlib import blake2b
from typing import Final

_OPEN_MPI: Final = "OMPI_COMM_WORLD_RANK"
_LASTING: Final = (
    # 128 bits of /dev/urandom, the key of the job to networks that ask for one. `srun` sets it, too: its job and step.
    (_OPEN_MPI, "OMPI_MCA_orte_precondition_transports"),
    # Its process number, the microsecond, and 32 bits more.
    ("PMI_RANK", "I_MPI_HYDRA_UUID"),
)
"""(what its ranks have, what is the same for all of them and never again)."""

_LIVING: Final = (
    *_LASTING,
    # `prterun-node1-30486@1`: host and process number. In a container that is started again both are the same again.
    (_OPEN_MPI, "PMIX_NAMESPACE"),
)
"""The same, but only among those that live at one time, or belong to one job of a scheduler."""

_DAEMONS: Final = ("OMPI_MCA_orte_local_daemon_uri", "PMIX_SERVER_URI2")
"""`2071527424.1;tcp://...`, or since Open MPI 5 `prterun-node1-30486@0.1;tcp4://...`: a job's daemon and its number."""


def is_open_mpi(environ: Mapping[str, str]) -> bool:
    """Whether this is a rank of Open MPI's `mpirun`."""
    return _OPEN_MPI in environ


def key_of(environ: Mapping[str, str], *, lasting: bool) -> str | None:
    """16 hexadecimal digits that all ranks of one `mpirun` have, and none of another; None: it tells nothing of that.

    A hash: what is behind it may be a key.

    Args:
        environ: of the rank.
        lasting: and that no other will ever have; else none of those that live now.
    """
    for rank, variable in _LASTING if lasting else _LIVING:
        if environ.get(rank) and environ.get(variable):
            return blake2b(environ[variable].encode(errors="replace"), digest_size=8).hexdigest()
    return None


def node_of(environ: Mapping[str, str]) -> int | None:
    """The number of this host to Open MPI: 0 is where `mpirun` runs, even if it starts no rank there."""
    daemon = next((environ[name] for name in _DAEMONS if environ.get(name)), "") if is_open_mpi(environ) else ""
    number = daemon.partition(";")[0].rpartition(".")[2]
    return int(number) if number.isascii() and number.isdecimal() and len(number) < 10 else None


def has_all(environ: Mapping[str, str], nodes: str) -> bool:
    """Whether all `nodes` of a scheduler's job are known to be those of this `mpirun` of Open MPI."""
    told = environ.get("OMPI_MCA_orte_num_nodes")
    if told is not None or nodes == "1":
        return told in (nodes, None)
    # Since Open MPI 5 there is no number of nodes. The universe is all that the job may start.
    universe = environ.get("OMPI_UNIVERSE_SIZE")
    return universe is not None and universe == environ.get("OMPI_COMM_WORLD_SIZE")
