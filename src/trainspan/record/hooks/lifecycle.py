"""What a rank does before its first step: process group, model, wrapping, optimizer, first loader; each a span.

    training.init.process_group  `init_process_group`
    training.init.model          from the first `nn.Module.__init__` to the last one, `apply` or move that follows soon
    training.init.wrap           DistributedDataParallel, FSDP1 and FSDP2, and what frameworks have in their place
    training.init.optimizer      `Optimizer.__init__`
    training.init.data_loader    making the first iterator, which starts its workers

A module's `__init__` cannot be seen to return, only what is called in it: the filling of its very last layer is missing
unless the model is moved or wrapped after it. Nothing is noted once a forward has been seen.

Cost: 0.3 µs a module made, 0.1 µs after the first step.
"""

import functools
import inspect
import os
import sys
import weakref
from collections.abc import Callable, Mapping
from functools import partial
from time import monotonic_ns
from types import ModuleType
from typing import Any, Final

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import Optimizer
from torch.utils.data import DataLoader

from trainspan import names
from trainspan.guard import warn_once
from trainspan.identity import World, place_of_world
from trainspan.names import Phase
from trainspan.record.marker import Marker
from trainspan.record.patches import Patches
from trainspan.record.spans import SpanTeller
from trainspan.record.traced import compiler, is_traced

FSDP_MODULE: Final = "torch.distributed.fsdp"
PIPELINE_MODULE: Final = "torch.distributed.pipelining.schedules"
FRAMEWORKS: Final = {
    "deepspeed": ("DeepSpeedEngine", "deepspeed"),
    "megatron.core.distributed": ("DistributedDataParallel", "megatron"),
}
"""Modules of frameworks, the class that they wrap a model in, and what that is called as a strategy."""

APART_NS: Final = 2_000_000_000
"""Calls with a longer pause between them are told apart."""

LEAST_MODEL_NS: Final = 100_000
"""A module that took less is no model: a loss, an averaged metric."""

MOST_STRETCHES: Final = 16
"""Of each name."""

_PIPELINE_SETUPS: Final = (
    ("PipelineScheduleSingle", "_initialize_stage"),
    ("PipelineScheduleMulti", "_initialize_stages"),
)
_COLLECTIVE: Final = int(Phase.COLLECTIVE)
_FSDP2_OWNERS: Final = ("torch.distributed.fsdp", "torch.distributed.fsdp._fully_shard")
_GROUP_OWNERS: Final = ("torch.distributed", "torch.distributed.distributed_c10d", "torch.distributed.device_mesh")


class Stretch:
    """Calls that follow each other closely, told as one span.

    Args:
        name: of the span; `state`: what its time is charged to.
        spans: tells of it.
        least_ns: what took less is not told.
    """

    def __init__(self, name: str, state: str | None, spans: SpanTeller, least_ns: int = 0):
        self._name = name
        self._state = state
        self._spans = spans
        self._least_ns = least_ns
        self._first_ns: int | None = None
        self._last_ns = 0
        self._attributes: dict[str, Any] = {}
        self._told = 0

    def note(self, start_ns: int, end_ns: int, attributes: dict[str, Any] | None = None) -> None:
        """One call that has ended; if the script tells of it itself, it is a part of that."""
        if self._spans.said[self._name]:
            return
        if self._first_ns is not None and start_ns - self._last_ns > APART_NS:
            self.flush()
        self._first_ns = start_ns if self._first_ns is None else min(self._first_ns, start_ns)
        self._last_ns = max(self._last_ns, end_ns)
        self._attributes.update(attributes or {})

    def flush(self) -> None:
        """Tell of what has been noted."""
        if self._first_ns is None:
            return
        start_ns, attributes = self._first_ns, self._attributes
        self._first_ns, self._attributes = None, {}
        if self._last_ns - start_ns >= self._least_ns and self._told < MOST_STRETCHES:
            self._told += 1
            self._spans.span(self._name, start_ns, self._last_ns, state=self._state, attributes=attributes)


