"""torchmetrics: what `forward` and `compute` of a metric return, as scalars of the rank that has called them.

    <class>        what `compute()` has returned: over all ranks, where torchmetrics itself has asked them
    <class>_step   what `forward()` has returned for a batch: the rank's own, unless the metric has `dist_sync_on_step`

The second metric of a class is `<class>-2`. What a `MetricCollection` returns has the names that it gives, with its
prefix. Of a result with several values, those of a dictionary are told, and what is no single number is not.

Nothing is computed or asked of another rank that the script does not, and a tensor on a device is not waited for. Cost:
1 µs a call, and what logging a number costs.
"""

import functools
import weakref
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any, Final

import torch

from trainspan.guard import warn_once
from trainspan.record.bridges.channel import Channel
from trainspan.record.patches import Patches
from trainspan.record.traced import compiler, is_traced

_LIGHTNING: Final = ("lightning", "pytorch_lightning", "lightning_fabric")
"""Keeps what a module logs in metrics of its own; that is told by the name under which it was logged."""

_STEP: Final = "_step"


class Names:
    """What each metric is called, by its class and the order in which they are met."""

    def __init__(self) -> None:
        # By identity: a metric's hash changes with its state, and `==` makes another metric.
        self._known: dict[int, tuple[weakref.ref[Any], str]] = {}
        self._met: dict[str, int] = {}

    def of(self, metric: Any) -> str:
        """The name of a metric."""
        known = self._known.get(id(metric))
        if known is not None and known[0]() is metric:
            return known[1]
        kind = type(metric).__name__
        number = self._met[kind] = self._met.get(kind, 0) + 1
        name = kind if number == 1 else f"{kind}-{number}"
        key = id(metric)
        self._known[key] = weakref.ref(metric, lambda _: self._known.pop(key, None)), name
        return name


class _Watcher:
    """Calls what is wrapped, and logs what the outermost of such calls returns."""

    def __init__(self, channel: Channel):
        self._mine = channel.marker.mine
        self._log = channel.scalars.log
        self._inside = False

    def call(
        self, names_of: Callable[[Any], Mapping[str, Any]], call: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        """What `call` returns; `names_of(result)` is what of it is logged."""
        if is_traced() or compiler._is_compiling_flag or self._inside or not self._mine():
            return call(*args, **kwargs)
        self._inside = True
        try:
            result = call(*args, **kwargs)
        finally:
            self._inside = False
        try:
            self._log(names_of(result))
        except Exception as error:
            warn_once("torchmetrics", f"a metric is not taken over: {type(error).__name__}: {error}")
        return result


_watchers: weakref.WeakKeyDictionary[Patches, tuple[_Watcher, Names]] = weakref.WeakKeyDictionary()


def install(module: ModuleType, patches: Patches, channel: Channel) -> None:
    """Listen to what the class in this module returns: `Metric`, or `MetricCollection`.

    Raises:
        AttributeError, KeyError: this version has no such class.
    """
    watcher, names = _watchers.setdefault(patches, (_Watcher(channel), Names()))
    if module.__name__.endswith(".collections"):
        _follow_collections(module.MetricCollection, patches, watcher)
    else:
        _follow_metrics(module.Metric, patches, watcher, names)


def _follow_metrics(metric: Any, patches: Patches, watcher: _Watcher, names: Names) -> None:
    forward, wrap_compute = vars(metric)["forward"], vars(metric)["_wrap_compute"]

    def forward_watched(self: Any, *args: Any, **kwargs: Any) -> Any:
        def found(result: Any) -> dict[str, Any]:
            return dict(_named(names.of(self), result, _STEP))

        return watcher.call(found, forward, self, *args, **kwargs)

    def wrap_compute_watched(self: Any, compute: Callable[..., Any]) -> Any:
        # Every metric gets its own `compute` when it is made or unpickled; around that torchmetrics syncs it.
        wrapped = wrap_compute(self, compute)
        if type(self).__module__.partition(".")[0] in _LIGHTNING:
            return wrapped

        def found(result: Any) -> dict[str, Any]:
            return dict(_named(names.of(self), result, ""))

        def compute_watched(*args: Any, **kwargs: Any) -> Any:
            return watcher.call(found, wrapped, *args, **kwargs)

        return functools.update_wrapper(compute_watched, wrapped)

    patches.replace(metric, "forward", functools.update_wrapper(forward_watched, forward))
    patches.replace(metric, "_wrap_compute", functools.update_wrapper(wrap_compute_watched, wrap_compute))


def _follow_collections(collection: Any, patches: Patches, watcher: _Watcher) -> None:
    for name, suffix in (("forward", _STEP), ("compute", "")):
        patches.replace(collection, name, _of_collection(vars(collection)[name], suffix, watcher))


def _of_collection(call: Callable[..., Any], suffix: str, watcher: _Watcher) -> Callable[..., Any]:
    def found(result: Any) -> dict[str, Any]:
        return {f"{name}{suffix}": value for name, value in result.items() if _is_number(value)}

    def watched(self: Any, *args: Any, **kwargs: Any) -> Any:
        return watcher.call(found, call, self, *args, **kwargs)

    return functools.update_wrapper(watched, call)


def _named(name: str, result: Any, suffix: str) -> Iterator[tuple[str, Any]]:
    """What of a result is a number, by name."""
    if isinstance(result, Mapping):
        for key, value in result.items():
            yield from _named(f"{name}.{key}", value, suffix)
    elif _is_number(result):
        yield f"{name}{suffix}", result


def _is_number(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.numel() == 1
    return isinstance(value, int | float) and not isinstance(value, bool)
