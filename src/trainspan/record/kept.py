"""What is never let go of, also not at the end of the process: memory and events of a device.

To let go of one is a call to CUDA, from a place that may not fail. In a forked child, and after an error that CUDA does
not forget, that call does: torch then ends the process, or prints a line for each of them, before the script has seen
the error that is its own.

Source: torch's CachingHostAllocator.h (`free` records an event) and CUDAEvent.h (`~CUDAEvent`).
"""

import ctypes
from typing import TypeVar

T = TypeVar("T")


def kept(thing: T) -> T:
    """`thing`, which is not destroyed from now on, whoever lets go of it. There must be a bound to what is kept."""
    # A reference that nobody holds: what a module holds goes with the module when Python ends.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))
    return thing
