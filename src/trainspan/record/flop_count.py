"""FLOPs of the model in one step, counted by torch itself, where the user asks for it (TRAINSPAN_COUNT_FLOPS).

`torch.utils.flop_counter` knows what an operator takes; a dispatch mode sees each one, so the step takes a multiple of
its time. It is the third step: by then what is lazy has been made. The event:

    flops   step: number of the step; flops: of its model

The mode is entered and left by the same call, that of a root or of a backward, and so in the order in which Python
leaves whatever else is entered. Between these calls it is not there: whoever validates, saves or forks does it without.

What counts is what the MFU is defined by: every operator in the forward of a root under training, and of a backward
those that do not compute a forward once more, as activation checkpointing does. A recomputation keeps gradients, or is
in the forward of a `torch.autograd.Function`; a backward is neither, unless it builds a graph of itself: then they
cannot be told apart. Nothing is told then, nor where a compiler comes in, nor where an exception leaves such a call.

Source of the MFU: Chowdhery et al., "PaLM", 2022, appendix B.
"""

import functools
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

import torch
from torch._ops import HigherOrderOperator
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from trainspan.guard import warn_once
from trainspan.names import Phase
from trainspan.record.marker import Marker
from trainspan.watch import watch

STEP: Final = 2
"""Number of the step that is counted."""

COMPILER: Final = "torch._dynamo.eval_frame"

_FORWARD: Final = int(Phase.FORWARD)
_BACKWARD: Final = int(Phase.BACKWARD)
_COUNTED: Final = (_FORWARD, _BACKWARD)
_CREATE_GRAPH: Final = 3  # its place among the arguments of torch's `_engine_run_backward`
_ENTRANCES: Final = ("_maybe_set_eval_frame", "set_eval_frame")
"""What every compiled function calls, with its compiler, before anything else of it runs; the first since torch 2.5."""
_COMPILED: Final = "something is compiled"
_TAKES_HIGHER_ORDER: Final = hasattr(TorchDispatchMode, "supports_higher_order_operators")
"""Whether a mode can be handed operators of higher order, since torch 2.11. Before that, one that is called under a
mode that torch itself does not know raises."""

_PLAIN: Final = torch.Tensor.__torch_dispatch__
_is_grad_enabled = torch.is_grad_enabled
_is_forward_grad_enabled: Callable[[], bool] = torch._C._is_fwd_grad_enabled


def is_anything_compiled() -> bool:
    """Whether this process has compiled anything. The compiler is asked only where somebody has imported it."""
    compiler = sys.modules.get("torch._dynamo.utils")
    return compiler is not None and bool(compiler.counters["stats"]["unique_graphs"])


