"""What torchelastic says of itself, in the process that launches: how long it takes, its metrics, its events.

    launch_begins   operation: what its agent begins to do; attempt: for which; start_ns; node, nodes
    launch          likewise, once it is done; end_ns, ok; error: class of the exception that left it
    launch_restart  attempt: that has begun; reason: `failure`, or `membership`: there are more or fewer nodes
    launch_metrics  values: what was put into `torch.distributed.elastic.metrics`, by name; the last ones
    launch_failed   error: class of the exception that left the agent
    launch_event    name, attributes: what was recorded with `torch.distributed.elastic.events`

A handler that somebody has configured there stays, and gets everything as before: what is wrapped are the agent's own
methods, `MetricStream.add_value` and `record`. An agent has no step, so nothing here is in a hurry.
"""

import functools
import json
from collections.abc import Callable
from importlib import import_module
from time import monotonic_ns
from typing import Any, Final

from trainspan.record.bridges.quietly import quietly
from trainspan.record.patches import Patches

_quietly = functools.partial(quietly, "torchelastic")

OPERATIONS: Final = {
    "_rendezvous": "rendezvous",
    "_start_workers": "start_workers",
    "_stop_workers": "stop_workers",
    "_exit_barrier": "exit_barrier",
}
"""Methods of the agent, and what they do."""

_RESTART: Final = "_restart_workers"

MOST_EVENTS: Final = 10_000
MOST_METRICS: Final = 128
METRICS_EVERY_NS: Final = 1_000_000_000

_OWN_GROUP: Final = "torchelastic"
_EVENT_FIELDS: Final = (
    "state",
    "role",
    "global_rank",
    "group_rank",
    "worker_id",
    "agent_restarts",
    "duration_ms",
    "total_run_time",
    "rdzv_backend",
)
"""Of an event's metadata. Not among them: the entry point, and the raw error, which can hold anything."""

Tell = Callable[..., None]


class Metrics:
    """The last value of each metric, told when it is new, once a second at most.

    Args:
        tell: `tell("launch_metrics", values=…)` appends an event.
        now_ns: the monotonic clock.
    """

    def __init__(self, tell: Tell, now_ns: Callable[[], int] = monotonic_ns):
        self._tell = tell
        self._now_ns = now_ns
        self._values: dict[str, float] = {}
        self._new: dict[str, float] = {}
        self._next_ns = 0

    def put(self, group: str, name: str, value: Any) -> None:
        """A value has been put."""
        if type(value) not in (int, float):
            return
        name = name if group == _OWN_GROUP else f"{group}.{name}"
        if self._values.get(name) == value or (name not in self._values and len(self._values) >= MOST_METRICS):
            return
        self._values[name] = self._new[name] = value
        if self._now_ns() >= self._next_ns:
            self.flush()

    def flush(self) -> None:
        """Tell what is new."""
        if self._new:
            values, self._new = self._new, {}
            self._next_ns = self._now_ns() + METRICS_EVERY_NS
            self._tell("launch_metrics", values=values)


def install(agent: Any, patches: Patches, tell: Tell, attempt_of: Callable[[Any], int]) -> Metrics:
    """Follow every agent of this class, and what it says; the metrics, to be flushed at an agent's end.

    Args:
        agent: the class.
        patches: remembers the originals.
        tell: `tell(event, **fields)` appends an event to the recording of the agent that runs, if one does.
        attempt_of: the number of the attempt that an agent has last met the others for.
    """
    operations = _Operations(tell, attempt_of)
    for method, operation in OPERATIONS.items():
        owner = _owner_of(agent, method)
        if owner is not None:
            patches.replace(owner, method, operations.timed(vars(owner)[method], operation))
    owner = _owner_of(agent, _RESTART)
    if owner is not None:
        patches.replace(owner, _RESTART, operations.restarted(vars(owner)[_RESTART]))
    metrics = Metrics(tell)
    _quietly(lambda: _follow_metrics(metrics, patches))
    _quietly(lambda: _follow_events(patches, tell))
    return metrics


def _owner_of(agent: Any, method: str) -> Any:
    """The class of an agent's bases that has a method; None if none has."""
    return next((base for base in agent.__mro__ if method in vars(base)), None)


