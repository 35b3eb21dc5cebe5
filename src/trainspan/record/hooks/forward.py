"""Forward of the root module only, and validation: a root called without gradients and not in training mode.

A root that is not trained is validated (an average of the weights) or helps to train (a teacher, a reference):
its mark says so, and the relay sees by what becomes of the batch which of the two it is. Trained is what an optimizer
was made with, or what was found while gradients were kept: some frameworks give their optimizers copies.

`nn.Module` itself consults a slot before it calls: `_compiled_call_impl`. Roots are found while that of the class is
filled: every outermost callee that has parameters is one (a loss has none), and keeps a `RootCall` in its own slot.
After two steps that of the class is empty again. So an inner module costs nothing. Cost: 0.5 µs a forward.

It takes two steps because the first ends where the first optimizer has stepped: an ensemble, or a critic with an
optimizer of its own, has not been called by then.

`nn.Module.__call__` stays as it is: the compiler compares it, guards on it, and is handed it by `torch.compile(model)`.

What comes later is found by another search. It begins where an optimizer is made, where a DataLoader gives its first
batch, and after a step without a forward: the model was compiled or wrapped.
"""

import functools
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, dataloader

from trainspan.guard import warn_once
from trainspan.names import CUSTOM_FIRST, Phase
from trainspan.record.hooks.root_call import SLOT, RootCall, hide_slot, moded, withdraw
from trainspan.record.marker import Marker
from trainspan.record.patches import Patches
from trainspan.record.traced import compiler, is_traced
from trainspan.recording.layout import OPERAND_SHIFT, UNTRAINED

_FORWARD = int(Phase.FORWARD)
_VALIDATION = int(Phase.VALIDATION)
_OTHER = int(Phase.OTHER)
_VALIDATION_UNTRAINED = UNTRAINED << OPERAND_SHIFT | _VALIDATION
_STEPS = 2
_SEARCHES_MAX = 8
_ASKED_MAX = 100
_FOUND_MAX = 1000
# Each search changes the class a few times, and Python 3.13 stops caching what it finds in a class after 1000 changes.

_is_grad_enabled = torch.is_grad_enabled


_TELLING: Any = getattr(dataloader, "_BaseDataLoaderIter", ())
"""What tells of its batches."""


