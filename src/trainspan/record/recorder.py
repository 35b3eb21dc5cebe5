"""The recording of this process: when it begins, who writes into it, how it ends."""

import atexit
import os
import sys
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from time import monotonic_ns
from types import TracebackType
from typing import Any, Protocol, TypeVar

from trainspan import mpirun, names
from trainspan.errors import RecordingRefused
from trainspan.guard import warn_once
from trainspan.identity import (
    Assignment,
    Identity,
    World,
    assigned,
    identify,
    is_launched,
    is_named,
    new_run_id,
    place_of_world,
)
from trainspan.placement import place_of
from trainspan.record import launched, ray_job
from trainspan.record.captures import Captures
from trainspan.record.checkpoints import Notes
from trainspan.record.marker import Marker
from trainspan.record.opening import open_writer
from trainspan.record.spans import SpanTeller
from trainspan.recording import attempts, worlds
from trainspan.recording.writer import RecordingWriter
from trainspan.role import RANK_PID, Role
from trainspan.settings import Settings, load, state_dir

_LAUNCH_ID = "TRAINSPAN_LAUNCH_ID"
_STACK_FRAMES_MAX = 32
_MESSAGE_CHARACTERS_MAX = 1024
_EVENTS_RETOLD = 256


class Teller(Protocol):
    """What tells of itself now and then. None of it raises."""

    def step_ended(self) -> None:
        """Tell what is new, if it is time."""

    def close(self) -> None:
        """Tell what is new: there will be no other time."""

    def forget(self) -> None:
        """Begin anew, in a forked child."""


T = TypeVar("T", bound=Teller)


