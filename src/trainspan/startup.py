"""What the start-up hook runs in every Python process while TRAINSPAN_ENABLED is set.

It tells the process's role and puts one import hook in place; everything else waits until torch is imported. It
costs below 1 ms because it imports only what Python has loaded already (os, sys) and three small modules.
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

_recorders: "list[Recorder]" = []  # of this process, once torch has been imported
_waiting: "list[Callable[[Recorder], None]]" = []


def start() -> None:
    """Watch for torch if this process may train or launches what trains. Called by `trainspan.pth`; never raises."""
    if os.environ.get("TRAINSPAN_ENABLED", "").strip().lower() in _OFF or watch in sys.meta_path:
        return
    role = role_of(getattr(sys, "orig_argv", sys.argv), os.environ, os.getpid())
    if role == Role.HELPER:
        return
    sys.meta_path.insert(0, watch)
    if role == Role.AGENT:
        watch.add(AGENT_MODULE, _agent_module_imported)
    else:
        watch.add("torch", lambda module, started_ns: _torch_imported(role, started_ns))


def on_recorder(action: "Callable[[Recorder], None]") -> None:
    """Call `action` with the recorder of this process once there is one; at once if there is. It must not raise."""
    _waiting.append(action)
    for recorder in _recorders:
        action(recorder)


def _torch_imported(role: str, started_ns: int) -> None:
    """Hook torch, now that it is there. Loaded here and not above: see the module's docstring."""
    try:
        from trainspan.record import bootstrap

        recorder = bootstrap.torch_imported(role, started_ns)
    except Exception as error:
        _step_aside(error)
        return
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


def _step_aside(error: Exception) -> None:
    from trainspan.guard import warn_once

    warn_once("startup", f"not recording: {type(error).__name__}: {error}")
