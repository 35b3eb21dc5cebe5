"""What the start-up hook runs in every Python process while TRAINSPAN_ENABLED is set.

It tells the process's role and puts one import hook in place; everything else waits until torch is imported. It
costs about 1 ms (`scripts/bench startup`) because it imports only what Python has loaded already (os, sys) and three
small modules.
"""

import os
import sys

from trainspan.role import Role, role_of
from trainspan.watch import watch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from trainspan.record.recorder import Recorder

_OFF = ("", "0", "false", "no", "off")
AGENT_MODULE = "torch.distributed.elastic.agent.server.local_elastic_agent"
LAUNCHER_MODULE = "deepspeed"

_recorders: "list[Recorder]" = []  # of this process, once torch has been imported, or the script has used the API
_waiting: "list[Callable[[Recorder], None]]" = []
_roles: "list[str]" = []  # of this process, if it may record


def start() -> None:
    """Watch for torch if this process may train or launches what trains. Called by `trainspan.pth`; never raises."""
    if os.environ.get("TRAINSPAN_ENABLED", "").strip().lower() in _OFF or watch in sys.meta_path:
        return
    role = role_of(getattr(sys, "orig_argv", sys.argv), os.environ, os.getpid())
    if role == Role.HELPER:
        return
    sys.meta_path.insert(0, watch)
    watch.add(AGENT_MODULE, _agent_module_imported)  # a notebook launches, too
    if role == Role.AGENT:
        watch.add(LAUNCHER_MODULE, _launcher_imported)
    else:
        _roles.append(role)
        watch.add("torch", lambda module, started_ns: _torch_imported(role, started_ns))


def on_recorder(action: "Callable[[Recorder], None]") -> None:
    """Call `action` with the recorder of this process once there is one; at once if there is. It must not raise."""
    _waiting.append(action)
    for recorder in _recorders:
        action(recorder)


def recorder() -> "tuple[Recorder, str] | None":
    """The recorder of this process, and its role, for who marks without torch; None: this process never records.

    It is made now if torch is not there yet, which then goes on with it.
    """
    if not _roles:
        return None
    if not _recorders:
        try:
            from trainspan.record import bootstrap

            _take(bootstrap.enabled_recorder(_roles[0]))
        except Exception as error:
            _step_aside(error)
    return (_recorders[0], _roles[0]) if _recorders else None


def _torch_imported(role: str, started_ns: int) -> None:
    """Hook torch, now that it is there. Loaded here and not above: see the module's docstring."""
    try:
        from trainspan.record import bootstrap

        if not _recorders:
            _take(bootstrap.enabled_recorder(role))
        for known in _recorders:
            bootstrap.torch_imported(known, role, started_ns)
    except Exception as error:
        _step_aside(error)


def _take(recorder: "Recorder | None") -> None:
    if recorder is not None:
        _recorders.append(recorder)
        for action in _waiting:
            action(recorder)


def _agent_module_imported(module: "ModuleType", started_ns: int) -> None:
    try:
        from trainspan.record import agent

        agent.agent_imported()
    except Exception as error:
        _step_aside(error)


def _launcher_imported(module: "ModuleType", started_ns: int) -> None:
    """Name the run for the ranks that DeepSpeed's launcher is about to start: it gives them none."""
    try:
        from trainspan.identity import new_run_id

        os.environ.setdefault("TRAINSPAN_LAUNCH_ID", new_run_id())
    except Exception as error:
        _step_aside(error)


def _step_aside(error: Exception) -> None:
    from trainspan.guard import warn_once

    warn_once("startup", f"not recording: {type(error).__name__}: {error}")