class _Operations:
    """What agents do, told when it is done: within a restart at its end, because until then that has no number."""

    def __init__(self, tell: Tell, attempt_of: Callable[[Any], int]):
        self._tell = tell
        self._attempt_of = attempt_of
        self._held: list[dict[str, Any]] | None = None
        self._before = False, 0
        self._coming = 0

    def timed(self, call: Callable[..., Any], operation: str) -> Callable[..., Any]:
        """A method of the agent, followed."""

        def timed(agent: Any, *args: Any, **kwargs: Any) -> Any:
            begun = {"operation": operation, "start_ns": monotonic_ns()}
            # Who is killed while it waits for the others could not say afterwards that it did.
            _quietly(lambda: self._tell("launch_begins", **begun, **self._situation_of(agent)))
            error = None
            try:
                return call(agent, *args, **kwargs)
            except BaseException as raised:
                error = class_of(raised)
                raise
            finally:
                done = {**begun, "end_ns": monotonic_ns(), "ok": error is None, "error": error}
                _quietly(lambda: self._done(agent, done))

        return functools.update_wrapper(timed, call)

    def restarted(self, restart: Callable[..., Any]) -> Callable[..., Any]:
        """The agent's `_restart_workers`, followed."""

        def restart_workers(agent: Any, *args: Any, **kwargs: Any) -> Any:
            _quietly(lambda: self._begin(agent))
            try:
                result = restart(agent, *args, **kwargs)
                _quietly(lambda: self._began_anew(agent))
                return result
            finally:
                _quietly(lambda: self._release(agent))

        return functools.update_wrapper(restart_workers, restart)

    def _begin(self, agent: Any) -> None:
        group = agent._worker_group
        self._held = []
        self._before = group.state.name == "HEALTHY", group.group_world_size
        met = _round_of(group.spec)
        self._coming = 0 if met is None else met + 1

    def _began_anew(self, agent: Any) -> None:
        # Healthy workers are stopped because the nodes meet again: there are more or fewer of them, or as many as
        # before, and then one has lost its workers, or was replaced.
        healthy, nodes = self._before
        reason = "membership" if healthy and agent._worker_group.group_world_size != nodes else "failure"
        self._tell("launch_restart", reason=reason, **self._situation_of(agent))

    def _release(self, agent: Any) -> None:
        held, self._held = self._held or [], None
        for done in held:
            self._tell("launch", **done, **self._situation_of(agent))
        self._coming = 0

    def _done(self, agent: Any, done: dict[str, Any]) -> None:
        if self._held is None:
            self._tell("launch", **done, **self._situation_of(agent))
        else:
            self._held.append(done)

    def _situation_of(self, agent: Any) -> dict[str, Any]:
        """The attempt, and which node of how many this is; None before it has met the others.

        The next round begins once all have left the last one: where they never meet again, it is still that one's.
        """
        group = agent._worker_group
        ahead = max(self._coming - restarts_of(agent), 0)
        return {"attempt": self._attempt_of(agent) + ahead, "node": group.group_rank, "nodes": group.group_world_size}


def restarts_of(agent: Any) -> int:
    """How often the workers of all nodes have been started anew.

    An agent's own count leaves out what another node began, and a node that has joined later begins at 0
    (pytorch/pytorch#108158). The round of the rendezvous is the same on every node; only a static one has none.
    """
    spec = agent._worker_group.spec
    met = _round_of(spec)
    return spec.max_restarts - agent._remaining_restarts if met is None else met


def _round_of(spec: Any) -> int | None:
    """The round of the rendezvous; None if it has none."""
    state = getattr(getattr(spec.rdzv_handler, "_state_holder", None), "state", None)
    met = getattr(state, "round", None)
    return met if type(met) is int else None


def class_of(error: BaseException) -> str:
    """The name of its class, with its module."""
    kind = type(error)
    return f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")


def _follow_metrics(metrics: Metrics, patches: Patches) -> None:
    stream = import_module("torch.distributed.elastic.metrics.api").MetricStream
    add = vars(stream)["add_value"]

    def add_value(self: Any, name: str, value: Any) -> None:
        add(self, name, value)
        _quietly(lambda: metrics.put(self.group_name, name, value))

    patches.replace(stream, "add_value", functools.update_wrapper(add_value, add))


def _follow_events(patches: Patches, tell: Tell) -> None:
    module = import_module("torch.distributed.elastic.events")
    record = vars(module)["record"]
    told = 0

    def record_event(event: Any, *args: Any, **kwargs: Any) -> None:
        nonlocal told
        record(event, *args, **kwargs)
        if told < MOST_EVENTS:
            told += 1
            _quietly(lambda: tell("launch_event", name=event.name, attributes=attributes_of(event)))

    functools.update_wrapper(record_event, record)
    for owner in (module, import_module("torch.distributed.elastic.agent.server.api")):
        if vars(owner).get("record") is record:
            patches.replace(owner, "record", record_event)


def attributes_of(event: Any) -> dict[str, Any]:
    """What an event of torchelastic tells, by its own names."""
    found = {name: event.metadata.get(name) for name in _EVENT_FIELDS}
    # Its metadata have metadata, as a text; there each value is in a list by itself.
    more = json.loads(event.metadata.get("metadata") or "{}")
    [found["exit_code"]] = more.get("exit_code") or [None]
    found["source"] = event.source.name
    return {name: value for name, value in found.items() if isinstance(value, str | int | float)}
