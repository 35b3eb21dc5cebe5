"""Tells when a module has been imported, so that what we hook is never imported by us.

Every Python process that may train loads this at its start: it imports nothing that Python has not loaded already.
"""

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any


class ImportWatch:
    """Calls back when one of some modules has been imported. A miss costs one dictionary lookup per import."""

    def __init__(self) -> None:
        self._callbacks: dict[str, Callable[[ModuleType, int], None]] = {}
        self._placed: dict[str, Callable[[ModuleType], None]] = {}

    def add(self, name: str, callback: "Callable[[ModuleType, int], None]") -> None:
        """Call `callback(module, started_ns)` once `name` is imported; at once if it is. It must not raise."""
        if name in sys.modules:
            callback(sys.modules[name], _now_ns())
        else:
            self._callbacks[name] = callback

    def clear(self) -> None:
        """Forget every callback that has not come."""
        self._callbacks.clear()

    def find_spec(
        self, name: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None
    ) -> "ModuleSpec | None":
        """The spec the other finders give, with a loader that calls back; None for all other names."""
        if name not in self._callbacks:
            return None
        for finder in sys.meta_path:
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find(name, path, target) if find else None
            if spec is not None:
                self._call_after_exec(spec)
                return spec
        return None

    def _call_after_exec(self, spec: "ModuleSpec") -> None:
        # The callback stays until a module has been executed: to look for one (`importlib.util.find_spec`, as
        # transformers does for torch) is not to import it, and an import that failed may be tried again.
        loader: Any = spec.loader
        exec_module = getattr(loader, "exec_module", None)
        if exec_module is None:
            return
        # Another finder may ask all of them, this one too: what it found comes back by way of us, as it is or as what
        # stands for it (wrapt's proxies set and show what belongs to the loader). A second layer would call itself.
        placed = self._placed.get(spec.name)
        if placed is not None and getattr(loader, "__dict__", {}).get("exec_module") is placed:
            return

        def exec_then_call(module: "ModuleType") -> None:
            started_ns = _now_ns()
            exec_module(module)
            del loader.exec_module  # leave the loader as it was
            self._placed.pop(spec.name, None)
            callback = self._callbacks.pop(spec.name, None)
            if callback is not None:
                callback(module, started_ns)

        loader.exec_module = self._placed[spec.name] = exec_then_call  # on this spec's instance alone


def _now_ns() -> int:
    import time  # built in: no file is read

    return time.monotonic_ns()


watch = ImportWatch()
"""The one watch of this process; the start-up hook puts it in front of Python's own finders."""
