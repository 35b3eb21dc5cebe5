"""Generation by Hugging Face's `generate`, by pipelines of diffusers and collectors of TorchRL: a phase of its own.

Each calls the model a hundred times for one batch, without gradients; pipelines and collectors leave it in training
mode. `GenerationMixin.generate` is patched on the class, which models inherit. Cost: 0.5 µs a call.
"""

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

from trainspan.names import Phase
from trainspan.record.marker import Marker
from trainspan.record.patches import Patches
from trainspan.record.traced import compiler, is_traced

MODULE: Final = "transformers.generation.utils"
DIFFUSERS_MODULE: Final = "diffusers.pipelines.pipeline_utils"
TORCHRL_MODULE: Final = "torchrl.collectors._single"
_GENERATION: Final = int(Phase.GENERATION)


def install(package: ModuleType, marker: Marker, patches: Patches) -> None:
    """Mark every call.

    Raises:
        KeyError: this package generates in another way; it then shows as `validation` or `other`.
    """
    call = vars(package.GenerationMixin)["generate"]
    patches.replace(package.GenerationMixin, "generate", _marked(call, marker))


def install_diffusers(package: ModuleType, marker: Marker, patches: Patches) -> None:
    """Mark every call of a pipeline: each kind is a class with a `__call__` of its own, and is made later.

    Raises:
        AttributeError: this package samples in another way; it then shows as `forward`, or as `validation`.
    """
    base = package.DiffusionPipeline
    if "__init_subclass__" in vars(base):
        raise AttributeError("pipelines are made in another way")

    def mark_pipeline(pipeline: type, /, **kwargs: Any) -> None:
        super(base, pipeline).__init_subclass__(**kwargs)
        if "__call__" in vars(pipeline):
            patches.replace(pipeline, "__call__", _marked(vars(pipeline)["__call__"], marker))

    base.__init_subclass__ = classmethod(mark_pipeline)
    patches.on_undo(lambda: delattr(base, "__init_subclass__"))


def install_torchrl(package: ModuleType, marker: Marker, patches: Patches) -> None:
    """Mark what the collector of this process collects from its environment.

    Raises:
        AttributeError, KeyError: this package collects in another way; it then shows as `forward`.
    """
    patches.replace(package.Collector, "rollout", _marked(vars(package.Collector)["rollout"], marker))


def _marked(call: Callable[..., Any], marker: Marker) -> Callable[..., Any]:
    around = marker.around

    def generate(*args: Any, **kwargs: Any) -> Any:
        if is_traced() or compiler._is_compiling_flag:
            return call(*args, **kwargs)
        return around(call, _GENERATION, args, kwargs)

    return functools.update_wrapper(generate, call)
