"""Opening a recording: its file in the run's place on this host, and a relay that reads it."""

import os
from contextlib import ExitStack
from pathlib import Path
from time import monotonic_ns

from trainspan import launch
from trainspan.errors import RecordingRefused
from trainspan.guard import warn_once
from trainspan.identity import Identity
from trainspan.recording import layout, places
from trainspan.recording.writer import RecordingWriter
from trainspan.settings import Settings, state_dir

_LEAST_FREE_BYTES = 1 << 20


def open_writer(
    settings: Settings, identity: Identity, capacity: int | None = None, since_ns: int | None = None
) -> RecordingWriter:
    """A new recording of this process in the run's place on this host, with a relay that reads it.

    Of one that is refused nothing stays that this process has made.

    Args:
        settings: in force.
        identity: of this process.
        capacity: marks that it holds; None: as the settings have it.
        since_ns: monotonic time from which on it tells of this process; None: from the process's start.

    Raises:
        RecordingRefused: no recording can be made.
    """
    folder = places.run_folder(state_dir(settings, os.environ), identity.run)
    read_along = settings.relay != "off"
    default = layout.CAPACITY_DEFAULT if read_along else layout.CAPACITY_UNREAD
    marks = capacity or settings.ring_marks or default
    began_ns = process_start_ns() if since_ns is None else since_ns
    with ExitStack() as undo:
        if read_along:
            places.make_private(folder, undo=undo)
        try:
            writer = RecordingWriter.create(_place_of(settings, identity, undo), identity, marks, began_ns)
        except RecordingRefused as refusal:
            if not isinstance(refusal.__cause__, FileNotFoundError):
                raise
            # A relay of this run that was leaving, or a rank that was refused, has just taken the empty place away.
            writer = RecordingWriter.create(_place_of(settings, identity, undo), identity, marks, began_ns)
        undo.pop_all()
    if read_along:
        _warn_if_full(folder)
        launch.ensure_relay(settings.relay, writer.path.parent, folder, writer.path)
    return writer


def _place_of(settings: Settings, identity: Identity, undo: ExitStack) -> Path:
    state, chosen = state_dir(settings, os.environ), settings.recording_dir
    return places.recording_dir(state, identity.run, chosen, in_memory=settings.relay != "off", undo=undo)


def _warn_if_full(folder: Path) -> None:
    """Say that the relay will have no room: its own log lies on the same disk."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return  # gone: the relay says so
    free_bytes = found.f_bavail * found.f_frsize
    if free_bytes < _LEAST_FREE_BYTES:
        warn_once(
            "disk",
            f"the disk of {folder} is full ({free_bytes} bytes free): what is recorded is neither kept nor delivered "
            "until there is room; or set TRAINSPAN_DIR",
        )


def process_start_ns() -> int:
    """Monotonic ns at which this process began. Error: 10 ms, the kernel's clock tick. Source: proc_pid_stat(5)."""
    try:
        text = Path("/proc/self/stat").read_text()
        ticks = int(text[text.rindex(")") + 2 :].split()[19])
        since_boot_ns = ticks * (1_000_000_000 // os.sysconf("SC_CLK_TCK"))
    except (OSError, ValueError, IndexError):
        return monotonic_ns()
    import time

    return monotonic_ns() - (time.clock_gettime_ns(time.CLOCK_BOOTTIME) - since_boot_ns)
