"""Puts the hooks into torch once it has been imported, and opens the recording when the process is going to train."""

import os
import sys
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from threading import get_ident
from time import monotonic_ns
from types import ModuleType
from typing import Any, TypeAlias

from trainspan import settings
from trainspan.guard import warn_once
from trainspan.identity import is_launched, trace_id_of
from trainspan.record import frameworks, launched, step_hooks, untraced
from trainspan.record.marker import make_marker
from trainspan.record.patches import Patches
from trainspan.record.recorder import Recorder
from trainspan.role import Role
from trainspan.sampling import Sampling, sampling_from
from trainspan.watch import watch

_HOOKS = "trainspan.record.hooks"


def enabled_recorder(role: str) -> Recorder | None:
    """A recorder of this process; None where the switch has a value that is not understood."""
    # What is wrong with the settings has been said by the process that spawned this one: dozens of workers need not.
    recorder = make_recorder(aloud=role != Role.SPAWNED)
    return recorder if recorder.settings.enabled else None


def torch_imported(recorder: Recorder, role: str, started_ns: int) -> None:
    """Called by the start-up hook when `import torch` has ended; `started_ns` is when it began."""
    place_hooks(recorder)
    recorder.event("import", module="torch", start_ns=started_ns, end_ns=monotonic_ns())
    # A launched rank is recorded from here on, so that a death before the first step is seen too. Any other process
    # may import torch and never train: it is recorded once it makes an optimizer.
    if role == Role.RANK and is_launched(os.environ):
        recorder.begin()


def make_recorder(*, aloud: bool = True) -> Recorder:
    """A recorder of this process with the settings of its environment; `aloud`: say once what is wrong with those."""
    values, problems = settings.load(os.environ)
    for problem in problems if aloud else ():
        warn_once(problem.variable, str(problem))
    return Recorder(make_marker(get_ident), values)


def place_hooks(recorder: Recorder) -> Patches:
    """Put every hook that this torch admits into torch; undoing the patches takes them out again.

    A hook that does not fit warns once and is left out.
    """
    patches = Patches()
    _install_hook("FLOPs", partial(frameworks.count_flops, recorder))
    for name, place in _PLACES.items():
        _install_hook(name, partial(_place, place, name, recorder, patches))
    _install_hook("torch.monitor", partial(_place_monitor, recorder, patches))
    frameworks.watch_frameworks(recorder, patches)
    launched.install(sys.modules["multiprocessing.process"].BaseProcess, patches, recorder.note_fatal)
    untraced.install(watch)
    return patches


def _install_hook(name: str, place: Callable[[], Any]) -> None:
    try:
        place()
    except Exception as error:
        # Private names of torch may be gone in another version: one phase is lost, not the recording.
        warn_once(
            f"hook.{name}", f"no {name} hook in this torch ({type(error).__name__}: {error}); it shows as `other`"
        )


def _place(place: "_Placing", name: str, recorder: Recorder, patches: Patches) -> None:
    place(_hook(name), recorder, patches)


def _hook(name: str) -> ModuleType:
    """The module of one hook, imported now: it imports torch, which must be there first."""
    return import_module(f"{_HOOKS}.{name}")


def _place_dataloader(hook: ModuleType, recorder: Recorder, patches: Patches) -> None:
    hook.install(recorder.marker, patches, recorder.first_batch)


def _place_backward(hook: ModuleType, recorder: Recorder, patches: Patches) -> None:
    hook.install(recorder.marker, patches, recorder.adopt)
    watch.add(
        hook.MEGATRON_MODULE,
        lambda module, _: _install_hook(
            "backward of Megatron", lambda: hook.install_megatron(module, recorder.marker, patches)
        ),
    )


def _place_optimizer(hook: ModuleType, recorder: Recorder, patches: Patches) -> None:
    step_ends = recorder.step_ends
    searches: list[Any] = []

    def place_forward() -> None:
        search = _hook("forward").install(recorder.marker, patches)
        searches.append(search)
        recorder.on_begin(search.begin)
        if recorder.recording:
            search.begin()
        step_ends.append(search.step_ended)
        recorder.first_batch.append(search.fetched)

    def made(optimizer: Any) -> None:
        for search in searches:
            search.made(optimizer)

    _install_hook("forward", place_forward)
    stepping = recorder.stepping = hook.install(recorder.marker, patches, recorder.claim, step_ends, made)
    step_hooks.place(recorder, patches, stepping, searches[0] if searches else None, step_ends, _install_hook)
    _install_hook("cuda_graph", partial(_place_cuda_graph, recorder, patches, step_ends))
    _install_hook("device", partial(_await_device, recorder, step_ends))


