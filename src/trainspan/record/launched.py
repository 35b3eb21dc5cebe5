"""Ranks that a script launched by `multiprocessing`, as `torch.multiprocessing.spawn` does: exceptions that end them.

multiprocessing catches whatever the process's work raises, so `sys.excepthook` never sees it, and the rank would seem
to have ended well. `Process.run` is where its work is done; who overrides it without calling it is not seen.
"""

import functools
import os
import sys
from collections.abc import Callable
from typing import Any

from trainspan.record.patches import Patches


def parent_by_multiprocessing() -> int | None:
    """The process that has started this one by multiprocessing; None: nobody has."""
    module = sys.modules.get("multiprocessing.process")
    parent = None if module is None else module.parent_process()
    return None if parent is None or parent.pid is None else int(parent.pid)


def parent_process() -> int:
    """The process that has started this one: a fork server's children are its user's."""
    return parent_by_multiprocessing() or os.getppid()


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

    patches.replace(process, "run", functools.update_wrapper(run_noted, run))
