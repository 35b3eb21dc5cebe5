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
        self._awaited: list[Callable[[], None]] = []  # ends of imports that are under way

    def add(self, name: str, callback: "Callable[[ModuleType, int], None]") -> None:
        """Call `callback(module, started_ns)` once `name` is imported; at once if it is. It must not raise.

        What is being imported may itself have asked for what has us called here: a framework for torch, before it has
        defined anything.
        """

        def ended() -> None:
            if ended in self._awaited:
                self._awaited.remove(ended)
                self.add(name, callback)

        module = sys.modules.get(name)
        if module is None:
            self._callbacks[name] = callback
        elif _call_at_end(module, ended):
            self._awaited.append(ended)
        else:
            callback(module, _now_ns())

    def clear(self) -> None:
        """Forget every callback that has not come."""
        self._callbacks.clear()
        self._awaited.clear()

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


def _call_at_end(module: "ModuleType", action: "Callable[[], None]") -> bool:
    """Call `action()` when the import of `module` ends, also where it fails; False: none is under way.

    Source: `importlib._bootstrap._load_unlocked` notes in the spec that it has begun, and then that it has ended. Its
    loader is running already, and no import need come after this one.
    """
    spec: Any = getattr(module, "__spec__", None)
    if not getattr(spec, "_initializing", False):
        return False
    kind: Any = type(spec)

    def set_and_tell(spec: "Any", name: str, value: "Any") -> None:
        if name != "_initializing" or value:
            kind.__setattr__(spec, name, value)
            return
        spec.__class__ = kind  # before the rest: another one may wait, too
        setattr(spec, name, value)
        action()

    try:
        spec.__class__ = type(kind.__name__, (kind,), {"__setattr__": set_and_tell})
    except TypeError:  # a loader's own kind of spec, with slots
        return False
    return True


def _now_ns() -> int:
    import time  # built in: no file is read

    return time.monotonic_ns()


watch = ImportWatch()
"""The one watch of this process; the start-up hook puts it in front of Python's own finders."""
