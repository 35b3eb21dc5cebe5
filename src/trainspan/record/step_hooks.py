"""Places the hooks around a step: gradient scaling, collectives, compilations, and what comes before the first one.

Each of them needs to know when a step ends, and most of them tell what they have seen then.
"""

import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import Any

from trainspan.record.patches import Patches
from trainspan.record.recorder import Recorder
from trainspan.record.spans import SpanTeller
from trainspan.watch import watch

_HOOKS = "trainspan.record.hooks"

StepEnds = list[Callable[[], None]]
InstallHook = Callable[[str, Callable[[], Any]], None]


def place(
    recorder: Recorder,
    patches: Patches,
    stepping: Any,
    search: Any,
    step_ends: StepEnds,
    install_hook: InstallHook,
) -> None:
    """Put these hooks into torch.

    Args:
        recorder: of this process.
        patches: remembers the originals.
        stepping: what the optimizer's hook tells others.
        search: for roots; None: this torch has no forward hook.
        step_ends: called after every step of training; they join.
        install_hook: `install_hook(name, place)` calls `place`, and warns where that fails.
    """
    spans = recorder.spans

    def place_later(name: str, module: str, install: Callable[[ModuleType], Any]) -> None:
        watch.add(module, lambda package, _: install_hook(name, lambda: install(package)))

    def place_amp() -> None:
        _hook("amp").install(recorder.marker, patches, stepping)

    def place_collectives() -> None:
        hook = _hook("collectives")
        calls = hook.Calls(recorder.event, lambda: recorder.recording)
        hook.install(recorder.marker, patches, calls, step_ends)
        recorder.on_begin(calls.begun)
        recorder.on_closing(calls.flush)

    def place_generation() -> None:
        hook = _hook("generation")
        for module, install in (
            (hook.MODULE, hook.install),
            (hook.DIFFUSERS_MODULE, hook.install_diffusers),
            (hook.TORCHRL_MODULE, hook.install_torchrl),
        ):
            place_later("generation", module, partial(install, marker=recorder.marker, patches=patches))

    install_hook("amp", place_amp)
    if _is_distributed():
        install_hook("collectives", place_collectives)
    install_hook("generation", place_generation)
    install_hook(
        "lifecycle", lambda: _place_lifecycle(recorder, patches, spans, stepping, search, step_ends, place_later)
    )


def append_with_first(step_ends: StepEnds, each: Callable[[], None], first: Callable[[], None]) -> None:
    """Have `each()` called at the end of every step, and `first()` after it at the end of the first one alone."""

    def end_first() -> None:
        each()
        first()
        # In its own place: whoever is calling them one by one goes on with the next. A signal's handler that trains
        # here may have done so already.
        if end_first in step_ends:
            step_ends[step_ends.index(end_first)] = each

    step_ends.append(end_first)


def _place_lifecycle(
    recorder: Recorder,
    patches: Patches,
    spans: SpanTeller,
    stepping: Any,
    search: Any,
    step_ends: StepEnds,
    place_later: Callable[[str, str, Callable[[ModuleType], Any]], None],
) -> None:
    hook, compiler = _hook("lifecycle"), _hook("compiler")
    compilations = compiler.Compilations(spans, recorder.event)
    place_later("compiler", compiler.METRICS_MODULE, compilations.follow)
    recorder.on_closing(compilations.step_ended)
    lifecycle = hook.Lifecycle(spans, search.called if search else lambda: False)
    recorder.on_closing(lifecycle.flush)
    tell_facts = _hook("training").install(
        lifecycle,
        stepping.lead,
        search.roots if search else list,
        lambda: search.autocast if search else None,
        lambda: compilations.count > 0,
        recorder.event,
    )
    append_with_first(step_ends, compilations.step_ended, tell_facts)
    reducer = _hook("reducer").install(lifecycle.replicas, recorder.event)
    lifecycle.on_replica(lambda: step_ends.append(reducer))
    hook.install(patches, lifecycle)
    if _is_distributed():
        hook.install_process_group(patches, lifecycle, recorder.join)
    place_later("lifecycle of FSDP", hook.FSDP_MODULE, lambda package: hook.install_fsdp(package, patches, lifecycle))
    for name in hook.FRAMEWORKS:
        place_later(f"lifecycle of {name}", name, lambda package: hook.install_framework(package, patches, lifecycle))
    place_later(
        "lifecycle of pipelines",
        hook.PIPELINE_MODULE,
        lambda package: hook.install_pipeline(package, recorder.marker, patches, lifecycle),
    )


def _is_distributed() -> bool:
    """Whether this torch was built with process groups."""
    return bool(sys.modules["torch"].distributed.is_available())


def _hook(name: str) -> ModuleType:
    return import_module(f"{_HOOKS}.{name}")
