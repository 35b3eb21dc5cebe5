"""The torchrun agent: names the run for its workers, keeps a relay alive between attempts, notes how workers ended.

Its own recording holds no marks; while it is open, the relay of this host stays, also when every rank is dead. An agent
can be in a process of another kind: `notebook_launcher` has one for each launch, in the notebook.
"""

import atexit
import contextlib
import os
from collections.abc import Callable
from itertools import count
from pathlib import Path
from signal import Signals
from time import monotonic_ns
from typing import Any

from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent

from trainspan import settings
from trainspan.errors import RecordingRefused
from trainspan.guard import warn_once
from trainspan.identity import identify, new_run_id
from trainspan.placement import place_of
from trainspan.record.bridges import torchelastic
from trainspan.record.patches import Patches
from trainspan.record.recorder import open_writer
from trainspan.recording import attempts, layout
from trainspan.recording.places import run_folder
from trainspan.recording.writer import RecordingWriter
from trainspan.role import Role

_LAUNCH_ID = "TRAINSPAN_LAUNCH_ID"
_LAUNCH_ATTEMPT = "TRAINSPAN_LAUNCH_ATTEMPT"
_FIRST_ATTEMPT = "trainspan/first_attempt"
_NO_RUN_ID = "none"  # torchrun's default, the same for every job


