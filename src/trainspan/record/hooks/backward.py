"""Backward: everything that runs the autograd engine, through the one function all of it calls.

`_engine_run_backward` is looked up as a global of two modules; both are patched. `Tensor.backward`,
`autograd.backward` and `autograd.grad`, however imported, and every wrapper end there. A gradient taken inside a
forward or another backward stays in the outer phase. Cost: 0.6 µs a call.

Pipelines of Megatron Core call the engine of C++ by themselves, past both: that function is marked too.
"""

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

import torch
from torch import autograd
from torch.autograd import graph

from trainspan.names import Phase
from trainspan.record.marker import FOREIGN, Marker
from trainspan.record.patches import Patches

MEGATRON_MODULE: Final = "megatron.core.pipeline_parallel.schedules"

_BACKWARD = int(Phase.BACKWARD)


def install(marker: Marker, patches: Patches, adopt: Callable[[], bool]) -> None:
    """Mark every run of the autograd engine.

    Args:
        marker: where the marks go.
        patches: remembers the originals.
        adopt: asks to record for the calling thread, which evidently trains; True if it now does.

    Raises:
        AttributeError, KeyError: this torch has no such function; backward then shows as `other`.
    """
    run_backward = _marked(vars(graph)["_engine_run_backward"], marker, adopt)
    for module in (graph, autograd):
        patches.replace(module, "_engine_run_backward", run_backward)


def install_megatron(module: ModuleType, marker: Marker, patches: Patches, adopt: Callable[[], bool]) -> None:
    """Mark the backward of pipelines that free their outputs."""
    call = vars(module)["custom_backward"]
    patches.replace(module, "custom_backward", functools.update_wrapper(_marked(call, marker, adopt), call))


def _marked(call: Callable[..., Any], marker: Marker, adopt: Callable[[], bool]) -> Callable[..., Any]:
    enter, resume, abort = marker.enter, marker.resume, marker.abort
    is_compiling = torch.compiler.is_compiling

    def run_backward(*args: Any, **kwargs: Any) -> Any:
        if is_compiling():
            return call(*args, **kwargs)
        outer = enter(_BACKWARD)
        if outer == FOREIGN and adopt():
            outer = enter(_BACKWARD)
        if outer < 0:
            return call(*args, **kwargs)
        try:
            result = call(*args, **kwargs)
        except BaseException:
            abort(outer)
            raise
        resume(outer)
        return result

    return run_backward
