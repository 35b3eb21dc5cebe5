"""Text generation by Hugging Face's `generate`: a phase of its own, told from training and validation.

`GenerationMixin.generate` is patched on the class, which models inherit. Cost: 0.5 µs a call.
"""

import functools
from types import ModuleType
from typing import Any, Final

import torch

from trainspan.names import Phase
from trainspan.record.marker import Marker
from trainspan.record.patches import Patches

MODULE: Final = "transformers.generation.utils"
_GENERATION: Final = int(Phase.GENERATION)


def install(package: ModuleType, marker: Marker, patches: Patches) -> None:
    """Mark every call.

    Raises:
        KeyError: this package generates in another way; it then shows as `validation` or `other`.
    """
    enter, resume, abort = marker.enter, marker.resume, marker.abort
    is_compiling = torch.compiler.is_compiling
    call = vars(package.GenerationMixin)["generate"]

    def generate(*args: Any, **kwargs: Any) -> Any:
        if is_compiling():
            return call(*args, **kwargs)
        outer = enter(_GENERATION)
        if outer < 0:
            return call(*args, **kwargs)
        try:
            result = call(*args, **kwargs)
        except BaseException:
            abort(outer)
            raise
        resume(outer)
        return result

    patches.replace(package.GenerationMixin, "generate", functools.update_wrapper(generate, call))
