"""A process group of one, in the process of the tests."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch.distributed as dist


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """On gloo; `folder` is for its store."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
    try:
        yield
    finally:
        leave()


def leave() -> None:
    """Leave the process group, if one has been joined."""
    if dist.is_initialized():
        keep(dist.group.WORLD)
        dist.destroy_process_group()


def keep(group: Any) -> None:
    """Keep it for ever.

    As it goes it waits, with the GIL held, for a thread of gloo's own, and that may be waiting for the GIL to let go of
    the last tensor it reduced.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))