class Recorder:
    """Opens the recording on the first sign of training, and steps aside for good if that fails.

    Attributes:
        marker: what the hooks call.
        settings: in force.
        identity: of what is or was recorded; None before that, and in a forked child.
        left_by_exception: whether an exception nobody caught is ending this process.
        step_ends: each is called after every step of training.
        first_batch: each is called with an iterator of a DataLoader that has given its first batch.
        captures: of CUDA graphs, while they are under way.
        stepping: what the optimizer's hook tells others; None where there is no such hook.
        notes: what is told of checkpoints; `spans`: of other stretches of time.
    """

    def __init__(self, marker: Marker, settings: Settings):
        self.marker = marker
        self.settings = settings
        self.identity: Identity | None = None
        self.left_by_exception = False
        self.step_ends: list[Callable[[], None]] = []
        self.first_batch: list[Callable[[Any], None]] = []
        self.captures = Captures()
        self.stepping: Any = None
        self.spans = SpanTeller(self.event, lambda: self.recording)
        self.notes = Notes(marker, self.event, lambda: self.recording, settings.checkpoint_path, self._leads)
        self._writer: RecordingWriter | None = None
        self._failed = False
        self._over = False  # the process has said that it is at its end
        self._watching = False
        self._world: World | None = None
        self._assignment: Assignment | None = None
        self._since_ns: int | None = None  # of what this process does now; None: it does it from its start
        self._early_events: list[dict[str, Any]] = []
        self._told_first: list[dict[str, Any]] = []  # before the first step, in the recording that is open
        self._begun: list[Callable[[], None]] = []
        self._adopted: list[Callable[[], None]] = []
        self._closing: list[Callable[[], None]] = []
        self._tellers: dict[type[Teller], Teller] = {}
        self._closed: list[Callable[[], None]] = []
        os.register_at_fork(after_in_child=self._forget)

    def _leads(self) -> bool:
        return self.identity is not None and self.identity.rank == 0

    @property
    def recording(self) -> bool:
        """Whether this process has a recording open."""
        return self._writer is not None

    @property
    def directory(self) -> Path | None:
        """Where this process records; None while it does not."""
        return None if self._writer is None else self._writer.path.parent

    def begin(self, since_ns: int | None = None) -> None:
        """Open the recording, unless it is open, over, or could not be opened. Never raises.

        Args:
            since_ns: monotonic time from which on it tells of this process; None: from the process's start.
        """
        if self._writer is not None or self._failed or self._over:
            return
        try:
            self._open(self._since_ns if since_ns is None else since_ns)
        except Exception as error:
            # Whatever it was, training goes on; a second try would fail the same way, step after step.
            self._failed = True
            reason = str(error) if isinstance(error, RecordingRefused) else f"{type(error).__name__}: {error}"
            warn_once("recording", f"training goes on unrecorded: {reason}")

    def share_run(self) -> None:
        """See to it that ranks which this process is about to start, as a launcher does, and it belong to one run."""
        os.environ.setdefault(_LAUNCH_ID, self.settings.launch_id or new_run_id())

    def join(self, world: World) -> None:
        """This process is one of `world`, as its script has told torch.

        Recorded as one process alone until now, it goes on as a rank, in another recording. A rank that a launcher has
        started is the rank which that has told.
        """
        alone = world.size < 2 or self._assignment is not None
        if alone or (is_launched(os.environ) and launched.parent_by_multiprocessing() is None):
            return
        self._world = world
        identity = self.identity
        if identity is not None and (identity.rank, identity.world_size) != (world.rank, world.size):
            self._begin_anew()

    def assign(self, assignment: Assignment) -> None:
        """This process is to do that from now on, as who has started it says.

        What it did before, as another trial of a sweep, is over.
        """
        self.close()
        if self._over:
            self._over = False
            self._since_ns = monotonic_ns()
        self._assignment = assignment

    def on_begin(self, action: Callable[[], None]) -> None:
        """Call `action()` each time a recording has been opened."""
        self._begun.append(action)

    def on_adopt(self, action: Callable[[], None]) -> None:
        """Call `action()` on the thread that trains, each time that is found to be another one. It must not raise."""
        self._adopted.append(action)

    def teller(self, kind: type[T], make: Callable[[], T]) -> T:
        """The one teller of that kind, made when it is first asked for; it tells at the end of steps and of all."""
        known = self._tellers.get(kind)
        if isinstance(known, kind):
            return known
        teller = self._tellers[kind] = make()
        self.step_ends.append(teller.step_ended)
        self.on_closing(teller.close)
        os.register_at_fork(after_in_child=teller.forget)
        return teller

    def on_closing(self, action: Callable[[], None]) -> None:
        """Call `action()` before the recording is closed in good order, to tell what is left. It must not raise."""
        self._closing.append(action)

    def on_close(self, action: Callable[[], None]) -> None:
        """Call `action()` once the recording has been closed in good order. It must not raise."""
        self._closed.append(action)

    def claim(self) -> bool:
        """Begin if need be, and record for the calling thread unless another one trains; True if it now is the one."""
        self.begin()
        return self.adopt()

    def adopt(self) -> bool:
        """The same, but only where a recording is open: a gradient alone is no training."""
        if self._writer is None or (self.marker.steps() and self.marker.owner() in sys._current_frames()):
            return False
        self.marker.adopt_thread()
        for action in self._adopted:
            action()
        return True

    def event(self, name: str, /, **fields: Any) -> None:
        """Append a rare fact to the event log; kept in memory until the recording opens."""
        event = {"ts": monotonic_ns(), "event": name, **fields}
        if self._over:
            return
        if self._writer is None:
            self._early_events.append(event)
        else:
            self._writer.append_event(event)
            if not self.marker.steps() and len(self._told_first) < _EVENTS_RETOLD:
                self._told_first.append(event)

    def note_fatal(self, error: BaseException) -> None:
        """Note what is about to end this process, where one is recorded and nobody else would see it. Never raises."""
        if self._writer is not None:
            _quietly(lambda: self._record_exception(type(error), error, error.__traceback__))

    def note_stop(self, signal: str) -> None:
        """Note that who has started this process is about to end it by that signal, because of something else.

        What comes of that, as exceptions where others are gone, is no news. Never raises.
        """
        if self._writer is not None:
            _quietly(lambda: self.event("stopped", signal=signal))
            self._writer, self._over = None, True
            self.marker.detach()

    def drop_event(self) -> None:
        """Count an event that was beyond a bound of who would have told it."""
        if self._writer is not None:
            self._writer.drop_event()

    def close(self) -> None:
        """Note the orderly end of this process. What it still does, in other handlers of its exit, is not recorded."""
        if self._writer is not None:
            self._end_recording(self._writer, over=True)
            for action in self._closed:
                action()

    def _end_recording(self, writer: RecordingWriter, *, over: bool) -> None:
        for action in self._closing:
            action()
        self._writer = None
        self._over = over
        self.marker.detach()  # the relay may have read the recording to its end by the next mark
        writer.close(monotonic_ns())

    def _begin_anew(self) -> None:
        """Go on in another recording; where no step has ended yet, with everything that was told in this one."""
        if self._writer is None:
            return
        trained = self.marker.steps() > 0
        self._end_recording(self._writer, over=False)
        self._early_events = [] if trained else self._told_first
        self.begin(monotonic_ns() if trained else None)

    def _identify(self, undo: ExitStack) -> Identity:
        # As the environment has it now: a launcher may be in this very process (a notebook's, Lightning's).
        launch_id = load(os.environ)[0].launch_id or self.settings.launch_id
        environ = ray_job.environment()
        identity = identify(replace(self.settings, launch_id=launch_id), environ, Role.RANK, self._world)
        if self._assignment is not None:
            identity = assigned(identity, self._assignment, self.settings)
            counted = self._assignment.attempt is not None
            return identity if counted else self._number(identity, undo)
        if is_named(identity, environ):
            by_script = launched.parent_by_multiprocessing() is not None
            return identity if by_script and identity.world_size < 2 else self._number(identity, undo)
        place = self._meeting() if self._world is None else self._world.place
        try:
            state, parent = state_dir(self.settings, os.environ), launched.parent_process()
            return identity._replace(
                run=worlds.run_of(state, identity, place, parent, shared=identity.launcher != "process")
            )
        except OSError as error:
            warn_once("worlds", f"ranks do not find their common run ({error.strerror}); set TRAINSPAN_RUN_ID")
            return identity

    def _meeting(self) -> str | None:
        return mpirun.key_of(os.environ, lasting=False) or place_of_world(os.environ)

    def _number(self, identity: Identity, undo: ExitStack) -> Identity:
        return attempts.numbered(identity, self.settings, os.environ, begins=True, undo=undo)

    def _open(self, since_ns: int | None) -> None:
        with ExitStack() as undo:  # what was made for a recording that is refused
            identity = self._identify(undo)
            writer = open_writer(self.settings, identity, since_ns=since_ns)
            undo.pop_all()
        # What this process starts inherits its rank, but is not that rank.
        os.environ[RANK_PID] = str(os.getpid())
        self._writer = writer
        self.identity = identity
        self.marker.attach(writer.words, writer.capacity)
        place = place_of(ray_job.environment())
        if place:
            writer.append_event({"ts": monotonic_ns(), "event": "place", "attributes": place})
        tags = {names.SESSION_TAG: self.settings.session_tag, names.PERF_TAG: self.settings.perf_tag}
        if any(tags.values()):
            values = {name: tag for name, tag in tags.items() if tag}
            writer.append_event({"ts": monotonic_ns(), "event": "configured", "values": values})
        for event in self._early_events:
            writer.append_event(event)
        self._told_first = self._early_events[:_EVENTS_RETOLD]
        self._early_events = []
        for action in self._begun:
            action()
        self._watch_end()

    def _forget(self) -> None:
        """In a forked child: the recording is the parent's. A child that trains opens its own."""
        self.marker.detach()
        if self._writer is not None:
            writer, self._writer = self._writer, None
            writer.abandon()
        self.identity = None
        self._failed = self._over = False
        self._world = self._assignment = self._since_ns = None
        self._early_events.clear()

    def _watch_end(self) -> None:
        # Registered anew after a fork: what runs at the parent's exit need not run at the child's.
        atexit.register(self.close)
        # What multiprocessing forks ends without atexit. (torch has imported it.)
        multiprocessing = sys.modules.get("multiprocessing.util")
        if multiprocessing is not None:
            multiprocessing.Finalize(None, self.close, exitpriority=-1)
        if not self._watching:
            self._watching = True
            self._watch_exceptions()

    def _watch_exceptions(self) -> None:
        previous = sys.excepthook

        def record_exception(kind: type[BaseException], error: BaseException, stack: TracebackType | None) -> None:
            _quietly(lambda: self._record_exception(kind, error, stack))
            previous(kind, error, stack)

        sys.excepthook = record_exception

    def _record_exception(self, kind: type[BaseException], error: BaseException, stack: TracebackType | None) -> None:
        self.left_by_exception = True
        frames = traceback.extract_tb(stack)[-_STACK_FRAMES_MAX:]
        fields: dict[str, Any] = {
            "type": f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins."),
            # Two path components tell the place; a whole path can tell who the user is.
            "stack": [f"{'/'.join(Path(f.filename).parts[-2:])}:{f.lineno} in {f.name}" for f in frames],
        }
        if self.settings.exception_message:
            fields["message"] = str(error)[:_MESSAGE_CHARACTERS_MAX]
        self.event("exception", **fields)


def _quietly(action: Callable[[], None]) -> None:
    try:
        action()
    except Exception as error:
        warn_once("event", f"an event was not recorded: {type(error).__name__}: {error}")
