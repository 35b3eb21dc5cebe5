"""Gradient clipping: the public functions of `torch.nn.utils`, FSDP1's method of the same name, and frameworks' own.

The functions are replaced right after their module is imported, before anybody can have imported them by name.
Cost: 0.5 µs a call.
"""

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

from torch.nn import utils
from torch.nn.utils import clip_grad

from trainspan.names import Phase
from trainspan.record.marker import Marker
from trainspan.record.patches import Patches
from trainspan.record.traced import compiler, is_traced

_GRAD_CLIP = int(Phase.GRAD_CLIP)
_PUBLIC = ("clip_grad_norm_", "clip_grad_value_", "get_total_norm", "clip_grads_with_norm_")
FSDP1_MODULE = "torch.distributed.fsdp.fully_sharded_data_parallel"
FRAMEWORKS: Final = {
    "deepspeed.runtime.utils": ("clip_grad_norm_",),
    "megatron.core.optimizer.clip_grads": ("get_grad_norm_fp32", "clip_grad_by_total_norm_fp32"),
}
"""Functions of frameworks by their module. ZeRO of DeepSpeed clips within its optimizer's step, and so it shows."""


def install(marker: Marker, patches: Patches) -> None:
    """Mark every clipping.

    Raises:
        KeyError: this torch clips under other names; clipping then shows as `other`.
    """
    for name in _PUBLIC:
        if name not in vars(utils):
            continue  # torch before 2.6 has only the first two
        marked = _marked(vars(utils)[name], marker)
        patches.replace(utils, name, marked)
        if name in vars(clip_grad):
            patches.replace(clip_grad, name, marked)
    if "clip_grad_norm_" not in vars(utils):
        raise KeyError("clip_grad_norm_")


def install_fsdp1(module: ModuleType, marker: Marker, patches: Patches) -> None:
    """Mark `FullyShardedDataParallel.clip_grad_norm_`, which calls none of the public functions."""
    owner = module.FullyShardedDataParallel
    patches.replace(owner, "clip_grad_norm_", _marked(vars(owner)["clip_grad_norm_"], marker))


def install_framework(module: ModuleType, marker: Marker, patches: Patches) -> None:
    """Mark the functions of one framework.

    Raises:
        KeyError: this version has other names.
    """
    for name in FRAMEWORKS[module.__name__]:
        patches.replace(module, name, _marked(vars(module)[name], marker))


def _marked(call: Callable[..., Any], marker: Marker) -> Callable[..., Any]:
    around = marker.around

    def clip(*args: Any, **kwargs: Any) -> Any:
        if is_traced() or compiler._is_compiling_flag:
            return call(*args, **kwargs)
        return around(call, _GRAD_CLIP, args, kwargs)

    return functools.update_wrapper(clip, call)  # its name, and its signature for who inspects it