def _place_cuda_graph(recorder: Recorder, patches: Patches, step_ends: list[Callable[[], None]]) -> None:
    graph = sys.modules["torch"].cuda.CUDAGraph
    _hook("cuda_graph").install(recorder.marker, patches, graph, step_ends, recorder.captures)


def _await_device(recorder: Recorder, step_ends: list[Callable[[], None]]) -> None:
    """Watch the device once the script uses one: torch keeps such calls until then, and a CPU's steps cost nothing."""

    def place_device() -> None:
        used = _hook("used_device").used_device(recorder.stepping.lead)
        _install_hook("device identity", partial(place_identity, used))
        _install_hook("device_events", partial(place_events, used))
        _install_hook("allocator", partial(place_allocator, used))

    def place_identity(used: Callable[[], int | None]) -> None:
        step_ends.append(_hook("device").install(os.environ, recorder.event, used))

    def place_events(used: Callable[[], int | None]) -> None:
        events = _hook("device_events")
        takes = timed_steps(recorder, os.environ)
        if takes is not None:
            share = recorder.settings.device_share
            recorder.event("device_events", from_step=recorder.marker.steps() + 1, share=share)
            device = events.cuda(used, recorder.captures.under_way)
            steps = events.DeviceSteps(recorder.marker, device, takes, recorder.event)
            step_ends.append(steps.step_ended)
            recorder.on_closing(steps.close)

    def place_allocator(used: Callable[[], int | None]) -> None:
        step_ends.append(_hook("allocator").install(recorder.marker, recorder.event, used))

    sys.modules["torch"].cuda._lazy_call(place_device)


def timed_steps(recorder: Recorder, environ: Mapping[str, str]) -> Callable[[int], bool] | None:
    """Whether the step of a number is timed on the device; None: no step is."""
    share = recorder.settings.device_share
    sampling = sampling_from(environ)[0] if share is None else Sampling("traceidratio", share)
    if sampling.off or share == 0:
        return None

    def takes(number: int) -> bool:
        identity = recorder.identity
        if identity is None:
            return False
        trace_id = trace_id_of(identity.run, identity.attempt, "step", number)
        return sampling.reason_for_step(number, trace_id) is not None

    return takes


def _place_grad_clip(hook: ModuleType, recorder: Recorder, patches: Patches) -> None:
    hook.install(recorder.marker, patches)
    watch.add(
        hook.FSDP1_MODULE,
        lambda module, _: _install_hook(
            "grad_clip of FSDP1", lambda: hook.install_fsdp1(module, recorder.marker, patches)
        ),
    )
    for name in hook.FRAMEWORKS:
        watch.add(
            name,
            lambda module, _: _install_hook(
                f"grad_clip of {module.__name__}", lambda: hook.install_framework(module, recorder.marker, patches)
            ),
        )


def _place_checkpoint(hook: ModuleType, recorder: Recorder, patches: Patches) -> None:
    notes = recorder.notes
    hook.install(recorder.marker, patches, notes)

    def place_later(name: str, module: str, install: Callable[..., None]) -> None:
        watch.add(
            module,
            lambda package, _: _install_hook(name, lambda: install(package, recorder.marker, patches, notes)),
        )

    place_later("distributed checkpoint", hook.DISTRIBUTED_MODULE, hook.install_distributed)
    place_later("safetensors", hook.SAFETENSORS_MODULE, hook.install_safetensors)


_Placing: TypeAlias = Callable[[ModuleType, Recorder, Patches], None]


def _place_monitor(recorder: Recorder, patches: Patches) -> None:
    bridge = import_module("trainspan.record.bridges.torch_monitor")
    bridge.install(recorder.marker, patches, recorder.event, lambda: recorder.recording)


_PLACES: dict[str, _Placing] = {
    "dataloader": _place_dataloader,
    "backward": _place_backward,
    "grad_clip": _place_grad_clip,
    "optimizer": _place_optimizer,
    "checkpoint": _place_checkpoint,
}
