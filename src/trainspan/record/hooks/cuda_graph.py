"""Replays of CUDA graphs: a phase of their own, and the end of a step where the graph was captured around one.

A graph that holds a whole step calls no hook when it is replayed: forward, backward and optimizer are one launch. It
is known by the optimizer's step that ended while it was captured; each replay of it ends a step of training. A replay
inside another phase (a compiled forward, `make_graphed_callables`) belongs to that phase. Cost: 0.8 µs a replay.
"""

import functools
import weakref
from collections.abc import Callable, Iterable
from typing import Any

from trainspan.names import Phase
from trainspan.record.captures import Captures
from trainspan.record.marker import Marker
from trainspan.record.patches import Patches

_GRAPH_REPLAY = int(Phase.GRAPH_REPLAY)


def install(
    marker: Marker, patches: Patches, graph: type, step_ends: Iterable[Callable[[], None]], captures: Captures
) -> None:
    """Mark every replay, and note every capture.

    Args:
        marker: where the marks go.
        patches: remembers the originals.
        graph: the class, `torch.cuda.CUDAGraph`.
        step_ends: each is called after every step of training.
        captures: told when one begins and ends.

    Raises:
        KeyError: this torch has no such method in Python; replays then show as `other`.
    """
    holders: weakref.WeakSet[Any] = weakref.WeakSet()
    patches.replace(graph, "replay", _marked(vars(graph)["replay"], marker, holders, step_ends))
    begin, end = vars(graph)["capture_begin"], vars(graph)["capture_end"]
    steps_before = 0

    def capture_begin(self: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal steps_before
        steps_before = marker.steps()
        holders.discard(self)  # it may have been captured before, around something else
        captures.begin(self)
        try:
            return begin(self, *args, **kwargs)
        except BaseException:
            captures.end(self)
            raise

    def capture_end(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            result = end(self, *args, **kwargs)
        finally:
            captures.end(self)
        if marker.mine() and marker.steps() > steps_before:
            holders.add(self)
        return result

    patches.replace(graph, "capture_begin", functools.update_wrapper(capture_begin, begin))
    patches.replace(graph, "capture_end", functools.update_wrapper(capture_end, end))


def _marked(
    call: Callable[[Any], Any], marker: Marker, holders: "weakref.WeakSet[Any]", step_ends: Iterable[Callable[[], None]]
) -> Callable[[Any], Any]:
    enter, resume, step, abort = marker.enter, marker.resume, marker.step, marker.abort

    def replay(self: Any) -> Any:
        outer = enter(_GRAPH_REPLAY)
        if outer < 0:
            return call(self)
        ended = False
        try:
            result = call(self)
            if self in holders:
                ended = step(outer)
            else:
                resume(outer)
        except BaseException:
            abort(outer)
            raise
        if ended:
            for end in step_ends:
                end()
        return result

    return functools.update_wrapper(replay, call)
