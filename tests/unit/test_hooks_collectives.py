"""Collectives from Python, on a process group of one: what is marked, what is only counted."""

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import ProcessGroup

from tests.unit import process_groups
from tests.unit.tapes import Tape, recording_marker
from trainspan.names import Phase
from trainspan.record.hooks import collectives as hook
from trainspan.record.marker import Marker
from trainspan.record.patches import Patches
from trainspan.recording.layout import SAME_CALL
from trainspan.relay.timeline.collectives import Collectives

CALL = ["enter collective", "resume other"]

MOVES_TENSORS = re.compile(r"reduce|gather|scatter|broadcast|all_?to_?all|barrier|^(send|recv)")


class Watched(NamedTuple):
    """The marker, its tape, what was told, and what ends a step."""

    marker: Marker
    tape: Tape
    told: list[dict[str, Any]]
    calls: hook.Calls
    step_ends: list[Any]

    def counted(self) -> dict[tuple[str, int], int]:
        """How many calls, by operation and size, as the relay reads it."""
        self.calls.flush()
        collectives, counts = Collectives(), dict[tuple[str, int], int]()
        for event in self.told:
            for calls in collectives.take(event):
                key = calls.kind.op, calls.kind.size_bytes
                counts[key] = counts.get(key, 0) + calls.more
        return counts

    def marked(self) -> list[tuple[str, int | None, bool]]:
        """Operation and number of each mark of a collective, and whether one call launches and waits."""
        collectives = Collectives()
        for event in self.told:
            collectives.take(event)
        marks = [mark for mark in self.tape.slots() if mark and (mark.kind, mark.phase) == ("enter", Phase.COLLECTIVE)]
        calls = [collectives.call(mark.operand) for mark in marks]
        same = [bool(mark.operand & SAME_CALL) for mark in marks]
        return [(call.kind.op, call.sequence, flag) for call, flag in zip(calls, same, strict=True)]


@pytest.fixture(scope="module", autouse=True)
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A process group of one on gloo."""
    with process_groups.alone(tmp_path_factory.mktemp("store")):
        yield


@pytest.fixture
def watched() -> Iterator[Watched]:
    """The process group with the hook in it."""
    marker, tape = recording_marker()
    told: list[dict[str, Any]] = []
    step_ends: list[Any] = []
    patches = Patches()
    calls = hook.Calls(lambda name, **fields: told.append({"event": name, **fields}), lambda: True)
    hook.install(marker, patches, calls, step_ends)
    yield Watched(marker, tape, told, calls, step_ends)
    patches.undo()


def test_a_call_is_marked_where_it_is_launched_and_where_it_is_waited_for(watched: Watched) -> None:
    """On gloo the wait is nearly all of it; the two belong to one call."""
    tensor = torch.ones(1000)

    dist.all_reduce(tensor)

    assert watched.tape.written() == CALL * 2
    assert watched.marked() == [("all_reduce", 0, False), ("wait", None, True)]
    assert watched.counted() == {("all_reduce", 4000): 1}


def test_an_asynchronous_call_is_waited_for_by_name(watched: Watched) -> None:
    """Between the two the script computes: that is no time of the collective."""
    work = dist.all_reduce(torch.ones(10), async_op=True)
    watched.marker.resume(watched.marker.enter(Phase.FORWARD))
    work.wait()

    assert watched.tape.written() == [*CALL, "enter forward", "resume other", *CALL]
    assert watched.marked() == [("all_reduce", 0, False), ("wait", None, False)]


def test_calls_inside_a_phase_are_counted_without_a_mark(watched: Watched) -> None:
    """FSDP gathers in forward: phases are exclusive, and what was sent is asked for all the same."""
    outer = watched.marker.enter(Phase.FORWARD)
    dist.barrier()
    dist.all_gather([torch.empty(4)], torch.ones(4))
    watched.marker.resume(outer)

    assert watched.tape.written() == ["enter forward", "resume other"]
    assert watched.counted() == {("barrier", 0): 1, ("all_gather", 16): 1}


@pytest.mark.parametrize(
    ("call", "op", "size"),
    [
        (lambda: dist.broadcast(torch.ones(8), 0), "broadcast", 32),
        (lambda: dist.reduce(torch.ones(8), 0), "reduce", 32),
        (lambda: dist.gather(torch.ones(8), [torch.empty(8)], 0), "gather", 32),
        (lambda: dist.scatter(torch.empty(8), [torch.ones(8)], 0), "scatter", 32),
        (lambda: dist.all_to_all_single(torch.empty(8), torch.ones(8)), "all_to_all", 32),
        (lambda: dist.all_gather_object([None], {"a": 1}), "all_gather", None),
        (lambda: dist.broadcast_object_list([{"a": 1}], 0), "broadcast", None),
    ],
)
def test_every_operation_is_known_by_its_name(watched: Watched, call: Any, op: str, size: int | None) -> None:
    """The methods of the process group have names that no user has ever called."""
    call()

    counted = watched.counted()

    assert {name for name, _ in counted} == {op}
    assert size is None or set(counted) == {(op, size)}


def test_no_method_that_moves_tensors_is_left_out() -> None:
    """torch adds some under new names, as 2.13 and 2.15 did; without a word of it their time would show as other."""
    methods = {name for name in vars(ProcessGroup) if MOVES_TENSORS.search(name) and not name.startswith("__")}

    assert methods <= set(hook.OPERATIONS)
    assert "allreduce" in methods


class CalledInPython(Exception):
    """What the one method of the group below answers, which C++ does not."""


class OwnGroup(ProcessGroup):
    """A process group in Python, of a backend in C++. Of its methods it has one; torch does not know it."""

    def __init__(self) -> None:
        # Without a store, as torch's own groups in Python are made, and as its stubs do not have it.
        make: Any = super().__init__
        make(0, 1)
        backend = dist.ProcessGroupGloo(dist.HashStore(), 0, 1)
        self._register_backend(torch.device("cpu"), ProcessGroup.BackendType.GLOO, backend)

    def broadcast(self, *args: Any) -> Any:
        raise CalledInPython(args)


def test_a_group_in_python_has_the_methods_that_it_does_not_have_itself(
    watched: Watched, capsys: pytest.CaptureFixture[str]
) -> None:
    """C++ asks a subclass for a method in Python before it takes its own, and would find ours, which asks C++."""
    group, tensor = OwnGroup(), torch.ones(2)
    process_groups.keep(group)

    for _ in range(2):
        group.allreduce([tensor]).wait()
        group.allgather([[torch.empty(2)]], [tensor]).wait()
    with pytest.raises(CalledInPython):
        group.broadcast([tensor])

    assert [call[:2] for call in watched.marked() if call[0] != "wait"] == [
        *(("all_reduce", 0), ("all_gather", 1)),
        *(("all_reduce", 2), ("all_gather", 3)),
    ]
    assert watched.counted() == {("all_reduce", 8): 2, ("all_gather", 8): 2}
    assert capsys.readouterr().err == ""


def test_numbers_count_the_calls_of_a_group(watched: Watched) -> None:
    """Two ranks find each other's span by them; those without a mark count too."""
    tensor = torch.ones(2)

    dist.all_reduce(tensor)
    outer = watched.marker.enter(Phase.FORWARD)
    dist.all_reduce(tensor)
    watched.marker.resume(outer)
    dist.all_reduce(tensor)

    assert [number for _, number, waits in watched.marked() if not waits] == [0, 2]


