"""The relay's life: who started it, what it serves, when it leaves.

It looks at the recordings five times a second and when a recorded process ends, and leaves when every recording it has
seen is closed and what they held is delivered or safe on disk. A recording made while it was leaving is still served:
the lock is let go first, and the directory looked at once more.

Who ends a job may tell the relay too (Kubernetes every container, a service manager every process), and the ranks' last
words come after that. So a relay that is told to end goes on until they have ended, for LAST_WORDS_S at most.
"""

import atexit
import contextlib
import math
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Collection, Container, Mapping, Sequence
from pathlib import Path
from threading import Event

from trainspan import launch, settings
from trainspan.clock import Clock, SystemClock
from trainspan.errors import RecordingRefused, SettingError
from trainspan.recording import places
from trainspan.recording.reader import Refusal
from trainspan.relay.deathwatch import Deathwatch
from trainspan.relay.gpus import no_gpus, node_gpus
from trainspan.relay.pipeline import Pipeline
from trainspan.relay.runs import LINGER_S, Runs
from trainspan.relay.tail import Tail

LOOK_INTERVAL_S = 0.2
FIRST_RECORDING_S = 60.0
"""How long a relay that has seen no recording waits for one."""

CLOSE_S = 2.0
"""How long it tries to deliver at the end; what is left is on disk for `trainspan replay`."""

LAST_WORDS_S = 20.0
"""How long it goes on after SIGTERM while ranks live: schedulers kill what is left after 30 s."""

TRY_AGAIN_S = 60.0
"""After so long it looks again at the recordings of runs that could not be served."""

_NICENESS = 5


class Relay:
    """Serves the recordings below one directory.

    Args:
        recording_dir: where ranks record.
        run_folder: where to write; None: the folder of each recording's run in the state directory.
        environ: the settings of trainspan and OpenTelemetry.
        own: the one recording to serve, this process's own (relay thread).
        live: whether the ranks run now, on this host or beside it: its GPUs are theirs.
    """

    def __init__(
        self,
        recording_dir: Path,
        run_folder: Path | None,
        environ: Mapping[str, str],
        own: Path | None = None,
        clock: Clock | None = None,
        *,
        live: bool = True,
    ):
        self._environ = environ
        self._settings, problems = settings.load(environ)
        for problem in problems:
            log(str(problem))
        self._run_folder = run_folder
        self._clock = clock or SystemClock()
        self._tail = Tail(recording_dir, _report_refusal, own)
        self._own = own is not None
        self._live = live
        # A process does not wait for its own end, and a clock that is not the system's keeps its own time.
        self._deathwatch = Deathwatch() if own is None and clock is None else None
        self._runs = Runs(self._open_pipeline, log)
        self._try_again_ns = 0

    def serve(self, first_recording_s: float = FIRST_RECORDING_S, told: Event | None = None) -> None:
        """Return when there is nothing left to serve.

        Args:
            first_recording_s: how long it waits for the first one; `inf`: for more of them, too. What runs that are
                over have not delivered is offered to the endpoint meanwhile.
            told: set when it is to end soon; None: nobody can tell it.
        """
        stays = first_recording_s == math.inf
        idle_since_ns = self._clock.monotonic_ns()
        told_ns = None
        while True:
            self.look()
            now_ns = self._clock.monotonic_ns()
            if self._tail.open_recordings() or self._runs.busy():
                idle_since_ns = now_ns
            else:
                leaves = told_ns is not None or (self.recordings > 0 and not stays)
                if now_ns - idle_since_ns > (LINGER_S if leaves else first_recording_s) * 1e9:
                    return
            if told is not None and told.is_set():
                told_ns = told_ns or now_ns
                if now_ns - told_ns > LAST_WORDS_S * 1e9:
                    return
            self._rest()

    def _rest(self) -> None:
        if self._deathwatch is None:
            self._clock.sleep(LOOK_INTERVAL_S)
        else:
            self._deathwatch.sleep(LOOK_INTERVAL_S, self._tail.pids())

    def look(self) -> None:
        """Take over what is new in every recording."""
        if self._clock.monotonic_ns() >= self._try_again_ns:
            self._try_again_ns = self._clock.monotonic_ns() + int(TRY_AGAIN_S * 1e9)
            self._tail.look_again()
        for sighting in self._tail.look():
            if not self._runs.take(sighting, self._clock.monotonic_ns()):
                self._tail.leave(sighting.reader.identity.run)
        for run in self._runs.turn(self._tail.open_runs(), self._clock.monotonic_ns()):
            self._tail.leave(run)

    @property
    def recordings(self) -> int:
        """How many have been taken over."""
        return self._runs.recordings

    @property
    def left(self) -> frozenset[Path]:
        """Recordings that it does not serve, though they can be read."""
        return self._tail.left

    @property
    def refusals(self) -> Sequence[str]:
        """Why it could not serve some runs."""
        return tuple(self._runs.refusals.values())

    def close(self) -> None:
        """Deliver what is left, within CLOSE_S; what remains is said."""
        if self._deathwatch is not None:
            self._deathwatch.close()
        self._runs.close(self._clock.monotonic_ns(), CLOSE_S)

    def _open_pipeline(self, run: str) -> Pipeline:
        state = settings.state_dir(self._settings, self._environ)
        folder = places.make_private(self._run_folder or places.run_folder(state, run))
        gpus = node_gpus(self._environ, log) if self._live else no_gpus()
        return Pipeline(folder, self._environ, log, gpus)