class RootSearch:
    """Finds the roots and keeps them marked.

    `begin()` when recording begins, `step_ended()` at the end of every step; `made(optimizer)`, and `fetched(iterator)`
    with the first batch that an iterator of a DataLoader gives.

    Attributes:
        autocast: the type that autocast computed in when a root was found; None: it was off.
    """

    def __init__(self, marker: Marker, patches: Patches):
        self.autocast: str | None = None
        self._marker = marker
        self._called = [0]
        self._searching = False
        self._steps_left = 0
        self._searches = 0
        self._asked = 0
        self._wait_steps = 0
        # By the optimizer: the parameters it was made with.
        self._trained: dict[int, tuple[frozenset[int], weakref.ref[Any]]] = {}
        self._loaders: dict[int, weakref.ref[Any]] = {}
        # By the iterator: its loader, and itself.
        self._loader_of: dict[int, tuple[weakref.ref[Any], weakref.ref[Any]]] = {}
        self._marked: dict[int, weakref.ref[nn.Module]] = {}
        self._found = 0  # by the search that is under way, or was
        self._compiled: list[weakref.ref[nn.Module]] = []  # in place: their own slot hides them from the search
        self._candidates: list[RootCall] = []
        self._look = self._searching_call()
        patches.on_undo(self._undo)
        _follow_compile(patches, self._compiled_in_place)

    def step_ended(self) -> None:
        """Go on with a search, or begin another one when a whole step has shown no forward. Cost: 0.1 µs."""
        called = self._called
        if self._searching or not called[0]:
            self._look_around()
        called[0] = 0

    def called(self) -> bool:
        """Whether a root has been called in this step."""
        return bool(self._called[0])

    def roots(self) -> list[nn.Module]:
        """The models under training; all that are called, where no optimizer's parameters are theirs."""
        marked = self._calls()
        trained = [module for module, call in marked if call.without_grad == _VALIDATION]
        return trained or [module for module, _ in marked]

    def made(self, optimizer: Any) -> None:
        """Take over that there is another optimizer: what it trains may be another model."""
        number = id(optimizer)
        own = _parameters_in(optimizer)
        self._trained[number] = own, weakref.ref(optimizer, lambda _: self._trained.pop(number, None))
        self._ask()

    def iterated(self, loader: Any, iterator: Any) -> None:
        """Take over that a DataLoader is asked for its batches, by way of this iterator."""
        if not isinstance(iterator, _TELLING):
            self._announce(loader)  # whose batches nobody tells of
            return
        number = id(iterator)
        itself = weakref.ref(iterator, lambda _: self._loader_of.pop(number, None))
        self._loader_of[number] = weakref.ref(loader), itself

    def fetched(self, iterator: Any) -> None:
        """Take over that an iterator has given its first batch; the first of a loader may be for another model.

        Not where the iterator is made: some loaders make one for good, long before, and not by way of `iter`.
        A batch while a search is under way is not the first: some look at one long before they evaluate with others.
        """
        known = self._loader_of.get(id(iterator))
        loader = None if known is None else known[0]()
        # Not `or`, which would ask it for its length.
        self._announce(iterator if loader is None else loader)

    def _announce(self, loader: Any) -> None:
        number, searching = id(loader), self._searching
        if number not in self._loaders and self._ask() and not searching:
            self._loaders[number] = weakref.ref(loader, lambda _: self._loaders.pop(number, None))

    def begin(self) -> None:
        """Look for roots until two steps have ended, or a thousand have been found where no step ends."""
        self._found = self._found if self._searching else 0
        self._searching = True
        self._steps_left = _STEPS
        for reference in self._compiled:
            module = reference()
            if module is not None:
                self._try(module)
        self._compiled.clear()
        self._fill_class_slot()

    def _ask(self) -> bool:
        """Begin a search, or prolong the one that is under way; False: not here, or not any more."""
        marker = self._marker
        # Within a phase, as the validation of a framework, whatever is called belongs to that.
        if not marker.mine() or _OTHER < marker.now() < CUSTOM_FIRST or self._asked == _ASKED_MAX:
            return False
        self._asked += not self._searching
        self.begin()
        return True

    def _look_around(self) -> None:
        if self._searching:
            self._judge()
            self._steps_left -= 1
            if self._steps_left:
                return
            self._end()
        if not self._called[0]:
            self._miss()

    def _end(self) -> None:
        self._searching = False
        nn.Module._compiled_call_impl = None
        for candidate in self._candidates:
            withdraw(candidate)
        self._candidates.clear()
        for module, call in self._calls():
            if call.without_grad != _VALIDATION:
                call.without_grad = self._phase_without_grad(module)

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
        inner = module.__dict__.get(SLOT)
        if not isinstance(inner, RootCall):
            candidate = RootCall(module, inner, self._marker, [0], self._phase_without_grad(module))
            module.__dict__[SLOT] = candidate
            self._candidates.append(candidate)

    def _judge(self) -> None:
        """Keep the candidates that were an outermost callee: roots."""
        for candidate in [candidate for candidate in self._candidates if candidate.called[0]]:
            self._candidates.remove(candidate)
            module = withdraw(candidate)
            if module is not None:
                self._called[0] = 1
                self._mark(module)

    def _calls(self) -> list[tuple[nn.Module, RootCall]]:
        """The roots that live, with what marks their calls."""
        modules = [reference() for reference in tuple(self._marked.values())]
        slots = ((module, module.__dict__.get(SLOT)) for module in modules if module is not None)
        return [(module, call) for module, call in slots if isinstance(call, RootCall)]

    def _phase_without_grad(self, module: nn.Module, *, with_grad: bool = False) -> int:
        """What a call without gradients in eval mode is: a validation, for sure where the module is trained.

        Args:
            module: that is called.
            with_grad: whether it was called in a way that keeps gradients.
        """
        try:
            own = {id(parameter) for parameter in _parameters_of(module) if parameter.requires_grad}
        except Exception as error:
            _warn_of(module, error)
            return _VALIDATION_UNTRAINED
        trained = any(not own.isdisjoint(parameters) for parameters, _ in tuple(self._trained.values()))
        return _VALIDATION if trained or (own and with_grad) else _VALIDATION_UNTRAINED

    def _miss(self) -> None:
        # The wait doubles each time: a job whose forward cannot be seen (a step compiled whole) must not pay for it.
        self._wait_steps -= 1
        if self._wait_steps < 0 and self._searches < _SEARCHES_MAX:
            self._searches += 1
            self._wait_steps = 1 << self._searches
            self.begin()

    def _mark(self, module: nn.Module, *, with_grad: bool = False) -> None:
        inner = module.__dict__.get(SLOT)
        if isinstance(inner, RootCall):
            return
        without_grad = self._phase_without_grad(module, with_grad=with_grad)
        module.__dict__[SLOT] = RootCall(module, inner, self._marker, self._called, without_grad)
        number = id(module)
        self._marked[number] = weakref.ref(module, lambda _: self._marked.pop(number, None))
        self._found += 1
        if self._found == _FOUND_MAX and self._searching:
            self._end()

    def _undo(self) -> None:
        if self._searching:
            self._judge()
            self._end()
        for reference in tuple(self._marked.values()):
            module = reference()
            call = module.__dict__.get(SLOT) if module is not None else None
            if module is not None and isinstance(call, RootCall):
                module.__dict__[SLOT] = call.inner
                if call.inner is None:
                    del module.__dict__[SLOT]
        self._marked.clear()

    def _searching_call(self) -> Callable[..., Any]:
        """What fills the class's slot during a search. Cost: 1 µs for each module called."""
        called, look_on, mark, without_grad = self._called, self._fill_class_slot, self._mark, self._phase_without_grad
        enter, resume, abort = self._marker.enter, self._marker.resume, self._marker.abort

        def call_module(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            call = module._call_impl
            if is_traced() or compiler._is_compiling_flag or not _has_parameters(module):
                return call(*args, **kwargs)
            with_grad = _is_grad_enabled()
            outer = enter(_FORWARD if with_grad or moded(module).training else without_grad(module))
            if outer < 0:
                return call(*args, **kwargs)
            called[0] = 1
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
                mark(module, with_grad=with_grad)
            resume(outer)
            return output

        return call_module


def install(marker: Marker, patches: Patches) -> RootSearch:
    """A search for roots; it begins when it is told to.

    Raises:
        AttributeError, KeyError: this torch calls modules in another way; forward then shows as `other`.
    """
    hide_slot(patches)
    search = RootSearch(marker, patches)
    _follow_loaders(patches, search)
    return search


def _autocast() -> str | None:
    for device in ("cuda", "cpu"):
        if torch.is_autocast_enabled(device):
            return str(torch.get_autocast_dtype(device)).removeprefix("torch.")
    return None


def _parameters_in(optimizer: Any) -> frozenset[int]:
    """What an optimizer trains; nothing that is known, where it is built in another way than torch's."""
    try:
        return frozenset(id(parameter) for group in optimizer.param_groups for parameter in group["params"])
    except (AttributeError, KeyError, TypeError):
        return frozenset()


def _has_parameters(module: nn.Module) -> bool:
    try:
        return next(_parameters_of(module), None) is not None
    except Exception as error:
        _warn_of(module, error)
        return False


def _warn_of(module: nn.Module, error: Exception) -> None:
    kind = type(module).__name__
    warn_once("parameters", f"the parameters of {kind} are not seen ({type(error).__name__}: {error})")


def _parameters_of(module: nn.Module) -> Iterator[nn.Parameter]:
    # Not `module.parameters()`: a model may have one of its own, with other arguments and another answer.
    for parameter in module._parameters.values():
        if parameter is not None:
            yield parameter
    if not module._modules:
        return  # most of the modules that are called
    # A module may be in several others, and even in its own.
    left, seen = [module], {id(module)}
    while left:
        for child in left.pop()._modules.values():
            if child is not None and id(child) not in seen:
                seen.add(id(child))
                left.append(child)
                yield from (parameter for parameter in child._parameters.values() if parameter is not None)


def _follow_compile(patches: Patches, compiled: Callable[..., None]) -> None:
    """Call `compiled(module, was_root=…)` each time a module has been compiled in place, which fills its slot."""
    compile_module = vars(nn.Module)["compile"]

    def compile_and_tell(self: nn.Module, *args: Any, **kwargs: Any) -> None:
        was_root = isinstance(self.__dict__.get(SLOT), RootCall)
        compile_module(self, *args, **kwargs)
        compiled(self, was_root=was_root)

    patches.replace(nn.Module, "compile", functools.update_wrapper(compile_and_tell, compile_module))


def _follow_loaders(patches: Patches, search: RootSearch) -> None:
    iterate = vars(DataLoader)["__iter__"]

    def make_iterator(self: Any) -> Any:
        iterator = iterate(self)
        if not (is_traced() or compiler._is_compiling_flag):
            search.iterated(self, iterator)
        return iterator

    patches.replace(DataLoader, "__iter__", functools.update_wrapper(make_iterator, iterate))