class FlopCount:
    """Counts one step of each recording.

    Args:
        marker: knows the step, and marks what is counted; give the hooks `around` in place of its own.
        tell: `tell("flops", **fields)` appends an event.
        is_compiled: whether this process has compiled anything.
    """

    def __init__(
        self, marker: Marker, tell: Callable[..., None], is_compiled: Callable[[], bool] = is_anything_compiled
    ):
        self._marker = marker
        self._marked = marker.around
        self._steps = marker.steps
        self._tell = tell
        self._is_compiled = is_compiled
        self._counts = _Counts(self._give_up)
        self._active = False
        self._over = False
        self._compiler: ModuleType | None = None
        self._entrances: dict[tuple[Any, str], Callable[..., Any]] = {}
        os.register_at_fork(after_in_child=self._leave)
        watch.add(COMPILER, lambda module, _: self._follow(module))

    def begin(self) -> None:
        """Begin anew: a recording has been opened."""
        self._over = False
        self._counts.clear()

    def step_ended(self) -> None:
        """Tell what the step took. Cost: 0.1 µs a step."""
        if self._over or self._steps() <= STEP:
            return
        if self._counts.forwards:
            self._over = True
            self._tell("flops", step=STEP, flops=sum(self._counts.flops))
        else:
            self._give_up("no forward was seen in the third step")

    def around(self, call: Callable[..., Any], phase: int, args: Any, kwargs: Any, *entered: list[int]) -> Any:
        """The marker's own, of a call that is looked at inside of its marks. Cost, in all other steps: 0.2 µs."""
        if phase in _COUNTED and not self._over and self._steps() == STEP:
            call = functools.partial(self._run, call, phase)
        return self._marked(call, phase, args, kwargs, *entered)

    def _run(self, call: Callable[..., Any], phase: int, *args: Any, **kwargs: Any) -> Any:
        if not self._marker.mine():
            return call(*args, **kwargs)
        entered = self._enter(phase)
        counts, within = self._counts, self._counts.in_backward
        counts.in_backward = within or phase == _BACKWARD
        if phase == _BACKWARD and self._active and len(args) > _CREATE_GRAPH and args[_CREATE_GRAPH]:
            self._give_up("a backward that can be differentiated does not show what is computed once more")
        try:
            return call(*args, **kwargs)
        except BaseException:
            if entered:
                self._give_up("an exception has left it")
            raise
        finally:
            counts.in_backward = within
            if entered:
                self._leave()
                self._active = False

    def _enter(self, phase: int) -> bool:
        """Look at every operator from now on, if those of this call count; whether that is so."""
        if self._active or self._marker.now() not in _COUNTED or (phase == _FORWARD and not _is_trained()):
            return False
        try:
            if self._is_compiled():
                self._give_up(_COMPILED)
                return False
            self._watch_entrances()
            self._counts.forwards += phase == _FORWARD
            torch._C._push_on_torch_dispatch_stack(self._counts)
            self._active = True
        except Exception as error:
            self._give_up(f"{type(error).__name__}: {error}")
        return self._active

    def _leave(self) -> None:
        if self._active:
            for (owner, name), original in self._entrances.items():
                setattr(owner, name, original)
            self._entrances.clear()
            _take_out(self._counts)

    def _give_up(self, why: str) -> None:
        if not self._over:
            warn_once(
                f"flops.{why}", f"the FLOPs of a step were not counted: {why}; give TRAINSPAN_FLOPS_PER_TOKEN instead"
            )
        self._over = True
        self._leave()

    def _follow(self, compiler: ModuleType) -> None:
        self._compiler = compiler
        if self._active:
            self._watch_entrances()

    def _watch_entrances(self) -> None:
        """Leave as soon as what runs uncompiled under a mode, or raises, is called."""
        for name in _ENTRANCES if self._compiler is not None else ():
            original = getattr(self._compiler, name, None)
            if original is not None:
                self._replace(self._compiler, name, functools.partial(self._compiler_comes, original))
        if not _TAKES_HIGHER_ORDER:
            self._replace(HigherOrderOperator, "__call__", self._in_place_of(HigherOrderOperator.__call__))

    def _replace(self, owner: Any, name: str, replacement: Callable[..., Any]) -> None:
        if (owner, name) not in self._entrances:
            self._entrances[owner, name] = getattr(owner, name)
            setattr(owner, name, replacement)

    def _in_place_of(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def leave_and_call(operator: HigherOrderOperator, /, *args: Any, **kwargs: Any) -> Any:
            if self._marker.mine():
                self._give_up(_unknown(operator))
            return call(operator, *args, **kwargs)

        return leave_and_call

    def _compiler_comes(self, original: Callable[[Any], Any], callback: Any) -> Any:
        # None and False: the function is one that is not to be compiled.
        if callback is not None and callback is not False and self._marker.mine():
            self._give_up(_COMPILED)
        return original(callback)


class _Counts(TorchDispatchMode):
    """What operators take, by torch's own table.

    Attributes:
        forwards: how many forwards have been looked at.
        flops: of each operator: those of a device's backward come from another thread.
        in_backward: whether a backward is under way.
    """

    supports_higher_order_operators = True

    def __init__(self, give_up: Callable[[str], None]):
        super().__init__()
        self._give_up = give_up
        self.flops: list[int] = []
        self.in_backward = False
        self.forwards = 0

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """To torch, since 2.9: this is no reason for not compiling."""
        return True

    def clear(self) -> None:
        """Begin anew."""
        self.flops.clear()
        self.forwards = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(kind.__torch_dispatch__ is not _PLAIN for kind in types):
            return NotImplemented  # a tensor of a kind of its own, as DTensor: what it has the rank do comes by here
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        try:
            self._take(func, args, kwargs, result)
        except Exception as error:
            self._give_up(f"{func}: {type(error).__name__}: {error}")
        return result

    def _take(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        if self.in_backward and (_is_grad_enabled() or not _is_forward_grad_enabled()):
            return
        takes = flop_registry.get(getattr(func, "_overloadpacket", func))
        if takes is not None:
            self.flops.append(int(takes(*args, **kwargs, out_val=result)))
        elif isinstance(func, HigherOrderOperator):
            self._give_up(_unknown(func))


def _unknown(operator: HigherOrderOperator) -> str:
    return f"torch does not know what {operator} takes"


def _is_trained() -> bool:
    """Whether the root that is called is under training: gradients are kept, or will be by a `torch.autograd.Function`.

    The forward of such a function keeps none, and so does `torch.no_grad`, but that leaves those of forward mode on.
    """
    return _is_grad_enabled() or not (_is_forward_grad_enabled() or torch.is_inference_mode_enabled())


def _take_out(mode: TorchDispatchMode) -> None:
    """Take `mode` off the stack of modes, from under those that were entered in it, if it is there.

    Not `__exit__`: that takes whichever is on top. A backward puts the stack that it began with back when it ends.
    """
    core = torch._C
    stack = [core._get_dispatch_stack_at(place) for place in range(core._len_torch_dispatch_stack())]
    if mode not in stack:
        return  # it handles an operator
    above = [core._pop_torch_dispatch_stack(None) for _ in stack[stack.index(mode) :]][:-1]
    for other in reversed(above):
        core._push_on_torch_dispatch_stack(other)
