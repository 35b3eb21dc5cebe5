"""Forward of the root module only, and validation: a root called without gradients and not in training mode.

A root all of whose parameters are frozen is no model under training (a teacher, a feature extractor): its calls are
forward, whatever their mode.

`nn.Module` itself consults a slot before it calls: `_compiled_call_impl`. Roots are found while that of the class is
filled: every outermost callee that has parameters is one (a loss has none). After the first step the class's slot is
empty again, and each root keeps a `RootCall` in its own. So an inner module costs nothing, and pickling,
`copy.deepcopy`, `state_dict`, `torch.export`, `torch.jit` and `torch.compile` do not see it. Cost: 0.5 µs a forward.

`nn.Module.__call__` stays as it is: the compiler compares it, guards on it, and is handed it by `torch.compile(model)`.

A model that was compiled or wrapped later is found again: a step with a backward and no forward starts another search.
"""

import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.jit import _recursive

from trainspan.names import Phase
from trainspan.record.marker import Marker
from trainspan.record.patches import Patches
from trainspan.record.traced import compiler, is_traced

_FORWARD = int(Phase.FORWARD)
_VALIDATION = int(Phase.VALIDATION)
_SLOT = "_compiled_call_impl"
_SEARCHES_MAX = 8
_ENGINES = "deepspeed.runtime."

_is_grad_enabled = torch.is_grad_enabled


class RootCall:
    """What a root's slot holds: marks the call, then does what the module would have done.

    It refers to the module weakly, so that deleting the model frees it at once. A copy or a pickle of it is None,
    which is what an uninstrumented module has in the slot.
    """

    __slots__ = ("around", "called", "inner", "mode", "module", "without_grad")

    def __init__(self, module: nn.Module, inner: Callable[..., Any] | None, marker: Marker, called: list[int]):
        self.module = weakref.ref(module)
        self.mode = weakref.ref(_moded(module))
        self.inner = inner
        self.around = marker.around
        self.called = called
        self.without_grad = _phase_without_grad(module)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        module: Any = self.module()
        call = self.inner or module._call_impl
        if is_traced() or compiler._is_compiling_flag:
            return call(*args, **kwargs)
        phase = _FORWARD if _is_grad_enabled() or self.trains() else self.without_grad
        return self.around(call, phase, args, kwargs, self.called)

    def trains(self) -> bool:
        """Whether the module is in training mode."""
        moded = self.mode()
        return moded is None or moded.training

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        return None

    def __copy__(self) -> None:
        return None

    def __reduce__(self) -> tuple[Any, tuple[()]]:
        return type(None), ()


