"""Keeps torch.compile from compiling our own functions.

The compiler looks at every Python frame that runs below a compiled function and is not part of its graph: after a
graph break, or in a function it does not trace. There it would compile our hooks as if they were the user's, complain
about what it does not know in them, and count them. What it inlines while it traces is not touched by this; there our
hooks step aside by themselves (`torch.compiler.is_compiling`).
"""

import sys
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType

from trainspan.guard import warn_once
from trainspan.watch import ImportWatch

COMPILER_MODULE = "torch._dynamo.eval_frame"
_OURS = "trainspan."


def install(watch: ImportWatch) -> None:
    """Have our functions left alone by the compiler as soon as somebody imports it; nobody else pays."""
    watch.add(COMPILER_MODULE, lambda compiler, _: _leave_alone(compiler))


def _leave_alone(compiler: ModuleType) -> None:
    try:
        for name, module in list(sys.modules.items()):
            if name.startswith(_OURS):
                for code in codes_of(module):
                    compiler.skip_code(code)
    except Exception as error:
        warn_once("compiler", f"torch.compile may complain about trainspan ({type(error).__name__}: {error})")


def codes_of(module: ModuleType) -> Iterator[CodeType]:
    """The code of every function that is defined in `module`: of its classes, and inside other functions, too.

    And what it lists in `CODES`: those that it gives to functions.
    """
    yield from vars(module).get("CODES", {}).values()
    for value in list(vars(module).values()):
        if getattr(value, "__module__", None) == module.__name__:
            members = vars(value).values() if isinstance(value, type) else (value,)
            for member in members:
                function = getattr(member, "__func__", getattr(member, "fget", member))
                if isinstance(function, FunctionType):
                    yield from _with_inner(function.__code__)


def _with_inner(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _with_inner(constant)
