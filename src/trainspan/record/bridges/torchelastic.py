"""What torchelastic says of itself, in the process that launches: how long it takes, its metrics, its events.

    launch          operation: what its agent did; restarts: so far; start_ns, end_ns, ok; node, nodes
    launch_restart  restarts: so far; reason: `failure`, or `membership`: nodes have come or gone
    launch_metrics  values: what was put into `torch.distributed.elastic.metrics`, by name; the last ones
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

from trainspan.guard import warn_once
from trainspan.record.patches import Patches

OPERATIONS: Final = {
    "_rendezvous": "rendezvous",
    "_start_workers": "start_workers",
    "_stop_workers": "stop_workers",
    "_exit_barrier": "exit_barrier",
}
"""Methods of the agent, and what they do."""

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


def install(agent: Any, patches: Patches, tell: Tell) -> Metrics:
    """Follow every agent of this class, and what it says; the metrics, to be flushed at an agent's end.

    Args:
        agent: the class.
        patches: remembers the originals.
        tell: `tell(event, **fields)` appends an event to the recording of the agent that runs, if one does.
    """
    for method, operation in OPERATIONS.items():
        owner = _owner_of(agent, method)
        if owner is not None:
            patches.replace(owner, method, _timed(vars(owner)[method], operation, tell))
    metrics = Metrics(tell)
    _quietly(lambda: _follow_restarts(agent, patches, tell))
    _quietly(lambda: _follow_metrics(metrics, patches))
    _quietly(lambda: _follow_events(patches, tell))
    return metrics


def _owner_of(agent: Any, method: str) -> Any:
    """The class of an agent's bases that has a method; None if none has."""
    return next((base for base in agent.__mro__ if method in vars(base)), None)


def _timed(call: Callable[..., Any], operation: str, tell: Tell) -> Callable[..., Any]:
    def timed(self: Any, *args: Any, **kwargs: Any) -> Any:
        start_ns, ok = monotonic_ns(), False
        try:
            result = call(self, *args, **kwargs)
            ok = True
            return result
        finally:
            end_ns = monotonic_ns()
            _quietly(
                lambda: tell(
                    "launch", operation=operation, start_ns=start_ns, end_ns=end_ns, ok=ok, **_situation_of(self)
                )
            )

    return functools.update_wrapper(timed, call)


def _situation_of(agent: Any) -> dict[str, Any]:
    """How often it has restarted its workers, and which node of how many this is; None before it has met the others."""
    group = agent._worker_group
    return {
        "restarts": group.spec.max_restarts - agent._remaining_restarts,
        "node": group.group_rank,
        "nodes": group.group_world_size,
    }


def _follow_restarts(agent: Any, patches: Patches, tell: Tell) -> None:
    owner = _owner_of(agent, "_restart_workers")
    restart = vars(owner)["_restart_workers"]

    def restart_workers(self: Any, group: Any, *args: Any, **kwargs: Any) -> Any:
        # It restarts healthy workers for one reason: other nodes wait to join, or some have gone.
        reason = "membership" if group.state.name == "HEALTHY" else "failure"
        _quietly(lambda: tell("launch_restart", reason=reason, **_situation_of(self)))
        return restart(self, group, *args, **kwargs)

    patches.replace(owner, "_restart_workers", functools.update_wrapper(restart_workers, restart))


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


def _quietly(action: Callable[[], object]) -> None:
    try:
        action()
    except Exception as error:
        warn_once("torchelastic", f"not all that torchelastic says is taken over ({type(error).__name__}: {error})")
