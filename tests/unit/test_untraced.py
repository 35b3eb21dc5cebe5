"""Which of our functions the compiler is told to leave alone."""

import sys
from collections.abc import Callable, Iterator
from types import CodeType, ModuleType

import pytest

from trainspan.record import marker, recorder, untraced
from trainspan.record.hooks import (
    amp,
    backward,
    collectives,
    dataloader,
    forward,
    generation,
    grad_clip,
    lifecycle,
    optimizer,
    root_call,
)
from trainspan.watch import ImportWatch

HOOKS = (
    *(marker, recorder, amp, backward, collectives, dataloader, forward, generation),
    *(grad_clip, lifecycle, optimizer, root_call),
)


@pytest.fixture
def compiler() -> Iterator[ModuleType]:
    """A compiler that has just been imported; its `skip_code` keeps what it is told in `told`."""
    fake = ModuleType(untraced.COMPILER_MODULE)
    told: list[CodeType] = []
    fake.__dict__.update(told=told, skip_code=told.append)
    before = sys.modules.get(untraced.COMPILER_MODULE)
    sys.modules[untraced.COMPILER_MODULE] = fake
    yield fake
    if before is None:
        del sys.modules[untraced.COMPILER_MODULE]
    else:
        sys.modules[untraced.COMPILER_MODULE] = before


def test_every_function_on_the_hot_path_is_left_alone(compiler: ModuleType) -> None:
    """One that is not costs the user a warning that names it, and a graph."""
    untraced.install(ImportWatch())

    told = {(code.co_filename.rpartition("/")[2], code.co_name) for code in compiler.told}
    assert {
        ("marker.py", "enter"),
        ("marker.py", "resume"),
        ("marker.py", "abort"),
        ("marker.py", "around"),
        ("marker.py", "around_inner"),
        ("marker.py", "turn"),
        ("marker.py", "step"),
        ("root_call.py", "__call__"),
        ("forward.py", "call_module"),
        ("forward.py", "step_ended"),
        ("backward.py", "run_backward"),
        ("grad_clip.py", "clip"),
        ("dataloader.py", "wait_for_batch"),
        ("optimizer.py", "before"),
        ("optimizer.py", "after"),
        ("optimizer.py", "_frames_of"),
        ("amp.py", "scaled_step"),
        ("collectives.py", "collective"),
        ("collectives.py", "allreduce"),
        ("collectives.py", "operand"),
        ("generation.py", "generate"),
        ("lifecycle.py", "noted"),
    } <= told


@pytest.mark.parametrize("module", HOOKS)
def test_code_is_that_of_the_functions_that_run(module: ModuleType) -> None:
    """The compiler knows a function by its code object: an equal one would not do."""
    functions: list[Callable[..., object]] = [
        value for value in vars(module).values() if callable(value) and hasattr(value, "__code__")
    ]

    codes = list(untraced.codes_of(module))

    own = [function.__code__ for function in functions if function.__module__ == module.__name__]
    assert own
    assert all(any(code is found for found in codes) for code in own)


def test_compiler_that_cannot_be_told_is_no_failure(compiler: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    """The import that the user has asked for goes on."""
    del compiler.__dict__["skip_code"]

    untraced.install(ImportWatch())

    assert "torch.compile may complain" in capsys.readouterr().err
