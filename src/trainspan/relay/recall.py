"""Which files of a run's ledger a relay reads when it begins: all of a small one; of a large one those it needs.

The run folder may be shared by all nodes, and then the ledger holds every rank's steps: of 16,000 ranks and a day some
12 GB, which each of 2,000 relays would read at the same moment, after a restart. What a relay says needs less: its own
ranks' past for their goodput, and that of rank 0, which saves the checkpoints, for where an attempt took the run up.
`trainspan goodput` reads everything.
"""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Final

from trainspan.errors import RecordingError
from trainspan.relay.goodput import ledger
from trainspan.relay.timeline.summary import Summary

MOST_BYTES: Final = 8 << 20
"""Read of a ledger at most: 1.2 million steps of ranks, two days of eight ranks and steps of 1 s. Cost: 6 µs a step."""


def files_to_read(folder: Path, node: str, summary: Path, log: Callable[[str], None]) -> list[Path]:
    """The files, those of each writer in the order in which they were written.

    Args:
        folder: of the ledger; it need not exist.
        node: this host.
        summary: of the node that has rank 0: it tells which hosts have had it.
        log: told when the past is not read whole.
    """
    files = ledger.files_in(folder) if folder.is_dir() else []
    if sum(file.size_bytes for file in files) <= MOST_BYTES:
        return [file.path for file in files]
    nodes = {ledger.name_of(host) for host in (node, *_hosts_of_rank_0(summary))}
    taken: set[Path] = set()
    left_bytes = MOST_BYTES
    for file in sorted(files, key=lambda file: (file.began_ns, file.path.name), reverse=True):
        if file.node in nodes and (left_bytes := left_bytes - file.size_bytes) >= 0:
            taken.add(file.path)
    log(
        f"{folder} is large: {len(taken)} of {len(files)} files are read, the newest of {', '.join(sorted(nodes))}; "
        "the metric training.goodput of the whole run begins with them, and `trainspan goodput` reads everything"
    )
    return [file.path for file in files if file.path in taken]


def _hosts_of_rank_0(summary: Path) -> set[str]:
    """Where rank 0 has run so far, as far as that can be read."""
    with contextlib.suppress(OSError, RecordingError):
        ranks = Summary.from_text(summary.read_bytes()).ranks.values()
        return {rank.identity.host for rank in ranks if rank.identity.rank == 0}
    return set()