class Lifecycle:
    """What has been seen of the beginning.

    Args:
        spans: tells of it.
        forward_seen: whether a forward has begun; from then on nothing is noted.

    Attributes:
        over: whether the first step has ended.
        wrapping: calls that wrap the model, one inside the other; the modules they make are theirs.
        group, model, wrap, optimizer, data_loader: the stretches.
        strategies: how the model is spread over ranks, as far as it says so: `ddp`, `fsdp1`, `pipeline`, …
        replicas: modules of DistributedDataParallel.
    """

    def __init__(self, spans: SpanTeller, forward_seen: Callable[[], bool]):
        self.over = False
        self.wrapping = 0
        self.group = Stretch(names.SPAN_INIT_PROCESS_GROUP, None, spans)
        self.model = Stretch(names.SPAN_INIT_MODEL, "model_init", spans, LEAST_MODEL_NS)
        self.wrap = Stretch(names.SPAN_INIT_WRAP, "model_init", spans)
        self.optimizer = Stretch(names.SPAN_INIT_OPTIMIZER, None, spans)
        self.data_loader = Stretch(names.SPAN_INIT_DATA_LOADER, None, spans)
        self.strategies: set[str] = set()
        self.replicas: weakref.WeakSet[Any] = weakref.WeakSet()
        self._forward_seen = forward_seen
        self._loader: weakref.ref[Any] | None = None
        self._on_replica: list[Callable[[], None]] = []

    def on_replica(self, action: Callable[[], None]) -> None:
        """Call `action()` when the first module is wrapped by DistributedDataParallel."""
        self._on_replica.append(action)

    def replicated(self, module: Any) -> None:
        """DistributedDataParallel has wrapped a module: `module`."""
        self.replicas.add(module)
        while self._on_replica:
            self._on_replica.pop()()

    def begins(self) -> bool:
        """Whether this is still the beginning."""
        return not self.over and not self._forward_seen()

    def flush(self) -> None:
        """Tell of everything noted so far."""
        for stretch in (self.group, self.model, self.wrap, self.optimizer, self.data_loader):
            stretch.flush()

    def end(self) -> None:
        """The first step has ended."""
        self.over = True
        self.flush()

    def loader(self) -> Any:
        """The DataLoader that was iterated first; None if there was none, or it is gone."""
        return None if self._loader is None else self._loader()

    def iterated(self, loader: Any, start_ns: int, end_ns: int) -> None:
        """A DataLoader has made an iterator."""
        if self._loader is None:
            self._loader = weakref.ref(loader)
            self.data_loader.note(start_ns, end_ns, {names.DATA_WORKERS: int(loader.num_workers)})


def install(patches: Patches, lifecycle: Lifecycle) -> None:
    """Watch what is made before the first step.

    Raises:
        KeyError: this torch makes it in another way; the span is then missing.
    """
    for name in ("__init__", "apply", "_apply"):
        call = vars(nn.Module)[name]
        patches.replace(nn.Module, name, _noted(call, lifecycle, partial(_note_model, lifecycle)))
    make_replica = _wrapping(vars(DistributedDataParallel)["__init__"], lifecycle, "ddp")

    def replicated(self: Any, *args: Any, **kwargs: Any) -> None:
        make_replica(self, *args, **kwargs)
        lifecycle.replicated(self)

    patches.replace(DistributedDataParallel, "__init__", functools.update_wrapper(replicated, make_replica))

    def made(start_ns: int, end_ns: int) -> None:
        lifecycle.optimizer.note(start_ns, end_ns)
        lifecycle.flush()  # what is told before the first step is charged as what it was

    patches.replace(Optimizer, "__init__", _noted(vars(Optimizer)["__init__"], lifecycle, made))
    _follow_loaders(patches, lifecycle)


def install_process_group(patches: Patches, lifecycle: Lifecycle, join: Callable[[World], None]) -> None:
    """Watch `init_process_group`, by each of its names.

    Args:
        patches: remembers the originals.
        lifecycle: what has been seen of the beginning.
        join: told what this process is one of; it may raise.

    Raises:
        KeyError: this torch has no process groups.
    """
    init = vars(torch.distributed)["init_process_group"]

    def joined(start_ns: int, end_ns: int) -> None:
        backend = torch.distributed.get_backend()
        lifecycle.group.note(start_ns, end_ns, {names.BACKEND: str(backend)})
        lifecycle.group.flush()

    noted = _noted(init, lifecycle, joined)
    parameters = inspect.signature(init)

    def init_group(*args: Any, **kwargs: Any) -> Any:
        result = noted(*args, **kwargs)
        try:
            join(_world_of(parameters.bind(*args, **kwargs).arguments))
        except Exception as error:
            warn_once("process_group", f"this rank is not told from others ({type(error).__name__}: {error})")
        return result

    functools.update_wrapper(init_group, init)
    for owner in (sys.modules[name] for name in _GROUP_OWNERS if name in sys.modules):
        if vars(owner).get("init_process_group") is init:
            patches.replace(owner, "init_process_group", init_group)


def _world_of(arguments: Mapping[str, Any]) -> World:
    """What this process has become one of; torch knows it, and asks nobody."""
    dist = torch.distributed
    return World(dist.get_rank(), dist.get_world_size(), _place_of(arguments))


