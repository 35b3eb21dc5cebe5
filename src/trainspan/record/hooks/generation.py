"""Text generation by Hugging Face's `generate`: a phase of its own, told from training and validation.

`GenerationMixin.generate` is patched on the class, which models inherit. Cost: 0.5 µs a call.
"""

import functools
from types import ModuleType
from typing import Any, Final

from trainspan.names import Phase
from trainspan.record.marker import Marker
from trainspan.record.patches import Patches
from trainspan.record.traced import compiler, is_traced

MODULE: Final = "transformers.generation.utils"
_GENERATION: Final = int(Phase.GENERATION)


def install(package: ModuleType, marker: Marker, patches: Patches) -> None:
    """Mark every call.

    Raises:
        KeyError: this package generates in another way; it then shows as `validation` or `other`.
    """
    around = marker.around
    call = vars(package.GenerationMixin)["generate"]

    def generate(*args: Any, **kwargs: Any) -> Any:
        if is_traced() or compiler._is_compiling_flag:
            return call(*args, **kwargs)
        return around(call, _GENERATION, args, kwargs)

    patches.replace(package.GenerationMixin, "generate", functools.update_wrapper(generate, call))
