"""Forward of the root module only, and validation: a root called without gradients and not in training mode.

A root all of whose parameters are frozen is no model under training (a teacher, a feature extractor): its calls are
forward, whatever their mode.

Roots are found while `nn.Module.__call__` is patched on the class: every outermost callee that has parameters is one
(a loss has none). After the first step the class is restored, and each root keeps a `RootCall` in
`_compiled_call_impl`, the slot `nn.Module` itself consults. So an inner module costs nothing, and pickling,
`copy.deepcopy`, `state_dict`, `torch.export` and `torch.jit` do not see it. Cost: 0.5 µs a forward.

A model that was compiled or wrapped later is found again: a step with a backward and no forward starts another search.
"""

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from trainspan.names import Phase
from trainspan.record.marker import Marker
from trainspan.record.patches import Patches

_FORWARD = int(Phase.FORWARD)
_VALIDATION = int(Phase.VALIDATION)
_SLOT = "_compiled_call_impl"
_SEARCHES_MAX = 8

_is_compiling = torch.compiler.is_compiling
_is_grad_enabled = torch.is_grad_enabled


class RootCall:
    """What a root's slot holds: marks the call, then does what the module would have done.

    It refers to the module weakly, so that deleting the model frees it at once. A copy or a pickle of it is None,
    which is what an uninstrumented module has in the slot.
    """

    __slots__ = ("abort", "called", "enter", "inner", "module", "resume", "without_grad")

    def __init__(self, module: nn.Module, inner: Callable[..., Any] | None, marker: Marker, called: list[int]):
        self.module = weakref.ref(module)
        self.inner = inner
        self.enter = marker.enter
        self.resume = marker.resume
        self.abort = marker.abort
        self.called = called
        self.without_grad = _phase_without_grad(module)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        module: Any = self.module()
        call = self.inner or module._call_impl
        if _is_compiling():
            return call(*args, **kwargs)
        outer = self.enter(_FORWARD if _is_grad_enabled() or module.training else self.without_grad)
        if outer < 0:
            return call(*args, **kwargs)
        self.called[0] = 1
        try:
            output = call(*args, **kwargs)
        except BaseException:
            self.abort(outer)
            raise
        self.resume(outer)
        return output

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        return None

    def __copy__(self) -> None:
        return None

    def __reduce__(self) -> tuple[Any, tuple[()]]:
        return type(None), ()


class RootSearch:
    """Finds the roots and keeps them marked.

    `begin()` when recording begins, `step_ended()` at the end of every step.
    """

    def __init__(self, marker: Marker, patches: Patches):
        self._marker = marker
        self._called = [0]
        self._searching = False
        self._searches = 0
        self._wait_steps = 0
        self._found: list[weakref.ref[nn.Module]] = []
        self._marked: list[weakref.ref[nn.Module]] = []
        self._class_call: Any = vars(nn.Module)["__call__"]
        patches.on_undo(self._undo)
        _keep_slot_after_compile(patches, self._mark)

    def step_ended(self) -> None:
        """End a search, or begin another one when a whole step has shown no forward. Cost: 0.1 µs."""
        if self._searching:
            self._end()
        elif not self._called[0]:
            self._miss()
        self._called[0] = 0

    def begin(self) -> None:
        """Look for roots until the next step ends."""
        self._searching = True
        nn.Module.__call__ = self._searching_call()  # type: ignore[method-assign]

    def _end(self) -> None:
        self._searching = False
        nn.Module.__call__ = self._class_call  # type: ignore[method-assign]
        for reference in self._found:
            module = reference()
            if module is not None:
                self._mark(module)
        self._found.clear()

    def _miss(self) -> None:
        # The wait doubles each time: a job whose forward cannot be seen (a step compiled whole) must not pay for it.
        self._wait_steps -= 1
        if self._wait_steps < 0 and self._searches < _SEARCHES_MAX:
            self._searches += 1
            self._wait_steps = 1 << self._searches
            self.begin()

    def _mark(self, module: nn.Module) -> None:
        inner = module.__dict__.get(_SLOT)
        if isinstance(inner, RootCall):
            return
        module.__dict__[_SLOT] = RootCall(module, inner, self._marker, self._called)
        self._marked.append(weakref.ref(module))

    def _undo(self) -> None:
        if self._searching:
            self._end()
        for reference in self._marked:
            module = reference()
            call = module.__dict__.get(_SLOT) if module is not None else None
            if module is not None and isinstance(call, RootCall):
                module.__dict__[_SLOT] = call.inner
        self._marked.clear()

    def _searching_call(self) -> Callable[..., Any]:
        """What stands in for `nn.Module.__call__` during a search. Cost: 0.2 µs for each module called."""
        call, found, called = self._class_call, self._found, self._called
        enter, resume, abort = self._marker.enter, self._marker.resume, self._marker.abort

        def call_module(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if _is_compiling() or isinstance(module.__dict__.get(_SLOT), RootCall) or not _has_parameters(module):
                return call(module, *args, **kwargs)
            outer = enter(_FORWARD if _is_grad_enabled() or module.training else _phase_without_grad(module))
            if outer < 0:
                return call(module, *args, **kwargs)
            called[0] = 1
            if not any(reference() is module for reference in found):
                found.append(weakref.ref(module))
            try:
                output = call(module, *args, **kwargs)
            except BaseException:
                abort(outer)
                raise
            resume(outer)
            return output

        return call_module


def install(marker: Marker, patches: Patches) -> RootSearch:
    """A search for roots; it begins when it is told to.

    Raises:
        AttributeError, KeyError: this torch calls modules in another way; forward then shows as `other`.
    """
    if _SLOT not in vars(nn.Module):
        raise KeyError(_SLOT)
    _clear_slot_of_replicas(patches)
    return RootSearch(marker, patches)


def _phase_without_grad(module: nn.Module) -> int:
    return _VALIDATION if any(parameter.requires_grad for parameter in module.parameters()) else _FORWARD


def _has_parameters(module: nn.Module) -> bool:
    return next(module.parameters(), None) is not None


def _keep_slot_after_compile(patches: Patches, mark: Callable[[nn.Module], None]) -> None:
    """`nn.Module.compile` overwrites the slot: mark the module again."""
    compile_module = vars(nn.Module)["compile"]

    def compile_and_mark(self: nn.Module, *args: Any, **kwargs: Any) -> None:
        was_root = isinstance(self.__dict__.get(_SLOT), RootCall)
        compile_module(self, *args, **kwargs)
        if was_root:
            mark(self)

    compile_and_mark.__doc__ = compile_module.__doc__
    patches.replace(nn.Module, "compile", compile_and_mark)


def _clear_slot_of_replicas(patches: Patches) -> None:
    """DataParallel copies a module's `__dict__` to other devices: a replica must not call the original."""
    replicate = vars(nn.Module)["_replicate_for_data_parallel"]

    def replicate_unmarked(self: nn.Module) -> nn.Module:
        replica: nn.Module = replicate(self)
        if isinstance(replica.__dict__.get(_SLOT), RootCall):
            replica.__dict__[_SLOT] = None
        return replica

    patches.replace(nn.Module, "_replicate_for_data_parallel", replicate_unmarked)