def _place_of(arguments: Mapping[str, Any]) -> str | None:
    """Where the ranks have met, by the arguments of `init_process_group`."""
    store: Any = arguments.get("store")
    method = arguments.get("init_method")
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    if store is not None:
        return f"{store.host}:{store.port}" if hasattr(store, "port") else getattr(store, "path", None)
    if method is None or method.startswith("env:"):
        return place_of_world(os.environ)
    return str(method).partition("://")[2].partition("?")[0]


def install_fsdp(package: ModuleType, patches: Patches, lifecycle: Lifecycle) -> None:
    """Watch the construction of FSDP1 and FSDP2, of which this torch may have one."""
    fsdp1 = package.FullyShardedDataParallel
    patches.replace(fsdp1, "__init__", _wrapping(vars(fsdp1)["__init__"], lifecycle, "fsdp1"))
    fully_shard = vars(package).get("fully_shard")
    if fully_shard is not None:
        wrapping = _wrapping(fully_shard, lifecycle, "fsdp2")
        for owner in (sys.modules[name] for name in _FSDP2_OWNERS if name in sys.modules):
            if vars(owner).get("fully_shard") is fully_shard:
                patches.replace(owner, "fully_shard", wrapping)


def install_framework(package: ModuleType, patches: Patches, lifecycle: Lifecycle) -> None:
    """Watch the construction of what a framework wraps a model in."""
    name, strategy = FRAMEWORKS[package.__name__]
    kind = getattr(package, name)
    patches.replace(kind, "__init__", _wrapping(vars(kind)["__init__"], lifecycle, strategy))


def install_pipeline(package: ModuleType, marker: Marker, patches: Patches, lifecycle: Lifecycle) -> None:
    """Note that a schedule of a pipeline is made, and keep what it tries out before its first step from being one.

    The stages run a forward, and some a backward, to tell each other the shapes: that is communication, and no
    micro-batch.
    """
    for owner, name in _PIPELINE_SETUPS:
        setup = vars(getattr(package, owner, object)).get(name)
        if setup is not None:
            patches.replace(getattr(package, owner), name, _marked_setup(setup, marker))
    schedule = package._PipelineSchedule
    init = vars(schedule)["__init__"]

    def make_schedule(self: Any, *args: Any, **kwargs: Any) -> None:
        lifecycle.strategies.add("pipeline")
        init(self, *args, **kwargs)

    patches.replace(schedule, "__init__", functools.update_wrapper(make_schedule, init))


def _marked_setup(call: Callable[..., Any], marker: Marker) -> Callable[..., Any]:
    around = marker.around

    def setup(*args: Any, **kwargs: Any) -> Any:
        return around(call, _COLLECTIVE, args, kwargs)

    return functools.update_wrapper(setup, call)


def _note_model(lifecycle: Lifecycle, start_ns: int, end_ns: int) -> None:
    if not lifecycle.wrapping:
        lifecycle.model.note(start_ns, end_ns)


def _wrapping(call: Callable[..., Any], lifecycle: Lifecycle, strategy: str) -> Callable[..., Any]:
    def wrap(*args: Any, **kwargs: Any) -> Any:
        lifecycle.wrapping += 1
        lifecycle.strategies.add(strategy)
        try:
            return call(*args, **kwargs)
        finally:
            lifecycle.wrapping -= 1

    return _noted(functools.update_wrapper(wrap, call), lifecycle, lifecycle.wrap.note)


def _noted(call: Callable[..., Any], lifecycle: Lifecycle, note: Callable[[int, int], None]) -> Callable[..., Any]:
    def noted(*args: Any, **kwargs: Any) -> Any:
        # Asked first: what a compiler sees of us besides, it would guard on, and compile again when it changes.
        if is_traced() or compiler._is_compiling_flag or lifecycle.over or not lifecycle.begins():
            return call(*args, **kwargs)
        start_ns = monotonic_ns()
        result = call(*args, **kwargs)
        try:
            note(start_ns, monotonic_ns())
        except Exception as error:
            warn_once("lifecycle", f"the beginning is not told in full ({type(error).__name__}: {error})")
        return result

    return functools.update_wrapper(noted, call)


def _follow_loaders(patches: Patches, lifecycle: Lifecycle) -> None:
    iterate = vars(DataLoader)["__iter__"]

    def make_iterator(self: Any) -> Any:
        if is_traced() or compiler._is_compiling_flag or lifecycle.over:
            return iterate(self)
        start_ns = monotonic_ns()
        iterator = iterate(self)
        lifecycle.iterated(self, start_ns, monotonic_ns())
        return iterator

    patches.replace(DataLoader, "__iter__", functools.update_wrapper(make_iterator, iterate))
