"""Stable-Baselines3: what it collects from an environment is generation, and its evaluation a validation.

It switches its policy to evaluation for both, so to the hooks of torch both look like a validation. Its callbacks may
evaluate and save in the middle of a collection: that is none meanwhile. A checkpoint of it is one archive, of which
torch sees the parts alone.
Steps, micro-batches and the other phases are seen by the hooks of torch.
"""

import functools
import os
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

from trainspan.names import Phase
from trainspan.record.bridges.channel import Channel, Evaluations
from trainspan.record.hooks.checkpoint import mark_calls
from trainspan.record.marker import Marker
from trainspan.record.patches import Patches

_GENERATION: Final = int(Phase.GENERATION)
_SUFFIX: Final = ".zip"


class _Collection:
    """One that is under way, and may be left for a while."""

    def __init__(self, marker: Marker):
        self._marker = marker
        self.go_on()

    def go_on(self) -> None:
        """From here on the rank collects."""
        self._outer = self._marker.enter(_GENERATION)

    def leave(self, end: Callable[[int], None]) -> None:
        """It does something else, after an exception or not. `end`: `resume` or `abort` of the marker."""
        if self._outer >= 0:
            end(self._outer)


_under_way: Final[list[_Collection]] = []
"""The methods are in several modules, which are followed one by one."""


def install(module: ModuleType, patches: Patches, channel: Channel) -> None:
    """Follow what one module of Stable-Baselines3 has.

    Raises:
        AttributeError, KeyError: this version has it elsewhere.
    """
    owner, marks = _MARKS[module.__name__.rpartition(".")[2]]
    place: Any = getattr(module, owner) if owner else module
    marked = {name: mark(vars(place)[name], channel) for name, mark in marks.items()}
    for name, function in marked.items():
        patches.replace(place, name, function)


def _collecting(call: Callable[..., Any], channel: Channel) -> Callable[..., Any]:
    marker = channel.marker

    def collect_rollouts(*args: Any, **kwargs: Any) -> Any:
        collection = _Collection(marker)
        _under_way.append(collection)
        try:
            result = call(*args, **kwargs)
        except BaseException:
            collection.leave(marker.abort)
            raise
        finally:
            _under_way.remove(collection)
        collection.leave(marker.resume)
        return result

    return functools.update_wrapper(collect_rollouts, call)


def _apart(call: Callable[..., Any], channel: Channel) -> Callable[..., Any]:
    """`call`, which is no part of a collection that is under way."""

    def called_apart(*args: Any, **kwargs: Any) -> Any:
        collection = next(iter(_under_way[-1:]), None)
        if collection is None:
            return call(*args, **kwargs)
        collection.leave(channel.marker.resume)
        try:
            return call(*args, **kwargs)
        finally:
            collection.go_on()

    return functools.update_wrapper(called_apart, call)


def _evaluating(call: Callable[..., Any], channel: Channel) -> Callable[..., Any]:
    evaluations = Evaluations(channel.marker)

    def evaluate_policy(*args: Any, **kwargs: Any) -> Any:
        result = call(*args, **kwargs)
        evaluations.batch_ended()
        return result

    return _apart(evaluations.whole(functools.update_wrapper(evaluate_policy, call)), channel)


def _saving(call: Callable[..., Any], channel: Channel) -> Callable[..., Any]:
    return _apart(mark_calls(call, "save", _archive_of, channel.marker, channel.notes), channel)


def _loading(method: Any, channel: Channel) -> Any:
    return classmethod(mark_calls(method.__func__, "load", _archive_of, channel.marker, channel.notes))


def _archive_of(args: Any, kwargs: Any) -> Any:
    """The file of a checkpoint, which gets its suffix where it has none."""
    path = args[1] if len(args) > 1 else kwargs.get("path")
    if not isinstance(path, str | os.PathLike) or os.path.splitext(path)[1]:
        return path
    return os.fspath(path) + _SUFFIX


_MARKS: Final[dict[str, tuple[str | None, dict[str, Callable[[Any, Channel], Any]]]]] = {
    "on_policy_algorithm": ("OnPolicyAlgorithm", {"collect_rollouts": _collecting}),
    "off_policy_algorithm": ("OffPolicyAlgorithm", {"collect_rollouts": _collecting}),
    "base_class": ("BaseAlgorithm", {"save": _saving, "load": _loading}),
    "evaluation": (None, {"evaluate_policy": _evaluating}),
}
"""By the module: the class that has the methods, or none, and how each of them is marked."""
