"""What `with trainspan.…:` and `@trainspan.…` are given, also where nothing is recorded.

While trainspan is off, all of them are one object, whose `__enter__` and `__exit__` are C functions: entered and left
in 60 ns, where two methods in Python take 120. It decorates a function by giving it back.
"""

import functools
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])
S = TypeVar("S", bound="Scope")

_COROUTINE = 0x80
_GENERATOR = 0x20 | 0x200  # asynchronous ones too
# Source: https://docs.python.org/3/library/inspect.html#code-objects-bit-flags; the module takes 8 ms to import.


class Scope:
    """A stretch of the script's work: a context manager, and a decorator. By itself it does nothing.

    As a decorator it is around each call of a function, and until the end of one that is asynchronous. A generator is
    left as it is: what it does is done between its values, by whoever asks for them; so is what is no function.
    """

    __slots__ = ()

    def __enter__(self: S) -> S:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, stack: TracebackType | None
    ) -> None:
        """Nothing: an exception passes."""

    def __call__(self, function: F) -> F:
        """The function with this around it."""
        return function

    def note(self, /, **attributes: Any) -> None:
        """Add attributes to the span, if there is one: texts, numbers and truth values; tensors are refused."""

    def again(self) -> "Scope":
        """Another scope like this one."""
        return self


def decorated(function: F, scope: Scope, is_traced: Callable[[], bool]) -> F:
    """`function` with a new scope around each call.

    It holds on to nothing but these three: who sends a function with all that is in it, as Ray does, pickles them.

    Args:
        function: to be called.
        scope: is made again for each call.
        is_traced: whether a compiler traces the call; nothing is around it then.
    """
    code = getattr(function, "__code__", None)
    flags = code.co_flags if code is not None else 0
    if flags & _GENERATOR:
        return function

    def call(*args: Any, **kwargs: Any) -> Any:
        if is_traced():
            return function(*args, **kwargs)
        with scope.again():
            return function(*args, **kwargs)

    async def call_and_wait(*args: Any, **kwargs: Any) -> Any:
        with scope.again():
            return await function(*args, **kwargs)

    wrapper: Any = call_and_wait if flags & _COROUTINE else call
    return functools.update_wrapper(wrapper, function)  # type: ignore[return-value]  # its name, and its signature


class Idle(Scope):
    """The scope of a process that records nothing; there is one, which is its own copy."""

    __slots__ = ("__weakref__",)

    def __reduce__(self) -> str:
        return "IDLE"  # in this module: what was pickled with it must find it here


IDLE = Idle()
# Any C callable that takes what `with` hands it will do. These take 49 ns together; two methods take 117.
Idle.__enter__ = weakref.ref(IDLE)  # type: ignore[assignment,method-assign]  # no method, as said
Idle.__exit__ = type.__prepare__  # type: ignore[assignment,method-assign]  # an empty dict, which is not true
