"""The scopes of the API as pairs of calls, for frameworks whose hooks are told of a begin and of an end.

They need not be paired: an end without a begin is misuse, and so is a begin of what has not ended, which is then ended
first. There is one of each at a time; of phases, one of each name.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from trainspan.record.arguments import text_of

if TYPE_CHECKING:
    from trainspan.record.engine import Engine
    from trainspan.record.scope import Scope


class Callbacks:
    """What has begun and not ended.

    Args:
        engine: of this process.
    """

    def __init__(self, engine: "Engine"):
        self._engine = engine

    def start(self, name: str, make: "Callable[[], Scope]", phase: object = None) -> None:
        """Begin the scope that `make` makes, under this name. `phase`: which one it is, of phases."""
        self._engine.safely(self._start, _name_of(name, phase), make)

    def end(self, name: str, error: Any, phase: object = None) -> None:
        """End it; `error`: it failed by this."""
        self._engine.safely(self._end, _name_of(name, phase), error)

    def _start(self, name: str, make: "Callable[[], Scope]") -> None:
        engine = self._engine
        stale = engine.started.pop(name, None)
        if stale is not None:
            engine.misuse.count("unended", name)
            _exit(stale, None)
        if len(engine.started) >= _MOST:
            engine.misuse.count("unended", next(iter(engine.started)))
            _exit(engine.started.pop(next(iter(engine.started))), None)
        try:
            scope = make()
        except TypeError:  # none of ours: it has other arguments
            engine.misuse.count("argument", f"{name}_start(…)")
            return
        engine.started[name] = scope
        scope.__enter__()

    def _end(self, name: str, error: Any) -> None:
        engine = self._engine
        if error is not None and not issubclass(type(error), BaseException):
            engine.misuse.count("argument", f"{name}_end(error=…)")
            error = None
        scope = engine.started.pop(name, None)
        if scope is None:
            engine.misuse.count("end_without_start", name)
        else:
            _exit(scope, error)


_MOST = 64


def _name_of(name: str, phase: object) -> str:
    return name if phase is None else f"{name} {text_of(phase)!r}"


def _exit(scope: "Scope", error: Any) -> None:
    scope.__exit__(type(error) if error is not None else None, error, None)