class RootSearch:
    """Finds the roots and keeps them marked.

    `begin()` when recording begins, `step_ended()` at the end of every step.

    Attributes:
        autocast: the type that autocast computed in when a root was found; None: it was off.
    """

    def __init__(self, marker: Marker, patches: Patches):
        self.autocast: str | None = None
        self._marker = marker
        self._called = [0]
        self._searching = False
        self._searches = 0
        self._wait_steps = 0
        self._found: list[weakref.ref[nn.Module]] = []
        self._marked: list[weakref.ref[nn.Module]] = []
        self._compiled: list[weakref.ref[nn.Module]] = []  # in place: their own slot hides them from the search
        self._candidates: list[RootCall] = []
        self._look = self._searching_call()
        patches.on_undo(self._undo)
        _follow_compile(patches, self._compiled_in_place)

    def step_ended(self) -> None:
        """End a search, or begin another one when a whole step has shown no forward. Cost: 0.1 µs."""
        called = self._called
        if self._searching or not called[0]:
            self._look_around()
        called[0] = 0

    def called(self) -> bool:
        """Whether a root has been called in this step."""
        return bool(self._called[0])

    def roots(self) -> list[nn.Module]:
        """The roots that live."""
        found = (reference() for reference in self._marked)
        return [module for module in found if module is not None]

    def begin(self) -> None:
        """Look for roots until the next step ends."""
        self._searching = True
        for reference in self._compiled:
            module = reference()
            if module is not None:
                self._try(module)
        self._compiled.clear()
        self._fill_class_slot()

    def _look_around(self) -> None:
        if self._searching:
            self._end()
        if not self._called[0]:
            self._miss()

    def _end(self) -> None:
        self._searching = False
        nn.Module._compiled_call_impl = None
        for reference in self._found:
            module = reference()
            if module is not None:
                self._mark(module)
        self._found.clear()
        for candidate in self._candidates:
            self._judge(candidate)
        self._candidates.clear()

    def _fill_class_slot(self) -> None:
        if self._searching:
            nn.Module._compiled_call_impl = self._look

    def _compiled_in_place(self, module: nn.Module, *, was_root: bool) -> None:
        if was_root:
            self._mark(module)
        elif self._searching:
            self._try(module)
        else:
            self._compiled.append(weakref.ref(module))

    def _try(self, module: nn.Module) -> None:
        """Mark a module for the time of the search, with a count of its own."""
        inner = module.__dict__.get(_SLOT)
        if not isinstance(inner, RootCall):
            candidate = RootCall(module, inner, self._marker, [0])
            module.__dict__[_SLOT] = candidate
            self._candidates.append(candidate)

    def _judge(self, candidate: RootCall) -> None:
        """Keep a candidate that was an outermost callee: a root."""
        module = candidate.module()
        if module is None or module.__dict__.get(_SLOT) is not candidate:
            return
        module.__dict__[_SLOT] = candidate.inner
        if candidate.called[0]:
            self._called[0] = 1
            self._mark(module)

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
                if call.inner is None:
                    del module.__dict__[_SLOT]
        self._marked.clear()

    def _searching_call(self) -> Callable[..., Any]:
        """What fills the class's slot during a search. Cost: 1 µs for each module called."""
        found, called, look_on = self._found, self._called, self._fill_class_slot
        enter, resume, abort = self._marker.enter, self._marker.resume, self._marker.abort

        def call_module(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            call = module._call_impl
            if is_traced() or compiler._is_compiling_flag or not _has_parameters(module):
                return call(*args, **kwargs)
            outer = enter(_FORWARD if _is_grad_enabled() or _moded(module).training else _phase_without_grad(module))
            if outer < 0:
                return call(*args, **kwargs)
            called[0] = 1
            if not any(reference() is module for reference in found):
                found.append(weakref.ref(module))
                self.autocast = _autocast()
            # Nothing below is a root, and a compiler that looks at the modules below must find the slot empty.
            nn.Module._compiled_call_impl = None
            try:
                output = call(*args, **kwargs)
            except BaseException:
                abort(outer)
                raise
            finally:
                look_on()
            resume(outer)
            return output

        return call_module


def install(marker: Marker, patches: Patches) -> RootSearch:
    """A search for roots; it begins when it is told to.

    Raises:
        AttributeError, KeyError: this torch calls modules in another way; forward then shows as `other`.
    """
    if vars(nn.Module)[_SLOT] is not None:
        raise AttributeError(f"{_SLOT} is taken")
    _clear_slot_of_replicas(patches)
    _hide_slot_from_script(patches)
    return RootSearch(marker, patches)


def _phase_without_grad(module: nn.Module) -> int:
    return _VALIDATION if any(parameter.requires_grad for parameter in _parameters_of(module)) else _FORWARD


def _moded(module: nn.Module) -> nn.Module:
    """The module whose mode counts: that of an engine of DeepSpeed never changes, only that of the model in it."""
    if type(module).__module__.startswith(_ENGINES):
        return module._modules.get("module") or module
    return module


def _autocast() -> str | None:
    for device in ("cuda", "cpu"):
        if torch.is_autocast_enabled(device):
            return str(torch.get_autocast_dtype(device)).removeprefix("torch.")
    return None


def _has_parameters(module: nn.Module) -> bool:
    return next(_parameters_of(module), None) is not None


def _parameters_of(module: nn.Module) -> Iterator[nn.Parameter]:
    # Not `module.parameters()`: a model may have one of its own, with other arguments and another answer.
    yield from (parameter for parameter in module._parameters.values() if parameter is not None)
    for child in module._modules.values():
        if child is not None:
            yield from _parameters_of(child)


def _follow_compile(patches: Patches, compiled: Callable[..., None]) -> None:
    """Call `compiled(module, was_root=…)` each time a module has been compiled in place, which fills its slot."""
    compile_module = vars(nn.Module)["compile"]

    def compile_and_tell(self: nn.Module, *args: Any, **kwargs: Any) -> None:
        was_root = isinstance(self.__dict__.get(_SLOT), RootCall)
        compile_module(self, *args, **kwargs)
        compiled(self, was_root=was_root)

    compile_and_tell.__doc__ = compile_module.__doc__
    patches.replace(nn.Module, "compile", compile_and_tell)


def _clear_slot_of_replicas(patches: Patches) -> None:
    """DataParallel copies a module's `__dict__` to other devices: a replica must not call the original."""
    replicate = vars(nn.Module)["_replicate_for_data_parallel"]

    def replicate_unmarked(self: nn.Module) -> nn.Module:
        replica: nn.Module = replicate(self)
        if isinstance(replica.__dict__.get(_SLOT), RootCall):
            replica.__dict__[_SLOT] = None
        return replica

    patches.replace(nn.Module, "_replicate_for_data_parallel", replicate_unmarked)


def _hide_slot_from_script(patches: Patches) -> None:
    """`torch.jit.script` looks at whatever is in a module's `__dict__`, and fails on the slot's annotation."""
    ignored = _recursive.ignored_attributes
    ignored.append(_SLOT)
    patches.on_undo(lambda: ignored.remove(_SLOT))
