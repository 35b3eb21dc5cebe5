"""The mark of one root: what it keeps in the slot that `nn.Module` itself consults before it calls.

Pickling, `copy.deepcopy`, `state_dict`, `torch.export`, `torch.jit` and `torch.compile` do not see it.
"""

import functools
import weakref
from collections.abc import Callable
from sys import _getframe, getrefcount
from typing import Any, Final

import torch
from torch import nn
from torch.jit import _recursive

from trainspan.names import Phase
from trainspan.record.marker import Marker
from trainspan.record.patches import Patches
from trainspan.record.traced import compiler, is_traced

SLOT: Final = "_compiled_call_impl"

_FORWARD = int(Phase.FORWARD)
_VALIDATION = int(Phase.VALIDATION)
_ENGINES = "deepspeed.runtime."

_is_grad_enabled = torch.is_grad_enabled
_references = 0
"""To an object that is called from the slot of one module and is nowhere else; measured when the hook is put in."""


class RootCall:
    """What a root's slot holds: marks the call, then does what the module would have done.

    It refers to the module weakly, so that deleting the model frees it at once. A copy or a pickle of it is None,
    which is what an uninstrumented module has in the slot. A module made by copying the `__dict__` of another one has
    the same object in its slot, and is not told from it by the call: references of more than one slot are the sign.
    """

    __slots__ = ("around", "called", "inner", "module", "without_grad")

    def __init__(
        self,
        module: nn.Module,
        inner: Callable[..., Any] | None,
        marker: Marker,
        called: list[int],
        without_grad: int = _VALIDATION,
    ):
        self.module = weakref.ref(module)
        self.inner = inner
        self.around = marker.around
        self.called = called
        self.without_grad = without_grad

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        module: Any = self.module()
        if is_traced():
            return (self.inner or module._call_impl)(*args, **kwargs)
        # Asking the frame each time would cost 1600 instructions; this takes 750.
        if getrefcount(self) != _references or module is None or module._compiled_call_impl is not self:
            module = self._callee() or module
        call = self.inner or module._call_impl
        if compiler._is_compiling_flag:
            return call(*args, **kwargs)
        phase = _FORWARD if _is_grad_enabled() or moded(module).training else self.without_grad
        return self.around(call, phase, args, kwargs, self.called)

    def _callee(self) -> nn.Module | None:
        """The module in whose slot this was found by who called; None: it was called in another way."""
        callee = _getframe(2).f_locals.get("self")
        return callee if isinstance(callee, nn.Module) and callee.__dict__.get(SLOT) is self else None

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        return None

    def __copy__(self) -> None:
        return None

    def __reduce__(self) -> tuple[Any, tuple[()]]:
        return type(None), ()


def moded(module: nn.Module) -> nn.Module:
    """The module whose mode counts: that of an engine of DeepSpeed never changes, only that of the model in it."""
    if type(module).__module__.startswith(_ENGINES):
        return module._modules.get("module") or module
    return module


def withdraw(candidate: RootCall) -> nn.Module | None:
    """The module, with its slot as it was; None: it is gone, or the slot is another's."""
    module = candidate.module()
    if module is None or module.__dict__.get(SLOT) is not candidate:
        return None
    module.__dict__[SLOT] = candidate.inner
    return module


def hide_slot(patches: Patches) -> None:
    """Keep the slot from those that look at whatever a module has.

    Raises:
        AttributeError, KeyError: this torch calls modules in another way.
    """
    global _references  # noqa: PLW0603 - what this interpreter counts; until it is known, no count is as expected
    if vars(nn.Module)[SLOT] is not None:
        raise AttributeError(f"{SLOT} is taken")
    _references = _references_in_a_call()
    _clear_slot_of_replicas(patches)
    _hide_slot_from_script(patches)


def _references_in_a_call() -> int:
    """How many references there are to what a module calls from its slot: that of the slot, and those of the call."""

    class Probe:
        def __call__(self, *args: Any, **kwargs: Any) -> tuple[int, Any]:
            return getrefcount(self), _getframe(1).f_locals["self"]

    module = nn.Module.__new__(nn.Module)
    module.__dict__[SLOT] = Probe()
    references, callee = module()
    if callee is not module:
        raise AttributeError("a module is not called by a method of its own")
    return int(references)


def _clear_slot_of_replicas(patches: Patches) -> None:
    """DataParallel copies a module's `__dict__` to other devices: a replica must not call the original."""
    replicate = vars(nn.Module)["_replicate_for_data_parallel"]

    def replicate_unmarked(self: nn.Module) -> nn.Module:
        replica: nn.Module = replicate(self)
        if isinstance(replica.__dict__.get(SLOT), RootCall):
            replica.__dict__[SLOT] = None
        return replica

    patches.replace(nn.Module, "_replicate_for_data_parallel", functools.update_wrapper(replicate_unmarked, replicate))


def _hide_slot_from_script(patches: Patches) -> None:
    """`torch.jit.script` looks at whatever is in a module's `__dict__`, and fails on the slot's annotation."""
    ignored = _recursive.ignored_attributes
    ignored.append(SLOT)
    patches.on_undo(lambda: ignored.remove(SLOT))
