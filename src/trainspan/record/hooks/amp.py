"""Gradient scaling: the phase AMP, and the steps that a scaler skips.

`GradScaler.unscale_`, `step` and `update` are patched on the class. In `step` the scaler reads whether a gradient was
infinite, which waits for the device: that is AMP, and the optimizer's own step after it is OPTIMIZER, as always. Where
no optimizer's step follows, it was skipped: a step of training ends there all the same, and its mark says so. Only of
torch's own: what merely looks like an optimizer, as a callback of fastai that asks the scaler, steps nothing by itself.

A fused optimizer decides on the device whether it skips, and that cannot be seen without waiting for it. Cost: 0.5 µs a
call.
"""

import functools
from collections.abc import Callable
from typing import Any

from torch.amp.grad_scaler import GradScaler
from torch.optim.optimizer import Optimizer

from trainspan.names import Phase
from trainspan.record.hooks.optimizer import Stepping
from trainspan.record.marker import Marker
from trainspan.record.patches import Patches
from trainspan.record.traced import compiler, is_traced

_AMP = int(Phase.AMP)


def install(marker: Marker, patches: Patches, stepping: Stepping) -> None:
    """Mark what a scaler does.

    Args:
        marker: where the marks go.
        patches: remembers the originals.
        stepping: knows of the optimizers' steps.

    Raises:
        KeyError: this torch has another scaler; its work then shows as `other`, and skipped steps are none.
    """
    for name in ("unscale_", "update"):
        patches.replace(GradScaler, name, _marked(vars(GradScaler)[name], marker))
    patches.replace(GradScaler, "step", _marked_step(vars(GradScaler)["step"], marker, stepping))


def _marked(call: Callable[..., Any], marker: Marker) -> Callable[..., Any]:
    around = marker.around

    def scale(self: Any, *args: Any, **kwargs: Any) -> Any:
        if is_traced() or compiler._is_compiling_flag or not self._enabled:
            return call(self, *args, **kwargs)
        return around(call, _AMP, (self, *args), kwargs)

    return functools.update_wrapper(scale, call)


def _marked_step(call: Callable[..., Any], marker: Marker, stepping: Stepping) -> Callable[..., Any]:
    enter, resume, abort, now = marker.enter, marker.resume, marker.abort, marker.now

    def scaled_step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        if is_traced() or compiler._is_compiling_flag or not self._enabled:
            return call(self, optimizer, *args, **kwargs)
        outer = enter(_AMP)
        if outer < 0:
            return call(self, optimizer, *args, **kwargs)
        try:
            stepping.scaled(outer)
            result = call(self, optimizer, *args, **kwargs)
        except BaseException:
            if stepping.unscaled() or now() == _AMP:
                abort(outer)
            raise
        if stepping.unscaled():
            if isinstance(optimizer, Optimizer):
                stepping.skipped(optimizer, outer)
            else:
                resume(outer)
        return result

    return functools.update_wrapper(scaled_step, call)
