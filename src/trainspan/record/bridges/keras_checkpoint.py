"""Keras's own files, which are no files of torch: a model as `.keras`, and its weights as `.weights.h5`."""

import functools
from types import ModuleType
from typing import Any, Final

from trainspan.record.bridges.channel import Channel
from trainspan.record.hooks.checkpoint import mark_calls
from trainspan.record.patches import Patches

_PLACES: Final = {
    "save_model": ("save", 1),
    "load_model": ("load", 0),
    "save_weights_only": ("save", 1),
    "load_weights_only": ("load", 1),
}
"""What each does, and where the path is among its arguments."""


def install(module: ModuleType, patches: Patches, channel: Channel) -> None:
    """Mark what this module saves and loads; Keras calls its functions by their names in it.

    Raises:
        KeyError: this version saves in another way; a checkpoint then shows as `other`.
    """
    marked = {
        name: mark_calls(vars(module)[name], kind, functools.partial(_file_of, place), channel.marker, channel.notes)
        for name, (kind, place) in _PLACES.items()
    }
    for name, function in marked.items():
        patches.replace(module, name, function)


def _file_of(place: int, args: Any, kwargs: Any) -> Any:
    return args[place] if len(args) > place else kwargs.get("filepath")