def serve(
    recording_dir: Path,
    run_folder: Path | None,
    environ: Mapping[str, str],
    lock: int | None = None,
    *,
    by_hand_s: float | None = None,
) -> int:
    """Serve `recording_dir` until its recordings are closed and flushed; the exit code of the relay.

    Args:
        recording_dir: where ranks record; `trainspan relay` may point it at a volume of many runs.
        run_folder: where to write; None: the folder of each run in the state directory.
        environ: the settings.
        lock: descriptor that holds the relay's lock already; None: take it.
        by_hand_s: somebody watches, and has it wait so long for the first recording, which is said; `inf`: for more of
            them too, until SIGTERM or SIGINT. None: whoever started it is about to record.
    """
    if not recording_dir.is_dir():
        log(f"{recording_dir} is not a directory")
        return 2
    descriptor = launch.take_lock(recording_dir) if lock is None else lock
    if descriptor is None:
        log(f"another relay serves {recording_dir}")
        return 1
    with contextlib.suppress(OSError):
        os.nice(_NICENESS)  # the ranks come first
    told = _told_to_end()
    stay = by_hand_s == math.inf
    served = 0
    left: Collection[Path] = ()
    while descriptor is not None:
        os.truncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        try:
            relay = Relay(recording_dir, run_folder, environ)
        except SettingError as error:
            log(str(error))
            return 2
        relay.look()
        if by_hand_s is not None and not served and not relay.recordings:
            log(f"waiting for {_awaited(recording_dir, by_hand_s)}")
        relay.serve(FIRST_RECORDING_S if by_hand_s is None else by_hand_s, told)
        relay.close()
        served += relay.recordings
        if not stay or told.is_set():
            left = relay.left
            descriptor = _leave(recording_dir, run_folder, descriptor, told, left)
    if left:
        return 1
    if by_hand_s is None or served or told.is_set():
        return 0
    log(
        f"no recording came in {recording_dir}; is it the directory that the ranks record in (TRAINSPAN_RECORDING_DIR)?"
    )
    return 1


def _awaited(recording_dir: Path, wait_s: float) -> str:
    if wait_s == math.inf:
        return f"recordings in {recording_dir}, until it is told to end"
    return f"a recording in {recording_dir}, up to {wait_s:g} s"


def _told_to_end() -> Event:
    """Set by SIGTERM or SIGINT from now on. The first of them ends nothing at once; a second SIGINT does."""
    told = Event()

    def tell(number: int, _: object) -> None:
        told.set()
        signal.signal(number, signal.SIG_DFL if number == signal.SIGINT else signal.SIG_IGN)

    signal.signal(signal.SIGTERM, tell)
    signal.signal(signal.SIGINT, tell)
    return told


def _leave(
    recording_dir: Path, run_folder: Path | None, descriptor: int, told: Event, left: Container[Path]
) -> int | None:
    """Let go of the lock. If a recording came meanwhile and nobody serves it: the lock again, else None.

    Args:
        recording_dir, run_folder: what was served.
        descriptor: holds the lock.
        told: set if it is to end.
        left: recordings that it could not serve: they would bring it back for ever.
    """
    places.retire(recording_dir, run_folder, launch.LOCK_NAME)
    os.close(descriptor)
    there = Tail(recording_dir, lambda _: None).look()
    if told.is_set() or all(sighting.reader.path in left for sighting in there):
        return None
    return launch.take_lock(recording_dir)


def start_thread(recording: Path, run_folder: Path, environ: Mapping[str, str]) -> None:
    """Serve this process's own recording from a thread; at exit the process waits for it, a few seconds at most."""
    relay = Relay(recording.parent, run_folder, environ, own=recording)

    def serve_own() -> None:
        relay.serve(first_recording_s=LINGER_S)  # there is no other to wait for
        relay.close()
        places.retire(recording.parent, run_folder, launch.LOCK_NAME)

    # A daemon, because the interpreter joins other threads before it runs what closes the recording. Registered
    # before that, so it runs after it: handlers run in reverse order.
    thread = threading.Thread(target=serve_own, name="trainspan-relay", daemon=True)
    atexit.register(thread.join, LINGER_S + CLOSE_S + 1)
    thread.start()


def fold_recordings(run_folder: Path, environ: Mapping[str, str]) -> int:
    """Take over recordings below `run_folder` that no relay has read; how many there were.

    What they held is then in the run folder's journals; `environ` says whether that is delivered from there at once.
    Recordings that a relay serves now are left.

    Raises:
        RecordingRefused: the run folder cannot be written.
    """
    folded = 0
    for recording_dir in _unserved_dirs(run_folder / "recordings"):
        descriptor = launch.take_lock(recording_dir)
        if descriptor is None:
            continue
        relay = Relay(recording_dir, run_folder, environ, live=False)
        relay.look()
        relay.close()
        folded += relay.recordings
        places.retire(recording_dir, run_folder, launch.LOCK_NAME)
        os.close(descriptor)
        if relay.refusals:
            raise RecordingRefused(relay.refusals[0])
    return folded


def _unserved_dirs(parent: Path) -> list[Path]:
    if not parent.is_dir():
        return []
    return [entry.resolve() for entry in sorted(parent.iterdir()) if entry.is_dir()]


def _report_refusal(refusal: Refusal) -> None:
    log(f"{refusal.path} {refusal.reason}")


_unsaid: deque[str] = deque(maxlen=64)
"""Lines that the log has not taken yet: it lies on the disk whose end it may have to tell of."""

_saying = threading.Lock()


def log(text: str) -> None:
    """One line in the relay's log, with the time in ISO 8601; behind what the disk has refused before."""
    # Imported here: a relay thread's process may never have anything to log.
    from datetime import datetime, timezone

    with _saying, contextlib.suppress(OSError, ValueError):
        _unsaid.append(f"{datetime.now(timezone.utc):%Y-%m-%dT%H:%M:%SZ} trainspan relay: {text}")
        while _unsaid:
            print(_unsaid[0], file=sys.stderr, flush=True)
            _unsaid.popleft()
