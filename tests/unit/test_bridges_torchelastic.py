"""What torchelastic says of itself is told, and reaches whom it reached before."""

from collections.abc import Callable, Iterator
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed.elastic import events, metrics
from torch.distributed.elastic.events import Event, EventSource

from trainspan.record.bridges import torchelastic as bridge
from trainspan.record.patches import Patches


class Base:
    """As torchelastic's agent: some of its methods are inherited."""

    def __init__(self, state: str = "HEALTHY", restarts: int = 0, nodes_then: int = 2, met: int | None = None):
        # Of torch's handlers only the dynamic one has rounds.
        handler = SimpleNamespace()
        if met is not None:
            handler._state_holder = SimpleNamespace(state=SimpleNamespace(round=met))
        spec = SimpleNamespace(max_restarts=3, rdzv_handler=handler)
        status = SimpleNamespace(name=state)
        self._worker_group = SimpleNamespace(spec=spec, state=status, group_rank=1, group_world_size=2)
        self._remaining_restarts = 3 - restarts
        self._nodes_then = nodes_then

    def _rendezvous(self, group: Any) -> None:
        if group is None:
            raise TimeoutError("nobody came")
        group.group_world_size = self._nodes_then
        holder = getattr(group.spec.rdzv_handler, "_state_holder", None)
        if holder is not None:
            holder.state.round += 1

    def _restart_workers(self, group: Any) -> str:
        self._stop_workers(group)
        self._rendezvous(group)
        return "restarted"

    def _stop_workers(self, group: Any) -> None:
        """The agent's own."""


class Agent(Base):
    """The one that is followed."""

    def _start_workers(self, group: Any) -> dict[int, Any]:
        return {0: group}


class Kept(metrics.MetricHandler):
    """A handler of somebody else's."""

    def __init__(self) -> None:
        self.values: list[tuple[str, str, Any]] = []

    def emit(self, metric_data: Any) -> None:
        """Keep it."""
        self.values.append((metric_data.group_name, metric_data.name, metric_data.value))


Told = list[tuple[str, dict[str, Any]]]


@pytest.fixture
def told() -> Iterator[Told]:
    """What was told, with the agent and torchelastic followed."""
    heard: Told = []
    patches = Patches()
    bridge.install(Agent, patches, lambda name, /, **fields: heard.append((name, fields)), bridge.restarts_of)
    yield heard
    patches.undo()


@pytest.fixture
def handler() -> Iterator[Kept]:
    """The handler that a user has configured."""
    kept = Kept()
    metrics.configure(kept)
    yield kept
    metrics.configure(metrics.NullMetricHandler())


def done(told: Told) -> Told:
    """What was told once it was done."""
    return [(name, fields) for name, fields in told if name != "launch_begins"]


def test_what_the_agent_does_is_timed(told: Told) -> None:
    """With the attempt it is for, and the node."""
    agent = Agent(restarts=2)

    workers = agent._start_workers("group")

    [(begun, before), (done, after)] = told
    assert workers == {0: "group"}
    assert (begun, done) == ("launch_begins", "launch")
    assert before["start_ns"] == after.pop("start_ns") <= after.pop("end_ns")
    assert after == {"operation": "start_workers", "ok": True, "error": None, "attempt": 2, "node": 1, "nodes": 2}


def test_what_the_agent_does_is_told_before_it_is_done(told: Told) -> None:
    """Who is killed while it waits for the other nodes says nothing afterwards."""
    seen: list[list[str]] = []

    class Group:
        spec = SimpleNamespace(rdzv_handler=None)

        def __setattr__(self, name: str, value: object) -> None:
            seen.append([name for name, _ in told])

    Agent()._rendezvous(Group())

    assert seen == [["launch_begins"]]


def test_rendezvous_that_fails_is_told_and_reaches_the_agent(told: Told) -> None:
    """Of all that a launcher does it is what most often ends a job."""
    with pytest.raises(TimeoutError, match="nobody came"):
        Agent()._rendezvous(None)

    [(_, fields)] = done(told)
    assert (fields["operation"], fields["ok"], fields["error"]) == ("rendezvous", False, "TimeoutError")


@pytest.mark.parametrize(
    ("state", "nodes", "reason"),
    [("HEALTHY", 3, "membership"), ("HEALTHY", 2, "failure"), ("FAILED", 2, "failure"), ("UNHEALTHY", 1, "failure")],
)
def test_restart_is_told_with_its_reason(told: Told, state: str, nodes: int, reason: str) -> None:
    """A job that shrinks and grows is none that crashes; one whose other node has lost its workers is."""
    agent = Agent(state, restarts=1, nodes_then=nodes)

    answer = agent._restart_workers(agent._worker_group)

    assert answer == "restarted"
    restart, *launches = done(told)
    assert restart == ("launch_restart", {"reason": reason, "attempt": 1, "node": 1, "nodes": nodes})
    assert [fields["operation"] for _, fields in launches] == ["stop_workers", "rendezvous"]


