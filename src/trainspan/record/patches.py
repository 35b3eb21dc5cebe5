"""What has been put into torch in place of something else, so that it can be taken out again."""

from collections.abc import Callable
from typing import Any


class Patches:
    """Replaced attributes, in order. `undo` puts every original back, the last first."""

    def __init__(self) -> None:
        self._undos: list[Callable[[], object]] = []

    def replace(self, owner: Any, name: str, value: Any) -> Any:
        """Set `owner.name` to `value`; the original, as it stood in the owner's own namespace, comes back."""
        original = vars(owner)[name]
        setattr(owner, name, value)
        self._undos.append(lambda: setattr(owner, name, original))
        return original

    def on_undo(self, action: Callable[[], object]) -> None:
        """Call `action()` when the patches are undone."""
        self._undos.append(action)

    def undo(self) -> None:
        """Put everything back."""
        while self._undos:
            self._undos.pop()()
