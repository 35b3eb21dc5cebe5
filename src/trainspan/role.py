"""What a process is to a training job, told from its command line before anything else is imported.

Every Python process of a machine runs this when trainspan is switched on, so it imports nothing that Python has not
already loaded at start-up: `enum`, `re` or `typing` would cost each of them milliseconds.
"""

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Role:
    """The roles. Plain strings: they travel in the recording's identity."""

    AGENT = "agent"  # launches ranks: torchrun, accelerate launch
    RANK = "rank"  # trains, or may: a launched rank, or any script that could turn out to train
    SPAWNED = "spawned"  # a child of a process that is or may be a rank: a DataLoader worker, or a rank of mp.spawn
    HELPER = "helper"  # never trains: resource trackers, compile workers


RANK_PID = "TRAINSPAN_RANK_PID"
"""Set by a recording process in its own environment, so that what it starts is not taken for a second rank."""

_AGENT_SCRIPTS = ("torchrun", "accelerate", "accelerate-launch")
_AGENT_MODULES = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch")
_HELPER_MARKERS = (
    "multiprocessing.resource_tracker",
    "multiprocessing.forkserver",
    "torch/_inductor/compile_worker",
    "torch._inductor.compile_worker",
)
_OPTIONS_WITH_VALUE = ("-X", "-W")


def role_of(argv: "Sequence[str]", environ: "Mapping[str, str]", pid: int) -> str:
    """The role of process `pid` with this command line and environment.

    Args:
        argv: the interpreter and its arguments, as in `sys.orig_argv`.
        environ: the process environment.
        pid: the process's own id.
    """
    arguments = list(argv[1:])
    text = " ".join(arguments[:6])
    if any(marker in text for marker in _HELPER_MARKERS):
        return Role.HELPER
    if "multiprocessing.spawn" in text or "--multiprocessing-fork" in arguments:
        return Role.SPAWNED
    if _launches(arguments) and "TORCHELASTIC_RUN_ID" not in environ:
        return Role.AGENT
    if environ.get(RANK_PID, str(pid)) != str(pid):
        return Role.SPAWNED
    return Role.RANK


def _launches(arguments: "list[str]") -> bool:
    """Whether the first thing run is one of the known launchers."""
    position = 0
    while position < len(arguments):
        word = arguments[position]
        if word == "-m":
            return position + 1 < len(arguments) and arguments[position + 1] in _AGENT_MODULES
        if word == "-c":
            return False
        if not word.startswith("-"):
            return os.path.basename(word) in _AGENT_SCRIPTS
        position += 2 if word in _OPTIONS_WITH_VALUE else 1
    return False
