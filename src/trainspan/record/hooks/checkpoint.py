"""Checkpoints: what the training thread spends in `torch.save`, `torch.load`, safetensors and DCP.

DCP is `torch.distributed.checkpoint`.

The phases say when the rank was held up; the event `checkpoint` says what came of it (`record/checkpoints.py`).
Cost: 0.7 µs a call, with its event 20 µs.
"""

import functools
from collections.abc import Callable
from time import monotonic_ns
from types import ModuleType
from typing import Any, Final

import torch
from torch import serialization

from trainspan.guard import warn_once
from trainspan.names import Phase
from trainspan.record.checkpoints import Notes
from trainspan.record.marker import NESTED, Marker
from trainspan.record.patches import Patches
from trainspan.record.traced import compiler, is_traced

DISTRIBUTED_MODULE: Final = "torch.distributed.checkpoint"
SAFETENSORS_MODULE: Final = "safetensors.torch"

_PHASES: Final = {"save": int(Phase.CHECKPOINT_SAVE), "load": int(Phase.CHECKPOINT_LOAD)}


def install(marker: Marker, patches: Patches, notes: Notes) -> None:
    """Mark every `torch.save` and `torch.load`.

    Args:
        marker: where the marks go.
        patches: remembers the originals.
        notes: what writes the events.

    Raises:
        KeyError: this torch has no such function; checkpoints then show as `other`.
    """
    for kind, place in (("save", 1), ("load", 0)):
        marked = mark_calls(vars(torch)[kind], kind, functools.partial(_file_of, place, "f"), marker, notes)
        for module in (torch, serialization):
            patches.replace(module, kind, marked)


def install_safetensors(package: ModuleType, marker: Marker, patches: Patches, notes: Notes) -> None:
    """Mark `save_file` and `load_file` of safetensors.torch, which `save_model` and `load_model` call too."""
    for name, kind, place in (("save_file", "save", 1), ("load_file", "load", 0)):
        file_of = functools.partial(_file_of, place, "filename")
        patches.replace(package, name, mark_calls(vars(package)[name], kind, file_of, marker, notes))


def install_distributed(package: ModuleType, marker: Marker, patches: Patches, notes: Notes) -> None:
    """Mark `save`, `load` and the blocking part of `async_save` of torch.distributed.checkpoint.

    `save_state_dict` and `load_state_dict`, their older names, are marked where torch still has them.
    """
    for name, kind, submodule in (
        ("save", "save", "state_dict_saver"),
        ("load", "load", "state_dict_loader"),
        ("async_save", "save", "state_dict_saver"),
        ("save_state_dict", "save", "state_dict_saver"),
        ("load_state_dict", "load", "state_dict_loader"),
    ):
        if name.endswith("_state_dict") and name not in vars(package):
            continue
        # The thread behind `async_save` calls `save` by the name in its module: that call says when it succeeded.
        staging = name == "async_save"
        marked = mark_calls(vars(package)[name], kind, _checkpoint_of, marker, notes, staging=staging)
        for module in (package, getattr(package, submodule)):
            patches.replace(module, name, marked)


def mark_calls(
    call: Callable[..., Any],
    kind: str,
    file_of: Callable[[Any, Any], Any],
    marker: Marker,
    notes: Notes,
    *,
    staging: bool = False,
) -> Callable[..., Any]:
    """`call`, marked and told of. `file_of(args, kwargs)`: where the checkpoint lies; asked once `call` is over."""
    enter, resume, abort, steps = marker.enter, marker.resume, marker.abort, marker.steps
    phase = _PHASES[kind]

    def told(outer: int, args: Any, kwargs: Any, start_ns: int, step: int, ok: bool) -> None:
        try:
            notes.note(kind, outer, file_of(args, kwargs), start_ns, step, ok, staging)
        except Exception as error:
            # The working directory is gone, a path of a foreign kind: the checkpoint itself has been made.
            warn_once("checkpoint", f"a {kind} was not noted: {type(error).__name__}: {error}")

    def stage(args: Any, kwargs: Any, step: int) -> None:
        try:
            notes.stage(file_of(args, kwargs), step)
        except Exception as error:
            warn_once("checkpoint", f"a {kind} was not noted: {type(error).__name__}: {error}")

    def covered(args: Any, kwargs: Any) -> None:
        try:
            notes.note_covered(kind, file_of(args, kwargs), staging)
        except Exception as error:
            warn_once("checkpoint", f"a {kind} was not noted: {type(error).__name__}: {error}")

    def checkpoint(*args: Any, **kwargs: Any) -> Any:
        if is_traced() or compiler._is_compiling_flag:
            return call(*args, **kwargs)
        start_ns, step = monotonic_ns(), steps()
        outer = enter(phase)
        if outer == NESTED:
            result = call(*args, **kwargs)
            if notes.cover is not None:
                covered(args, kwargs)
            return result
        try:
            if staging:
                stage(args, kwargs, step)
            result = call(*args, **kwargs)
            if outer >= 0:
                resume(outer)
        except BaseException:
            if outer >= 0:
                abort(outer)
            told(outer, args, kwargs, start_ns, step, False)
            raise
        told(outer, args, kwargs, start_ns, step, True)
        return result

    return functools.update_wrapper(checkpoint, call)  # its name, its signature, and what pickle finds it by


def _file_of(place: int, name: str, args: Any, kwargs: Any) -> Any:
    """The argument that names the file."""
    return args[place] if len(args) > place else kwargs.get(name)


def _checkpoint_of(args: Any, kwargs: Any) -> Any:
    """Where a distributed checkpoint lies."""
    given = kwargs.get("checkpoint_id")
    # The older functions take the storage as their second argument; the newer ones take no second one by place.
    storage = kwargs.get("storage_writer") or kwargs.get("storage_reader") or (args[1] if len(args) > 1 else None)
    return given if given is not None else getattr(storage, "path", None)
