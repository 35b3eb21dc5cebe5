"""Which relay speaks for a GPU, where several serve the same host: each GPU's numbers come once, with the right run.

A GPU has two locks. A relay whose ranks use it takes `used`, and speaks for it. A GPU that nobody uses is spoken for by
whoever has `idle`. The kernel lets go of a lock when its holder ends, whatever ended it, and the next relay that looks
takes over.

The locks lie where this user's processes on this host find them. Of another user's relay, or one in a container with a
`/dev/shm` of its own, nothing is known here.
"""

import contextlib
import fcntl
import os
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final

from trainspan.errors import RecordingRefused
from trainspan.recording import places
from trainspan.relay.probes.probe import Complain

_USED: Final = "used"
_IDLE: Final = "idle"


def lock_dir(state: str) -> Path:
    """Where the locks of this user's relays lie on this host.

    Args:
        state: the state directory, for a host without memory to share, or where somebody else was faster there.

    Raises:
        RecordingRefused: neither can be used.
    """
    if os.access(places.MEMORY, os.W_OK | os.X_OK):
        try:
            return places.make_private(places.MEMORY / f"trainspan-gpus-{os.geteuid()}")
        except RecordingRefused:
            pass
    return places.make_private(Path(state) / "gpus" / os.uname().nodename)


class Ownership:
    """The GPUs that one relay speaks for.

    Args:
        directory: gives where the locks lie; asked once there is a GPU. None: nobody else is asked.
        complain: told when a lock cannot be had for another reason than that somebody has it.
    """

    def __init__(self, directory: Callable[[], Path] | None, complain: Complain):
        self._find = directory
        self._directory: Path | None = None
        self._complain = complain
        self._held: dict[str, int] = {}

    def settle(self, gpus: Collection[str], used: Collection[str]) -> set[str]:
        """Which of `gpus` this relay speaks for from now until it is asked again.

        Args:
            gpus: ids of whole GPUs.
            used: those of them that ranks of this relay use.
        """
        if gpus and self._find is not None and self._directory is None:
            self._make()
        return {gpu for gpu in gpus if self._is_ours(gpu, used=gpu in used)}

    def close(self) -> None:
        """Speak for none of them any more."""
        for name in tuple(self._held):
            self._let_go(name)

    def _make(self) -> None:
        find, self._find = self._find, None
        try:
            self._directory = find() if find is not None else None
        except (RecordingRefused, OSError) as error:
            self._complain("gpu.locks", f"other relays here may send the same GPUs again: {error}")

    def _is_ours(self, gpu: str, *, used: bool) -> bool:
        using, idling = f"{_safe(gpu)}.{_USED}", f"{_safe(gpu)}.{_IDLE}"
        if used:
            self._let_go(idling)
            return self._take(using)
        if not self._take(using):
            self._let_go(idling)
            return False
        # Held for this moment only: a relay whose rank begins to use it must find it free.
        self._let_go(using)
        return self._take(idling)

    def _take(self, name: str) -> bool:
        if self._directory is None or name in self._held:
            return True
        try:
            descriptor = os.open(self._directory / name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            self._complain("gpu.lock", f"{self._directory / name} cannot be made ({error.strerror})")
            return True  # twice is better than never
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Its last holder may have removed it between the two calls: then this is a lock that nobody else sees.
            seen = os.path.samestat(os.fstat(descriptor), (self._directory / name).stat())
        except OSError:
            seen = False
        if not seen:
            os.close(descriptor)
            return False
        self._held[name] = descriptor
        return True

    def _let_go(self, name: str) -> None:
        descriptor = self._held.pop(name, None)
        if descriptor is not None and self._directory is not None:
            with contextlib.suppress(OSError):
                (self._directory / name).unlink()
            os.close(descriptor)


def _safe(gpu: str) -> str:
    """A file name: the id is a driver's word."""
    return "".join(c if c.isalnum() or c in "-_" else "_" for c in gpu)[:120]
