"""Checkpoints: the time the training thread spends in `torch.save`, `torch.load` and `torch.distributed.checkpoint`.

The phases say when the rank was held up; the event `checkpoint` says what came of it, so that the relay knows which
step a restart resumes at:

    kind      save or load
    start_ns, end_ns
    ok        False: an exception left it
    blocking  False: another thread did it, while training went on
    file      hash of the file's absolute path; the path itself stays here
    step      number of the next step when the call began
    bytes     size of the file after a save; null when it is no single file

An event is written only for what has a file: not for a buffer in memory, not for what runs inside another phase (a
Dataset that loads a tensor a sample), and in another thread only for saves to a path. Cost: 0.7 µs a call, with its
event 20 µs.
"""

import functools
import os
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

LOADS_TOLD: Final = 1024
"""Loads of one process that have an event: a program may read a file a sample, and the event log has a bound."""

EARLY_TOLD: Final = 16
"""Events before the recording is open: a process that never trains must not collect them."""

_PHASES: Final = {"save": int(Phase.CHECKPOINT_SAVE), "load": int(Phase.CHECKPOINT_LOAD)}

Teller = Callable[..., None]


def install(marker: Marker, patches: Patches, tell: Teller, is_recording: Callable[[], bool]) -> None:
    """Mark every `torch.save` and `torch.load`.

    Args:
        marker: where the marks go.
        patches: remembers the originals.
        tell: `tell("checkpoint", **fields)` appends an event.
        is_recording: whether it goes to a recording, or is kept until there is one.

    Raises:
        KeyError: this torch has no such function; checkpoints then show as `other`.
    """
    note = _Notes(marker, tell, is_recording).note
    for kind, place in (("save", 1), ("load", 0)):
        marked = _marked(vars(torch)[kind], kind, functools.partial(_file_of, place, "f"), marker, note)
        for module in (torch, serialization):
            patches.replace(module, kind, marked)


def install_distributed(
    package: ModuleType, marker: Marker, patches: Patches, tell: Teller, is_recording: Callable[[], bool]
) -> None:
    """Mark `save`, `load` and the blocking part of `async_save` of torch.distributed.checkpoint."""
    note = _Notes(marker, tell, is_recording).note
    for name, kind, submodule in (
        ("save", "save", "state_dict_saver"),
        ("load", "load", "state_dict_loader"),
        ("async_save", "save", "state_dict_saver"),
    ):
        # The thread behind `async_save` calls `save` by the name in its module: that call says when it succeeded.
        told = _nothing if name == "async_save" else note
        marked = _marked(vars(package)[name], kind, _checkpoint_of, marker, told)
        for module in (package, getattr(package, submodule)):
            patches.replace(module, name, marked)


class _Notes:
    """Writes the events, and knows when to stop."""

    def __init__(self, marker: Marker, tell: Teller, is_recording: Callable[[], bool]):
        self._marker = marker
        self._tell = tell
        self._is_recording = is_recording
        self._loads = 0
        self._early = 0

    def note(self, kind: str, outer: int, file: Any, start_ns: int, step: int, ok: bool) -> None:
        """Tell of one call that has ended. `outer`: what `enter` said to it."""
        early = outer == FOREIGN and not self._is_recording()
        blocking = outer >= 0 or early
        path = _path_of(file, blocking=blocking)
        if path is None or (kind == "load" and not blocking) or not self._has_room(kind, early):
            return
        self._tell(
            "checkpoint",
            kind=kind,
            start_ns=start_ns,
            end_ns=monotonic_ns(),
            ok=ok,
            blocking=blocking,
            file=blake2b(os.fsencode(os.path.abspath(path)), digest_size=8).hexdigest(),
            step=step,
            bytes=_size_of(path) if kind == "save" and ok else None,
        )

    def _has_room(self, kind: str, early: bool) -> bool:
        self._loads += kind == "load"
        self._early += early
        return self._loads <= LOADS_TOLD and (not early or self._early <= EARLY_TOLD)


_Note = Callable[[str, int, Any, int, int, bool], None]


def _nothing(kind: str, outer: int, file: Any, start_ns: int, step: int, ok: bool) -> None:
    """Nobody is told."""


def _marked(
    call: Callable[..., Any], kind: str, file_of: Callable[[Any, Any], Any], marker: Marker, note: _Note
) -> Callable[..., Any]:
    enter, resume, abort, steps = marker.enter, marker.resume, marker.abort, marker.steps
    is_compiling = torch.compiler.is_compiling
    phase = _PHASES[kind]

    def told(outer: int, args: Any, kwargs: Any, start_ns: int, step: int, ok: bool) -> None:
        try:
            note(kind, outer, file_of(args, kwargs), start_ns, step, ok)
        except Exception as error:
            # The working directory is gone, a path of a foreign kind: the checkpoint itself has been made.
            warn_once("checkpoint", f"a {kind} was not noted: {type(error).__name__}: {error}")

    def checkpoint(*args: Any, **kwargs: Any) -> Any:
        if is_compiling():
            return call(*args, **kwargs)
        outer = enter(phase)
        if outer == NESTED:
            return call(*args, **kwargs)
        start_ns, step = monotonic_ns(), steps()
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


def _size_of(path: str | bytes) -> int | None:
    return os.stat(path).st_size if os.path.isfile(path) else None
