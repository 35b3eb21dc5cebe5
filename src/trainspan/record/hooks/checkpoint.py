"""Checkpoints: what the training thread spends in `torch.save`, `torch.load`, safetensors and DCP.

DCP is `torch.distributed.checkpoint`.

The phases say when the rank was held up; the event `checkpoint` says what came of it, so that the relay knows which
step a restart resumes at:

    kind      save or load
    start_ns, end_ns
    ok        False: an exception left it
    blocking  False: another thread did it, while training went on
    staging   True: the part of an asynchronous save that blocks; another event tells what came of the save
    file      hash of the file's absolute path, for the engine
    path      what may be told: that hash, the path or nothing, as TRAINSPAN_CHECKPOINT_PATH has it
    step      number of the next step when the call began; of an asynchronous save, when its staging began
    bytes     size of the file after a save; null when it is no single file

An event is written only for what has a file: not for a buffer in memory, not for what runs inside another phase (a
Dataset that loads a tensor a sample), and in another thread only for saves to a path. Cost: 0.7 µs a call, with its
event 20 µs.
"""

import functools
import os
from collections import deque
from collections.abc import Callable
from hashlib import blake2b
from time import monotonic_ns
from types import ModuleType
from typing import Any, Final

import torch
from torch import serialization

from trainspan.guard import warn_once
from trainspan.names import Phase
from trainspan.record.marker import FOREIGN, NESTED, Marker
from trainspan.record.patches import Patches

DISTRIBUTED_MODULE: Final = "torch.distributed.checkpoint"
SAFETENSORS_MODULE: Final = "safetensors.torch"

LOADS_TOLD: Final = 1024
"""Loads of one process that have an event: a program may read a file a sample, and the event log has a bound."""

EARLY_TOLD: Final = 16
"""Events before the recording is open: a process that never trains must not collect them."""

MOST_STAGED: Final = 64
"""Asynchronous saves under way of which the step is remembered; some never come back to this process."""

_PHASES: Final = {"save": int(Phase.CHECKPOINT_SAVE), "load": int(Phase.CHECKPOINT_LOAD)}

Teller = Callable[..., None]


def install(marker: Marker, patches: Patches, notes: "Notes") -> None:
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


def install_safetensors(package: ModuleType, marker: Marker, patches: Patches, notes: "Notes") -> None:
    """Mark `save_file` and `load_file` of safetensors.torch, which `save_model` and `load_model` call too."""
    for name, kind, place in (("save_file", "save", 1), ("load_file", "load", 0)):
        file_of = functools.partial(_file_of, place, "filename")
        patches.replace(package, name, mark_calls(vars(package)[name], kind, file_of, marker, notes))


def install_distributed(package: ModuleType, marker: Marker, patches: Patches, notes: "Notes") -> None:
    """Mark `save`, `load` and the blocking part of `async_save` of torch.distributed.checkpoint."""
    for name, kind, submodule in (
        ("save", "save", "state_dict_saver"),
        ("load", "load", "state_dict_loader"),
        ("async_save", "save", "state_dict_saver"),
    ):
        # The thread behind `async_save` calls `save` by the name in its module: that call says when it succeeded.
        staging = name == "async_save"
        marked = mark_calls(vars(package)[name], kind, _checkpoint_of, marker, notes, staging=staging)
        for module in (package, getattr(package, submodule)):
            patches.replace(module, name, marked)


class Notes:
    """Writes the events, and knows when to stop.

    Args:
        marker: knows the step.
        tell: `tell("checkpoint", **fields)` appends an event.
        is_recording: whether it goes to a recording, or is kept until there is one.
        path_shown: what is told of a path: `hash`, `plain` or `omit`.
    """

    def __init__(self, marker: Marker, tell: Teller, is_recording: Callable[[], bool], path_shown: str = "hash"):
        self._marker = marker
        self._tell = tell
        self._is_recording = is_recording
        self._path_shown = path_shown
        self._staged: deque[tuple[str, int]] = deque(maxlen=MOST_STAGED)
        self._loads = 0
        self._early = 0

    def stage(self, file: Any, step: int) -> None:
        """Remember which step an asynchronous save is of: the thread that writes it begins later."""
        path = _path_of(file, blocking=False)
        if path is not None:
            self._staged.append((_name_of(path), step))

    def note(self, kind: str, outer: int, file: Any, start_ns: int, step: int, ok: bool, staging: bool) -> None:
        """Tell of one call that has ended. `outer`: what `enter` said to it."""
        early = outer == FOREIGN and not self._is_recording()
        blocking = outer >= 0 or early
        path = _path_of(file, blocking=blocking)
        if path is None or (kind == "load" and not blocking) or not self._has_room(kind, early):
            return
        name = _name_of(path)
        if kind == "save" and (not ok if staging else not blocking):
            step = self._unstage(name, step)
        shown = {"hash": name, "plain": os.path.abspath(os.fsdecode(path))}
        self._tell(
            "checkpoint",
            kind=kind,
            start_ns=start_ns,
            end_ns=monotonic_ns(),
            ok=ok,
            blocking=blocking,
            staging=staging,
            file=name,
            path=shown.get(self._path_shown),
            step=step,
            bytes=_size_of(path) if kind == "save" and ok else None,
        )

    def _has_room(self, kind: str, early: bool) -> bool:
        self._loads += kind == "load"
        self._early += early
        return self._loads <= LOADS_TOLD and (not early or self._early <= EARLY_TOLD)

    def _unstage(self, name: str, step: int) -> int:
        """The step that was staged under that name the longest ago; `step` if none was."""
        found = next((staged for staged in self._staged if staged[0] == name), None)
        if found is None:
            return step
        self._staged.remove(found)
        return found[1]


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
    is_compiling = torch.compiler.is_compiling
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

    def checkpoint(*args: Any, **kwargs: Any) -> Any:
        if is_compiling():
            return call(*args, **kwargs)
        outer = enter(phase)
        if outer == NESTED:
            return call(*args, **kwargs)
        start_ns, step = monotonic_ns(), steps()
        if staging:
            stage(args, kwargs, step)
        try:
            result = call(*args, **kwargs)
        except BaseException:
            if outer >= 0:
                abort(outer)
            told(outer, args, kwargs, start_ns, step, False)
            raise
        if outer >= 0:
            resume(outer)
        told(outer, args, kwargs, start_ns, step, True)
        return result

    return functools.update_wrapper(checkpoint, call)  # its name, its signature, and what pickle finds it by


def _file_of(place: int, name: str, args: Any, kwargs: Any) -> Any:
    """The argument that names the file."""
    return args[place] if len(args) > place else kwargs.get(name)


def _checkpoint_of(args: Any, kwargs: Any) -> Any:
    """Where a distributed checkpoint lies."""
    given = kwargs.get("checkpoint_id")
    storage = kwargs.get("storage_writer") or kwargs.get("storage_reader")
    return given if given is not None else getattr(storage, "path", None)


def _path_of(file: Any, *, blocking: bool) -> str | bytes | None:
    """The path of what was saved to or loaded from; None when it has none that counts."""
    if isinstance(file, str | bytes | os.PathLike):
        return os.fspath(file)
    # Of an open file in another thread nobody can say whether it is a checkpoint or a part of one.
    named = (getattr(file, "name", None), getattr(file, "path", None)) if blocking else ()
    return next((name for name in named if isinstance(name, str)), None)


def _name_of(path: str | bytes) -> str:
    return blake2b(os.fsencode(os.path.abspath(path)), digest_size=8).hexdigest()


def _size_of(path: str | bytes) -> int | None:
    return os.stat(path).st_size if os.path.isfile(path) else None
