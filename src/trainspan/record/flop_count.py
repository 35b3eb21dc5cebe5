"""FLOPs of one step, counted by torch itself, where the user asks for it (TRAINSPAN_COUNT_FLOPS).

`torch.utils.flop_counter` looks at every operator, so the step takes a multiple of its time. It is the third step: by
then what is lazy has been made. Where something has been compiled nothing is counted: under it a compiled function runs
uncompiled, or with `fullgraph=True` raises. The event:

    flops   step: number of the step; flops: that its operators took
"""

import sys
from collections.abc import Callable
from typing import Any, Final

from torch.utils.flop_counter import FlopCounterMode

from trainspan.guard import warn_once

STEP: Final = 2
"""Number of the step that is counted."""


def is_anything_compiled() -> bool:
    """Whether this process has compiled anything. The compiler is asked only where somebody has imported it."""
    compiler = sys.modules.get("torch._dynamo.utils")
    return compiler is not None and bool(compiler.counters["stats"]["unique_graphs"])


class FlopCount:
    """Counts one step.

    Args:
        tell: `tell("flops", **fields)` appends an event.
        steps: how many steps are complete.
        is_compiled: whether this process has compiled anything.
    """

    def __init__(
        self,
        tell: Callable[..., None],
        steps: Callable[[], int],
        is_compiled: Callable[[], bool] = is_anything_compiled,
    ):
        self._tell = tell
        self._steps = steps
        self._is_compiled = is_compiled
        self._mode: Any = None
        self._over = False

    def step_ended(self) -> None:
        """Begin before the step, and tell after it. Cost: 0.1 µs a step."""
        if self._over or self._steps() < STEP:
            return
        try:
            self._turn()
        except Exception as error:
            self._over = True
            warn_once("flops", f"the FLOPs of a step were not counted: {type(error).__name__}: {error}")

    def _turn(self) -> None:
        if self._mode is None:
            if self._is_compiled():
                self._over = True
                warn_once("flops", "the FLOPs of compiled code are not counted; give TRAINSPAN_FLOPS_PER_TOKEN instead")
                return
            self._mode = FlopCounterMode(display=False)
            self._mode.__enter__()
            return
        mode, self._mode, self._over = self._mode, None, True
        mode.__exit__(None, None, None)
        self._tell("flops", step=self._steps() - 1, flops=int(mode.get_total_flops()))
