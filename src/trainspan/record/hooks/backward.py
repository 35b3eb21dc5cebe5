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

from torch import autograd
from torch.autograd import graph

from trainspan.names import Phase
from trainspan.record.marker import Marker
from trainspan.record.patches import Patches
from trainspan.record.traced import compiler, is_traced

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
    marker.adopt_in(_BACKWARD, adopt)
    run_backward = _marked(vars(graph)["_engine_run_backward"], marker)
    for module in (graph, autograd):
        patches.replace(module, "_engine_run_backward", run_backward)


def install_megatron(module: ModuleType, marker: Marker, patches: Patches) -> None:
    """Mark the backward of pipelines that free their outputs."""
    call = vars(module)["custom_backward"]
    patches.replace(module, "custom_backward", functools.update_wrapper(_marked(call, marker), call))


def _marked(call: Callable[..., Any], marker: Marker) -> Callable[..., Any]:
    around = marker.around

    def run_backward(*args: Any, **kwargs: Any) -> Any:
        if is_traced() or compiler._is_compiling_flag:
            return call(*args, **kwargs)
        return around(call, _BACKWARD, args, kwargs)

    return run_backward
