"""A command as a child process: signals go on to it, its exit code comes back.

It also works as the first process of a container: orphans are reaped, and signals arrive that a first process
without a handler would never see, because they are waited for instead of handled.
"""

import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from trainspan.cli.command import KILLED_BY, NOT_EXECUTABLE, NOT_FOUND
from trainspan.errors import TrainspanError
from trainspan.recording.last_words import LastWords

FORWARDED: Final = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
_WATCHED: Final = (*FORWARDED, signal.SIGCHLD)

FROM_KERNEL: Final = 0x80
"""`si_code` of a signal the terminal sent: to the whole foreground group, so the child has it already.

Source: SI_KERNEL in Linux's include/uapi/asm-generic/siginfo.h.
"""

# Python ignores these and an exec'd program would go on ignoring them: `yes | head` in the child would never end.
_RESET: Final = (signal.SIGPIPE, signal.SIGXFSZ)


class NotStarted(TrainspanError):
    """The command could not be started. `code`: what a shell would exit with."""

    def __init__(self, command: str, error: OSError) -> None:
        self.code = NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE
        super().__init__(f"{command!r} cannot be started: {error.strerror}")


@contextmanager
def signals_held() -> Iterator[set[int]]:
    """Hold back the signals to forward, so that none is lost before the child is there. Yields the mask before."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
    # With SIGCHLD ignored (inherited from some supervisors) the kernel would keep no exit code for us.
    handler = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        yield {int(one) for one in before}
    finally:
        signal.signal(signal.SIGCHLD, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def run_to_end(command: Sequence[str], environ: Mapping[str, str], mask: set[int], words: LastWords) -> int:
    """The exit code of `command`, 128+n where signal n ended it. Call it within `signals_held`.

    Args:
        command: the program, looked up in PATH, and its arguments.
        environ: its whole environment.
        mask: the signal mask it gets.
        words: told of its start and its end.

    Raises:
        NotStarted: there is no such program, or it is not one.
    """
    try:
        child = os.posix_spawnp(command[0], list(command), environ, setsigmask=mask, setsigdef=_RESET)
    except OSError as error:
        raise NotStarted(command[0], error) from error
    words.started(child)
    while True:
        received = signal.sigwaitinfo(_WATCHED)
        if received.si_signo == signal.SIGCHLD:
            code = _reap(child)
            if code is not None:
                words.ended(child, code)
                return code if code >= 0 else KILLED_BY - code
        elif received.si_code != FROM_KERNEL:
            os.kill(child, received.si_signo)


def wait_until(done: Callable[[], bool], timeout_s: float, patience_s: float, say: Callable[[], None]) -> bool:
    """Whether `done()` came true within `timeout_s`; a forwarded signal ends the wait. Call it within `signals_held`.

    Args:
        done: asked every 50 ms.
        timeout_s: the bound, in s.
        patience_s: after so many s `say` is called, once.
        say: tells the user what is being waited for.
    """
    began = time.monotonic()
    said = False
    while not done():
        waited_s = time.monotonic() - began
        if waited_s >= timeout_s:
            return False
        if not said and waited_s >= patience_s:
            say()
            said = True
        received = signal.sigtimedwait(_WATCHED, 0.05)
        if received is not None and received.si_signo == signal.SIGCHLD:
            _reap(None)
        elif received is not None:
            return False
    return True


def _reap(child: int | None) -> int | None:
    """Take every process that has ended; the exit code of `child` if it was among them, below zero a signal's number.

    One SIGCHLD may stand for several; as a container's first process we inherit the orphans of all the others.
    """
    found = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return found
        if pid == 0:
            return found
        if pid == child:
            found = os.waitstatus_to_exitcode(status)
