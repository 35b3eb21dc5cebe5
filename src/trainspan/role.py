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

    AGENT = "agent"  # launches ranks: torchrun, accelerate launch, deepspeed
    RANK = "rank"  # trains, or may: a launched rank, or any script that could turn out to train
    SPAWNED = "spawned"  # a child of a process that is or may be a rank: a DataLoader worker, or a rank of mp.spawn
    HELPER = "helper"  # never trains: resource trackers, compile workers, our own command and relay


RANK_PID = "TRAINSPAN_RANK_PID"
"""Set by a recording process in its own environment, so that what it starts is not taken for a second rank."""

_OWN_SCRIPT = "trainspan"
_OWN_MODULES = ("trainspan", "trainspan.relay")
_AGENT_SCRIPTS = ("torchrun", "accelerate", "accelerate-launch", "deepspeed")
_AGENT_MODULES = (
    "torch.distributed.run",
    "torch.distributed.launch",
    "accelerate.commands.launch",
    "deepspeed.launcher.runner",
    "deepspeed.launcher.launch",
)
_HELPER_MARKERS = (
    "multiprocessing.resource_tracker",
    "torch/_inductor/compile_worker",
    "torch._inductor.compile_worker",
)
_LONG_OPTION_WITH_VALUE = "--check-hash-based-pycs"


def role_of(argv: "Sequence[str]", environ: "Mapping[str, str]", pid: int) -> str:
    """The role of process `pid` with this command line and environment.

    Args:
        argv: the interpreter and its arguments, as in `sys.orig_argv`.
        environ: the process environment.
        pid: the process's own id.
    """
    option, program = _program_of(argv)
    if any(marker in program for marker in _HELPER_MARKERS) or _is(option, program, _OWN_MODULES, (_OWN_SCRIPT,)):
        return Role.HELPER
    # A fork server's children inherit what it loads here: they may be ranks, as those of mp.spawn.
    if "multiprocessing.spawn" in program or "multiprocessing.forkserver" in program:
        return Role.SPAWNED
    if "TORCHELASTIC_RUN_ID" not in environ and _is(option, program, _AGENT_MODULES, _AGENT_SCRIPTS):
        return Role.AGENT
    if environ.get(RANK_PID, str(pid)) != str(pid):
        return Role.SPAWNED
    return Role.RANK


def _is(option: str, program: str, modules: "tuple[str, ...]", scripts: "tuple[str, ...]") -> bool:
    """Whether what the interpreter runs is one of these."""
    return program in modules if option == "m" else not option and os.path.basename(program) in scripts


def _program_of(argv: "Sequence[str]") -> "tuple[str, str]":
    """What the interpreter runs: ("m", module), ("c", source), or ("", script); an empty script for none.

    Source: https://docs.python.org/3/using/cmdline.html; short options may be joined, with their value too: `-um mod`.
    """
    words = iter(argv[1:])
    for word in words:
        if word == _LONG_OPTION_WITH_VALUE:
            next(words, "")
        elif not word.startswith("-"):
            return "", word
        elif not word.startswith("--"):
            taking = next((place for place, letter in enumerate(word) if letter in "cmWX"), None)
            value = "" if taking is None else word[taking + 1 :] or next(words, "")
            if taking is not None and word[taking] in "cm":
                return word[taking], value
    return "", ""
