"""Replays of a graph, on a class that behaves as torch.cuda.CUDAGraph does."""

from collections.abc import Callable, Iterator
from threading import Thread
from typing import NamedTuple

import pytest

from tests.unit.tapes import Tape, recording_marker
from trainspan.names import Phase
from trainspan.record.captures import Captures
from trainspan.record.hooks import cuda_graph as hook
from trainspan.record.marker import Marker
from trainspan.record.patches import Patches


class Graph:
    """As torch.cuda.CUDAGraph. What is captured runs at once here, and nothing when it is replayed."""

    refuses = False

    def capture_begin(self, pool: object = None) -> None:
        if self.refuses:
            raise RuntimeError("operation not permitted when stream is capturing")
        self.pool = pool

    def capture_end(self) -> None:
        self.captured = True

    def replay(self) -> None:
        if not hasattr(self, "captured"):
            raise RuntimeError("replay of a graph that was never captured")


class Watched(NamedTuple):
    """The marker, its tape, the steps after which the end of a step was told, and the captures under way."""

    marker: Marker
    tape: Tape
    ended: list[int]
    captures: Captures


@pytest.fixture
def watched() -> Iterator[Watched]:
    """The hook in the class."""
    marker, tape = recording_marker()
    ended: list[int] = []
    patches = Patches()
    captures = Captures()
    hook.install(marker, patches, Graph, [lambda: ended.append(marker.steps())], captures)
    yield Watched(marker, tape, ended, captures)
    patches.undo()


def captured(work: Callable[[], object]) -> Graph:
    """A graph of `work`."""
    graph = Graph()
    graph.capture_begin()
    work()
    graph.capture_end()
    return graph


def test_replay_is_a_phase(watched: Watched) -> None:
    """It would show as the script's own code."""
    graph = captured(lambda: None)

    graph.replay()

    assert watched.tape.written() == ["enter graph_replay", "resume other"]


def test_replay_of_a_whole_step_ends_a_step(watched: Watched) -> None:
    """No hook of the optimizer is called: a job that replays its steps would seem to hang."""
    graph = captured(lambda: watched.marker.step(watched.marker.enter(Phase.OPTIMIZER)))

    graph.replay()
    graph.replay()

    assert watched.tape.written()[2:] == [
        "enter graph_replay",
        "step other 1",
        "enter graph_replay",
        "step other 2",
    ]
    assert watched.ended == [2, 3]


def test_replay_inside_a_forward_is_that_forward(watched: Watched) -> None:
    """torch.compile replays graphs wherever it likes."""
    graph = captured(lambda: None)

    outer = watched.marker.enter(Phase.FORWARD)
    graph.replay()
    watched.marker.resume(outer)

    assert watched.tape.written() == ["enter forward", "resume other"]


def test_failed_replay_is_marked_and_passes_through(watched: Watched) -> None:
    """The error is the script's."""
    with pytest.raises(RuntimeError, match="never captured"):
        Graph().replay()

    assert watched.tape.written() == ["enter graph_replay", "abort other"]


def test_a_graph_captured_anew_is_what_it_holds_now(watched: Watched) -> None:
    """Who resets a graph that held a step and captures an evaluation with it takes no more steps by its replays."""
    graph = captured(lambda: watched.marker.step(watched.marker.enter(Phase.OPTIMIZER)))
    graph.capture_begin()
    graph.capture_end()

    graph.replay()

    assert watched.ended == []


def test_a_capture_is_known_while_it_is_under_way(watched: Watched) -> None:
    """Other threads must ask the device for nothing then, and their own stream does not tell them."""
    seen = []
    captured(lambda: seen.append(watched.captures.under_way()))

    assert (seen, watched.captures.under_way()) == ([True], False)


def test_a_capture_that_fails_or_is_dropped_is_not_under_way(watched: Watched) -> None:
    """A script that goes on without graphs would get no device times any more."""
    refused = Graph()
    refused.refuses = True
    with pytest.raises(RuntimeError, match="not permitted"):
        refused.capture_begin()
    after_refusal = watched.captures.under_way()

    dropped = Graph()
    dropped.capture_begin()
    during = watched.captures.under_way()
    del dropped

    assert (after_refusal, during, watched.captures.under_way()) == (False, True, False)


def test_a_capture_of_another_thread_holds_no_step_of_this_one(watched: Watched) -> None:
    """A thread that captures an evaluation while training goes on has captured no step of it."""
    graph = Graph()
    thread = Thread(target=graph.capture_begin)
    thread.start()
    thread.join()
    watched.marker.step(watched.marker.enter(Phase.OPTIMIZER))
    thread = Thread(target=graph.capture_end)
    thread.start()
    thread.join()

    graph.replay()

    assert watched.ended == []
    assert watched.marker.steps() == 1