def test_round_of_the_rendezvous_counts_and_a_restart_is_the_round_it_leads_to(told: Told) -> None:
    """The count of this agent is its own: another node can have begun the restart, or this one joined later."""
    agent = Agent(restarts=0, met=4)

    agent._restart_workers(agent._worker_group)
    agent._start_workers("group")

    assert {fields["attempt"] for name, fields in told if name == "launch_begins"} == {5}
    assert [(fields.get("operation"), fields["attempt"]) for _, fields in done(told)] == [
        (None, 5),
        ("stop_workers", 5),
        ("rendezvous", 5),
        ("start_workers", 5),
    ]


def test_restart_that_fails_leaves_what_was_done(told: Told) -> None:
    """The nodes did not meet again: no attempt has begun, and how long they tried is told."""
    agent = Agent("FAILED", restarts=1)

    with pytest.raises(TimeoutError, match="nobody came"):
        agent._restart_workers(None)
    agent._start_workers("group")

    assert [(fields["operation"], fields["ok"]) for _, fields in done(told)] == [
        ("stop_workers", True),
        ("rendezvous", False),
        ("start_workers", True),
    ]


def test_rendezvous_that_fails_in_a_restart_is_of_the_attempt_that_never_was(told: Told) -> None:
    """The round rises once all nodes have left the last one, and the one that is lost never leaves."""
    agent = Agent("FAILED", met=4)

    with pytest.raises(TimeoutError, match="nobody came"):
        agent._restart_workers(None)
    agent._start_workers("group")

    assert [(fields["operation"], fields["attempt"]) for _, fields in done(told)] == [
        ("stop_workers", 5),
        ("rendezvous", 5),
        ("start_workers", 4),
    ]


def test_metrics_reach_the_users_handler_and_us(told: Told, handler: Kept) -> None:
    """torchelastic has one handler, and it is the user's."""
    metrics.put_metric("workers.default.healthy", 1)
    metrics.put_metric("waited", 2.5, "mine")

    assert handler.values == [("torchelastic", "workers.default.healthy", 1), ("mine", "waited", 2.5)]
    assert told[0] == ("launch_metrics", {"values": {"workers.default.healthy": 1}})


def test_handler_that_fails_fails_as_before(told: Told, monkeypatch: pytest.MonkeyPatch, handler: Kept) -> None:
    """Whose it is must hear of it."""

    def refuse(_: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(handler, "emit", refuse)

    with pytest.raises(OSError, match="disk full"):
        metrics.put_metric("workers.default.healthy", 1)

    assert told == []


@pytest.fixture
def second() -> Callable[[float], Told]:
    """What is told of one metric put every 0.1 s, for so many seconds."""

    def put(seconds: float) -> Told:
        heard: Told = []
        clock = [0]
        said = bridge.Metrics(lambda name, /, **fields: heard.append((name, fields)), lambda: clock[0])
        for number in range(round(10 * seconds)):
            clock[0] = number * 100_000_000
            said.put("torchelastic", "steady", 1)
            said.put("torchelastic", "rising", number)
        said.flush()
        return heard

    return put


def test_metrics_are_told_when_they_change_and_not_every_tick(second: Callable[[float], Told]) -> None:
    """The agent puts the same numbers ten times a second, for months."""
    heard = second(3.0)

    values = [fields["values"] for _, fields in heard]
    assert values == [{"steady": 1}, {"rising": 10}, {"rising": 20}, {"rising": 29}]


def test_names_of_metrics_are_bounded() -> None:
    """A name with a number in it must not fill the log."""
    heard: Told = []
    said = bridge.Metrics(lambda name, /, **fields: heard.append((name, fields)), lambda: 0)

    for number in range(2 * bridge.MOST_METRICS):
        said.put("torchelastic", f"name-{number}", 1)
    said.put("torchelastic", "text", "no number")
    said.flush()

    assert sum(len(fields["values"]) for _, fields in heard) == bridge.MOST_METRICS


def event(**metadata: Any) -> Event:
    """An event as the agent makes them."""
    return Event("torchelastic.worker.status.FAILED", EventSource.WORKER, metadata=metadata)


@pytest.mark.parametrize("module", ["torch.distributed.elastic.events", "torch.distributed.elastic.agent.server.api"])
def test_event_is_told_without_what_can_hold_anything(told: Told, module: str) -> None:
    """An error's text can hold data and secrets; its exit code cannot."""
    record = import_module(module).record
    made = event(
        state="FAILED", global_rank=3, worker_id=None, raw_error="password", metadata='{"exit_code": [9], "x": 1}'
    )

    record(made)

    attributes = {"state": "FAILED", "global_rank": 3, "exit_code": 9, "source": "WORKER"}
    assert told == [("launch_event", {"name": "torchelastic.worker.status.FAILED", "attributes": attributes})]


def test_event_that_makes_no_sense_is_recorded_all_the_same(told: Told, capsys: pytest.CaptureFixture[str]) -> None:
    """It is somebody's own."""
    events.record(event(metadata="{"))

    assert told == []
    assert "Traceback" not in capsys.readouterr().err
