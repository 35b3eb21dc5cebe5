"""Exceptions that end a rank which a script launched by `multiprocessing`, as `torch.multiprocessing.spawn` does.

multiprocessing catches whatever the process's work raises, so `sys.excepthook` never sees it, and the rank would seem
to have ended well. `Process.run` is where its work is done; who overrides it without calling it is not seen.
"""

from collections.abc import Callable
from typing import Any

from trainspan.record.patches import Patches


def install(process: type, patches: Patches, note: Callable[[BaseException], None]) -> None:
    """Call `note(error)` with what leaves the work of a process of multiprocessing, in that process.

    Args:
        process: the class `BaseProcess` of multiprocessing, which torch has imported.
        patches: remembers the original.
        note: must not raise.
    """
    run = vars(process)["run"]

    def run_noted(self: Any) -> None:
        try:
            run(self)
        except BaseException as error:
            # `torch.multiprocessing` turns whatever ends a rank into an exit.
            cause = error.__context__ if isinstance(error, SystemExit) and error.code else error
            if cause is not None and not isinstance(cause, SystemExit):
                note(cause)
            raise

    run_noted.__wrapped__ = run  # type: ignore[attr-defined]  # inspect.signature shows the real one
    patches.replace(process, "run", run_noted)
