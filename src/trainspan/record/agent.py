"""The torchrun agent: names the run for its workers, keeps a relay alive between attempts, notes how workers ended.

Its own recording holds no marks; while it is open, the relay of this host stays, also when every rank is dead. An agent
can be in a process of another kind: `notebook_launcher` has one for each launch, in the notebook.
"""

import atexit
import contextlib
import functools
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
from trainspan.identity import identify, is_new, new_run_id
from trainspan.placement import place_of
from trainspan.record.bridges import torchelastic
from trainspan.record.opening import open_writer
from trainspan.record.patches import Patches
from trainspan.recording import attempts, layout
from trainspan.recording.last_words import signal_of
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
    agents: list[_AgentRecording] = []
    launches = count(1)
    run = LocalElasticAgent.run

    def run_agent(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return run(self, *args, **kwargs)
        except BaseException as error:
            kind = torchelastic.class_of(error)
            _quietly(lambda: tell("launch_failed", error=kind))
            raise
        finally:
            _quietly(end_agent)

    def end_agent() -> None:
        metrics.flush()
        for agent in agents:
            agent.close()
        agents.clear()

    def tell(name: str, /, **fields: Any) -> None:
        for agent in agents[-1:]:
            agent.event(name, **fields)

    def attempt_of(agent: Any) -> int:
        return agents[-1].attempt_of(agent) if agents else 0

    def newest(action: Callable[..., object]) -> Callable[..., None]:
        """What calls `action(recording, …)` with the recording of the newest agent, if there is one."""

        def act(*args: Any, **kwargs: Any) -> None:
            for recording in agents[-1:]:
                action(recording, *args, **kwargs)

        return act

    def open_recording(_agent: Any, spec: Any, *_: Any, **__: Any) -> None:
        agents.append(_AgentRecording(spec, next(launches)))

    _follow("__init__", before=open_recording)
    _follow("_assign_worker_ranks", before=newest(_AgentRecording.propose), after=newest(_AgentRecording.settle))
    _follow(
        "_start_workers", before=newest(_AgentRecording.number_attempt), after=newest(_AgentRecording.watch_workers)
    )
    _follow("_monitor_workers", after=newest(_AgentRecording.note))
    metrics = torchelastic.install(LocalElasticAgent, Patches(), tell, attempt_of)
    LocalElasticAgent.run = run_agent


def _follow(
    method: str, before: Callable[..., object] | None = None, after: Callable[..., object] | None = None
) -> None:
    """Call `before(agent, …)` and `after(agent, result, …)` at each call of a method, if this torch's agent has it."""
    call = getattr(LocalElasticAgent, method, None)
    if call is None:
        warn_once(f"agent.{method}", f"this torch's launcher has no {method}: it is followed without")
        return

    @functools.wraps(call)
    def followed(agent: Any, *args: Any, **kwargs: Any) -> Any:
        if before is not None:
            _quietly(lambda: before(agent, *args, **kwargs))
        result = call(agent, *args, **kwargs)
        if after is not None:
            _quietly(lambda: after(agent, result, *args, **kwargs))
        return result

    setattr(LocalElasticAgent, method, followed)


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
        self._counts = values.attempt is None and not is_new(identity)
        if self._counts:
            identity = identity._replace(attempt=max(identity.attempt, attempts.next_of(self._folder)))
        self._first = identity.attempt
        self._stopped: dict[int, str] = {}  # by pid, with which signal
        self._told: set[int] = set()  # pids of those whose end has been told
        self._writer: RecordingWriter | None = open_writer(values, identity, layout.CAPACITY_MIN)
        place = place_of(environ)
        if place:
            self.event("place", attributes=place)
        atexit.register(self.close)

    def attempt_of(self, agent: Any) -> int:
        """The attempt that the agent has last met the others for."""
        return self._first + torchelastic.restarts_of(agent)

    def propose(self, agent: Any, store: Any, *_: Any, **__: Any) -> None:
        """Say in the store by which the nodes have met what this one knows: who shares no disk knows other numbers."""
        if not self._counts or torchelastic.restarts_of(agent) > 0:
            return  # who joins later is told
        say_highest(store, self._first, instead=_nodes_wait_for_each_other())

    def settle(self, _agent: Any, _workers: Any, store: Any, *_: Any, **__: Any) -> None:
        """Take over the highest number that was said, now that every node has come past `propose`."""
        if self._counts:
            self._first = say_highest(store, self._first, instead=False)

    def number_attempt(self, agent: Any, *_: Any, **__: Any) -> None:
        """Tell the workers that are about to start which attempt they are; the count they get is that of their node."""
        attempt = self.attempt_of(agent)
        os.environ[_LAUNCH_ATTEMPT] = str(attempt)
        if self._counts:
            # Recordings may lie elsewhere; who cannot use the run folder says so when it needs it.
            with contextlib.suppress(OSError, RecordingRefused):
                attempts.take(self._folder, attempt)

    def watch_workers(self, agent: Any, *_: Any, **__: Any) -> None:
        """Record whom the agent stops from now on: also those that are left when one of them has failed."""
        workers = agent._pcontext
        close = workers.close
        self._stopped, self._told = {}, set()
        attempt = self.attempt_of(agent)  # what keeps the agent keeps its store, for which a process may wait 30 s

        @functools.wraps(close)
        def noted(death_sig: Signals | None = None, *args: Any, **kwargs: Any) -> Any:
            _quietly(lambda: self.note_failures(attempt, workers))
            _quietly(lambda: self.note_stop(workers, death_sig or Signals.SIGTERM))
            return close(death_sig, *args, **kwargs)

        workers.close = noted

    def note(self, agent: Any, result: Any, *_: Any, **__: Any) -> None:
        """Record how each worker ended: `result` is what the agent's own look at its workers gave."""
        attempt = self.attempt_of(agent)
        for failure in result.failures.values():
            self._tell_end(attempt, failure.pid, failure.exitcode)
        if result.state.name == "SUCCEEDED":
            for pid in agent._pcontext.pids().values():
                self._tell_end(attempt, pid, 0)

    def note_failures(self, attempt: int, workers: Any) -> None:
        """Record how those ended for whom torchrun is about to stop the others: it may take 30 s to say so itself."""
        for handler in getattr(workers, "subprocess_handlers", {}).values():
            if handler.proc.returncode:  # of one that has ended, as torch has found out
                self._tell_end(attempt, handler.proc.pid, handler.proc.returncode)

    def note_stop(self, workers: Any, signal: Signals) -> None:
        """Record which workers are about to be stopped: their end is not what ends the attempt."""
        for pid in workers.pids().values():
            if _lives(pid):
                self._stopped[pid] = signal.name
                self.event("worker_stopped", pid=pid, signal=signal.name)

    def _tell_end(self, attempt: int, pid: int, exit_code: int) -> None:
        signal = signal_of(exit_code)
        # As it was told to, or because it would not, after 30 s: newer ones of torch have those among the failures.
        as_told = pid in self._stopped and signal in (self._stopped[pid], Signals.SIGKILL.name)
        if pid not in self._told and not as_told:
            self._told.add(pid)
            self.event("worker_ended", attempt=attempt, pid=pid, exit_code=exit_code, signal=signal)

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


def say_highest(store: Any, number: int, *, instead: bool) -> int:
    """Say the number of the first attempt in a store; what is said there then.

    Args:
        store: of torch.distributed.
        number: of the first attempt, as far as this node knows.
        instead: say it instead of a lower one, too.
    """
    # The store below that of the round: what is said in it stays.
    below = getattr(store, "underlying_store", store)
    before, said = -1, int(below.compare_set(_FIRST_ATTEMPT, "", str(number)))
    # What another node has said meanwhile is higher than before; a store that stays as it is takes nothing.
    while instead and before < said < number:
        before, said = said, int(below.compare_set(_FIRST_ATTEMPT, str(said), str(number)))
    return said


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