def test_failure_is_the_users(watched: Watched) -> None:
    """What gloo refuses, the script must hear of; the phase ends with it."""
    group = dist.group.WORLD

    with pytest.raises(TypeError):
        group.allreduce("no tensor")

    assert watched.tape.written() == ["enter collective", "abort other"]


def test_kinds_are_bounded_and_nothing_is_lost_from_the_count(watched: Watched) -> None:
    """Sizes that differ from step to step, as of experts, must not fill the event log."""
    for size in range(1, 2 * hook.MOST_KINDS):
        watched.calls.operand("all_to_all", dist.group.WORLD, (torch.empty(size, device="meta"),))

    counted = watched.counted()

    assert len(counted) < hook.MOST_KINDS
    assert sum(counted.values()) == 2 * hook.MOST_KINDS - 1
    assert max(size for _, size in counted) == 4096


def test_counts_are_told_at_a_step_end_once_in_a_while(watched: Watched) -> None:
    """An event for each collective would fill the log in minutes."""
    dist.barrier()
    [step_ended] = watched.step_ends
    for _ in range(100):
        step_ended()
        dist.barrier()

    events = [event for event in watched.told if event["event"] == "collectives"]

    assert events == [{"event": "collectives", "counts": [[1, 1]]}]


def test_steps_without_a_collective_cost_nothing(watched: Watched) -> None:
    """A rank alone calls none, and pays for each that looks at the end of its steps."""
    before = list(watched.step_ends)

    dist.barrier()
    dist.barrier()

    assert (len(before), len(watched.step_ends)) == (0, 1)


def test_a_new_recording_is_told_everything(watched: Watched) -> None:
    """A forked child that trains makes a recording of its own, and the parent's kinds are in its marks."""
    dist.barrier()
    watched.told.clear()

    watched.calls.begun()

    assert [event["event"] for event in watched.told] == ["collective_group", "collective_kind"]
    assert watched.counted() == {("barrier", 0): 1}


def test_the_process_group_is_as_it_was_afterwards(watched: Watched) -> None:
    """A method put back without its binding breaks every collective that comes later."""
    patches = Patches()
    before = vars(ProcessGroup)["allreduce"]
    hook.install(watched.marker, patches, watched.calls, [])

    patches.undo()

    assert vars(ProcessGroup)["allreduce"] is before
