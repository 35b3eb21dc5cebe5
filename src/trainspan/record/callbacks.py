"""The scopes of the API as pairs of calls, for frameworks whose hooks are told of a begin and of an end.

They need not be paired: an end without a begin is misuse, and so is a begin of what has not ended, which is then ended
first. There is one of each at a time; of phases, one of each name.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

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

    def start(self, name: str, make: "Callable[[], Scope]") -> None:
        """Begin the scope that `make` makes, under this name."""
        self._engine.safely(self._start, name, make)

    def end(self, name: str, error: BaseException | None) -> None:
        """End it; `error`: it failed by this."""
        self._engine.safely(self._end, name, error)

    def _start(self, name: str, make: "Callable[[], Scope]") -> None:
        engine = self._engine
        stale = engine.started.pop(name, None)
        if stale is not None:
            engine.misuse.count("unended", name)
            _exit(stale, None)
        if len(engine.started) >= _MOST:
            engine.misuse.count("unended", next(iter(engine.started)))
            _exit(engine.started.pop(next(iter(engine.started))), None)
        scope = make()
        engine.started[name] = scope
        scope.__enter__()

    def _end(self, name: str, error: BaseException | None) -> None:
        engine = self._engine
        scope = engine.started.pop(name, None)
        if scope is None:
            engine.misuse.count("end_without_start", name)
        else:
            _exit(scope, error)


_MOST = 64


def _exit(scope: "Scope", error: Any) -> None:
    scope.__exit__(type(error) if error is not None else None, error, None)
