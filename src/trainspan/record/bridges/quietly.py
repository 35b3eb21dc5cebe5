"""How a bridge tells what a framework does: nothing that goes wrong with it reaches the framework."""

import functools
from collections.abc import Callable
from typing import Any

from trainspan.guard import warn_once


def quietly(framework: str, action: Callable[[], object]) -> None:
    """Do that; what it raises is said once on stderr, under the name by which people know the framework."""
    try:
        action()
    except Exception as error:
        warn_once(framework, f"not all that {framework} does is followed: {type(error).__name__}: {error}")


def telling(framework: str, call: Callable[..., Any], tell: Callable[..., object]) -> Callable[..., Any]:
    """`call`, with `tell` called before it with the same."""

    def told(*args: Any, **kwargs: Any) -> Any:
        quietly(framework, lambda: tell(*args, **kwargs))
        return call(*args, **kwargs)

    return functools.update_wrapper(told, call)