def agent_imported() -> None:
    """Follow every agent that this process makes."""
    if not settings.load(os.environ)[0].enabled:
        return  # the switch has a value that is not understood: the ranks say so
    make = vars(LocalElasticAgent)["__init__"]
    monitor = vars(LocalElasticAgent)["_monitor_workers"]
    start = vars(LocalElasticAgent)["_start_workers"]
    shut_down = vars(LocalElasticAgent)["_shutdown"]
    assign = LocalElasticAgent._assign_worker_ranks
    run = LocalElasticAgent.run
    agents: list[_AgentRecording] = []
    launches = count(1)

    def make_agent(self: Any, spec: Any, *args: Any, **kwargs: Any) -> None:
        _quietly(lambda: agents.append(_AgentRecording(spec, next(launches))))
        make(self, spec, *args, **kwargs)

    def end_agent() -> None:
        metrics.flush()
        for agent in agents:
            agent.close()
        agents.clear()

    def run_agent(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return run(self, *args, **kwargs)
        except BaseException as error:
            kind = torchelastic.class_of(error)
            _quietly(lambda: tell("launch_failed", error=kind))
            raise
        finally:
            _quietly(end_agent)

    def monitor_workers(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = monitor(self, *args, **kwargs)
        _quietly(lambda: agents[-1].note(self, result) if agents else None)
        return result

    def assign_worker_ranks(self: Any, store: Any, *args: Any, **kwargs: Any) -> Any:
        _quietly(lambda: agents[-1].propose(self, store) if agents else None)
        workers = assign(self, store, *args, **kwargs)
        _quietly(lambda: agents[-1].settle(store) if agents else None)
        return workers

    def start_workers(self: Any, *args: Any, **kwargs: Any) -> Any:
        _quietly(lambda: agents[-1].number_attempt(self) if agents else None)
        return start(self, *args, **kwargs)

    def shut_workers_down(self: Any, *args: Any, **kwargs: Any) -> Any:
        _quietly(lambda: agents[-1].note_stop(self, *args, **kwargs) if agents else None)
        return shut_down(self, *args, **kwargs)

    def tell(name: str, /, **fields: Any) -> None:
        if agents:
            agents[-1].event(name, **fields)

    def attempt_of(agent: Any) -> int:
        return agents[-1].attempt_of(agent) if agents else 0

    LocalElasticAgent._assign_worker_ranks = assign_worker_ranks
    LocalElasticAgent._start_workers = start_workers
    LocalElasticAgent._shutdown = shut_workers_down
    metrics = torchelastic.install(LocalElasticAgent, Patches(), tell, attempt_of)
    LocalElasticAgent.__init__ = make_agent
    LocalElasticAgent.run = run_agent
    LocalElasticAgent._monitor_workers = monitor_workers


class _AgentRecording:
    """The recording of one agent.

    Args:
        spec: what it is to start.
        launch: number of the agent in this process, from 1.
    """

    def __init__(self, spec: Any, launch: int):
        run_id = spec.rdzv_handler.get_run_id()
        # A requeued job's attempts are counted with it, as its workers do.
        nodes = getattr(getattr(spec.rdzv_handler, "_settings", None), "max_nodes", 1)
        environ = {
            **os.environ,
            "TORCHELASTIC_MAX_RESTARTS": str(spec.max_restarts),
            "GROUP_WORLD_SIZE": str(nodes),
        }
        self._outer_id = environ.get(_LAUNCH_ID)
        self._outer_attempt = environ.pop(_LAUNCH_ATTEMPT, None)
        # A rendezvous id is every worker's run id already; without one the workers must inherit a name from here.
        if run_id == _NO_RUN_ID:
            name = self._outer_id or new_run_id()
            name = f"{name}-{launch}" if self._outer_id and launch > 1 else name
            environ[_LAUNCH_ID] = os.environ[_LAUNCH_ID] = name
        else:
            environ["TORCHELASTIC_RUN_ID"] = run_id
        values, _ = settings.load(environ)
        identity = identify(values, environ, Role.AGENT)
        self._folder = run_folder(settings.state_dir(values, environ), identity.run)
        # Nothing is to be found out where the user has given the number, or the run's name is new.
        self._counts = values.attempt is None and identity.launcher != "trainspan"
        if self._counts:
            identity = identity._replace(attempt=max(identity.attempt, attempts.next_of(self._folder)))
        self._first = identity.attempt
        self._writer: RecordingWriter | None = open_writer(values, identity, layout.CAPACITY_MIN)
        place = place_of(environ)
        if place:
            self.event("place", attributes=place)
        atexit.register(self.close)

    def attempt_of(self, agent: Any) -> int:
        """The attempt that the agent has last met the others for."""
        return self._first + torchelastic.restarts_of(agent)

    def propose(self, agent: Any, store: Any) -> None:
        """Say in the store by which the nodes have met what this one knows: who shares no disk knows other numbers."""
        if not self._counts or torchelastic.restarts_of(agent) > 0:
            return  # who joins later is told
        said = self._say_first(store, "")
        while said < self._first and _nodes_wait_for_each_other():
            said = self._say_first(store, str(said))

    def settle(self, store: Any) -> None:
        """Take over the highest number that was said, now that every node has come past `propose`."""
        if self._counts:
            self._first = self._say_first(store, "")

    def _say_first(self, store: Any, instead_of: str) -> int:
        # The store below that of the round: what is said in it stays.
        return int(getattr(store, "underlying_store", store).compare_set(_FIRST_ATTEMPT, instead_of, str(self._first)))

    def number_attempt(self, agent: Any) -> None:
        """Tell the workers that are about to start which attempt they are; the count they get is that of their node."""
        attempt = self.attempt_of(agent)
        os.environ[_LAUNCH_ATTEMPT] = str(attempt)
        if self._counts:
            # Recordings may lie elsewhere; who cannot use the run folder says so when it needs it.
            with contextlib.suppress(OSError, RecordingRefused):
                attempts.take(self._folder, attempt)

    def note(self, agent: Any, result: Any) -> None:
        """Record how each worker ended: `result` is what the agent's own look at its workers gave."""
        attempt = self.attempt_of(agent)
        for failure in result.failures.values():
            signal = failure.signal_name() if failure.exitcode < 0 else None
            self.event("worker_ended", attempt=attempt, pid=failure.pid, exit_code=failure.exitcode, signal=signal)
        if result.state.name == "SUCCEEDED":
            for pid in agent._pcontext.pids().values():
                self.event("worker_ended", attempt=attempt, pid=pid, exit_code=0, signal=None)

    def note_stop(self, agent: Any, death_sig: Signals = Signals.SIGTERM, *_: Any, **__: Any) -> None:
        """Record which workers the agent is about to stop: their end is not what ends the attempt."""
        for pid in agent._pcontext.pids().values() if agent._pcontext else ():
            if _lives(pid):
                self.event("worker_stopped", pid=pid, signal=death_sig.name)

    def event(self, name: str, /, **fields: Any) -> None:
        """Append an event."""
        if self._writer is not None:
            self._writer.append_event({"ts": monotonic_ns(), "event": name, **fields})

    def close(self) -> None:
        """Note its orderly end; what this process starts from here on is none of its workers."""
        if self._writer is not None:
            writer, self._writer = self._writer, None
            writer.close(monotonic_ns())
            for variable, outer in ((_LAUNCH_ID, self._outer_id), (_LAUNCH_ATTEMPT, self._outer_attempt)):
                if outer is None:
                    os.environ.pop(variable, None)
                else:
                    os.environ[variable] = outer


def _lives(pid: int) -> bool:
    """Whether a child still runs: one that has ended is there until somebody asks for its exit code."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b") ")[2][:1] not in b"ZX"
    except OSError:
        return False


def _nodes_wait_for_each_other() -> bool:
    """Whether no node is given its ranks before all have come for theirs: torchelastic does so unless told not to."""
    return os.environ.get("TORCH_ELASTIC_WORKER_IDENTICAL", "0") != "1"


def _quietly(action: Callable[[], object]) -> None:
    try:
        action()
    except RecordingRefused as error:
        warn_once("agent", f"the launcher goes on unrecorded: {error}")
    except Exception as error:
        warn_once("agent", f"the launcher is not followed: {type(error).__name__}: {error}")
