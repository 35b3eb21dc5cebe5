"""What the API does in a process that may train: the scopes that are open, and the rules between them.

What the script says is marked with the same marks as what the hooks see, so a scope around an automatic phase is one
thing and not two: a phase the hooks know is around the same phase; one that the script has named holds it. All of it
happens on the thread that trains; of other threads only what makes no mark is taken: `timed`, `event`, checkpoints.
"""

import os
from collections.abc import Callable, Mapping
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, Final, Protocol

from trainspan import names
from trainspan.guard import warn_once
from trainspan.names import CUSTOM_FIRST, Phase
from trainspan.record.attributes import Value, values_of
from trainspan.record.marker import FOREIGN
from trainspan.record.misuse import Misuse
from trainspan.record.phases import PhaseNumbers
from trainspan.record.recorder import Recorder

if TYPE_CHECKING:
    from trainspan.record.scope import Scope

EARLY_EVENTS: Final = 256
"""Events of the script before the recording is open: a process that never trains must not collect them."""

SAID_BYTES: Final = 8 << 20
"""What the script says, of the event log: the rest is for what the relay needs, as a checkpoint that was saved."""

OFFSETS_TOLD: Final = 1000
"""Changes between the number of a step in the attempt and in the run: a script can give all steps the same number."""

_EVENT_BYTES: Final = 160
"""An event without its attributes, about."""

UNMARKED: Final = -3
"""Where a scope stands that has made no mark."""

_OPTIMIZER: Final = int(Phase.OPTIMIZER)


class Marked(Protocol):
    """A scope that is a phase: its number, and the number of the phase around it while it is open.

    `lets_step_in`: whether an optimizer's step in it is one, though it is a phase that holds no other.
    """

    number: int
    outer: int
    what: str
    lets_step_in: bool


class Engine:
    """One for each process.

    Args:
        recorder: of this process.
        is_traced: whether a compiler traces what is running now.
        functions: of the API, by name: a pickled scope is a call of one.
        may_begin: whether the process records once the script marks anything, or only once it begins a loop: what a
            DataLoader's worker marks is no training.

    Attributes:
        loops: loops and steps that are open, by what they are.
        forked: whether this process is a fork of the one in which the API was used first.
    """

    def __init__(
        self, recorder: Recorder, is_traced: Callable[[], bool], functions: Mapping[str, Any], *, may_begin: bool
    ):
        self.recorder = recorder
        self.is_traced = is_traced
        self.functions = functions
        self.marker = recorder.marker
        self.misuse = Misuse(recorder.event)
        self.phases = PhaseNumbers(self._tell_now, lambda: self.misuse.count("names", "phase(…)"))
        self.spans = recorder.spans
        self.loops: dict[str, Any] = {}
        self.started: dict[str, Scope] = {}  # by the callbacks
        self.forked = False
        self._may_begin = may_begin
        self._open: list[Marked] = []
        self._late: list[Marked] = []  # ended where that could not be marked
        self._offset: int | None = None
        self._offsets = 0
        self._said_bytes = 0
        self._begun = False
        self._early = 0
        recorder.on_begin(self.phases.tell_all)
        recorder.on_closing(self.misuse.tell_all)
        os.register_at_fork(after_in_child=self._forget)

    def begin(self) -> None:
        """Record from here on, for the calling thread unless another one trains: the script says that it trains."""
        if not self.marker.mine():
            self.recorder.claim()

    def begin_if_alone(self) -> None:
        """Record from here on, where a process that marks anything is one that trains."""
        if self._may_begin and not self.recorder.recording:
            self.recorder.begin()

    def takes_thread(self, what: str) -> bool:
        """Whether the calling thread may say what the rank is doing; if not, it is misuse."""
        self.begin_if_alone()
        if self.marker.mine() or not self.recorder.recording:
            return True
        self.misuse.count("thread", what)
        return False

    def begin_steps(self) -> None:
        """The loop begins here, if nothing has begun it."""
        if not self._begun and self.marker.steps() == 0 and self.marker.mine() and self.between_phases():
            self._begun = True
            self.marker.begin()

    def enter(self, scope: Marked) -> None:
        """Mark that a phase begins, and remember what it is in: `scope.outer`."""
        if self._late:
            self._settle()
        outer = self.marker.enter(scope.number)
        if outer == FOREIGN:
            outer = self._enter_foreign(scope)
        scope.outer = outer
        if outer >= 0:
            self._open.append(scope)
            if scope.lets_step_in:
                self.marker.let_step_in(scope.number)

    def leave(self, scope: Marked, *, failed: bool) -> None:
        """Mark that it ends."""
        outer, opened, marker = scope.outer, self._open, self.marker
        scope.outer = UNMARKED
        if outer < 0:
            return
        if not marker.mine() or scope not in opened:
            scope.outer = outer
            self._leave_foreign(scope)
        elif opened[-1] is not scope:
            self._cross(scope, outer)
        elif failed:
            self._pop()
            marker.abort(outer)
        elif marker.now() in (scope.number, _OPTIMIZER):  # an optimizer's step that an exception has left shows late
            self._pop()
            marker.resume(outer)
        else:
            scope.outer = outer
            self.misuse.count("crossed", scope.what)
            self._late.append(scope)

    def is_in(self, number: int) -> bool:
        """Whether the script has marked the innermost open phase as this one."""
        return bool(self._open) and self._open[-1].number == number and self.marker.now() == number

    def between_phases(self) -> bool:
        """Whether the rank is where a step can begin and end."""
        if self._late:
            self._settle()
        now = self.marker.now()
        return now == Phase.OTHER or now >= CUSTOM_FIRST

    def number_step(self, number: int) -> None:
        """Take over that the step which begins now has this number in the run."""
        offset = number - self.marker.steps()
        if offset != self._offset and self._offsets < OFFSETS_TOLD:
            self._offset = offset
            self._offsets += 1
            self.recorder.event("progress", step=self.marker.steps(), global_step=number)

    def end_step(self, what: str) -> None:
        """A step of training is complete."""
        if not self.between_phases() and self.marker.now() != _OPTIMIZER:
            self.misuse.count("crossed", what)
            return
        self.marker.complete()
        for end in self.recorder.step_ends:
            end()

    def event(self, name: str, /, **fields: Any) -> None:
        """Append an event of the script's own, kept until there is a recording, within a bound."""
        self.begin_if_alone()
        if not self.recorder.recording:
            self._early += 1
            if self._early > EARLY_EVENTS and not self.recorder.recording:
                return
        if self._has_room(fields.get("attributes", {})):
            self.recorder.event(name, **fields)

    def span(
        self,
        name: str,
        start_ns: int,
        error: BaseException | None,
        attributes: dict[str, Value],
        state: str | None = None,
    ) -> None:
        """Tell of a stretch of time that ends now."""
        if error is not None and not is_ordinary(error):
            kind = type(error)
            attributes = {
                **attributes,
                names.ERROR_TYPE: f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins."),
            }
        if not self._has_room(attributes):
            return
        ok = error is None or is_ordinary(error)
        self.spans.span(name, start_ns, monotonic_ns(), ok=ok, state=state, attributes=attributes)

    def values_of(self, given: dict[str, Any], what: str) -> dict[str, Value]:
        """The attributes that can be told; those that cannot are misuse."""
        return values_of(given, lambda name: self.misuse.count("value", f"{what}: {name}"))

    def safely(self, action: Callable[..., Any], *arguments: Any) -> None:
        """Call what is ours: whatever is wrong with it, the script goes on."""
        try:
            action(*arguments)
        except Exception as error:
            warn_once("api", f"a call of the API was not recorded: {type(error).__name__}: {error}")

    def _has_room(self, attributes: dict[str, Value]) -> bool:
        """Whether one more thing of the script's fits into its part of the event log; if so it is counted."""
        sizes = (len(name) + (len(value) if isinstance(value, str) else 24) for name, value in attributes.items())
        self._said_bytes += _EVENT_BYTES + sum(sizes)
        if self._said_bytes <= SAID_BYTES:
            return True
        self.recorder.drop_event()
        return False

    def _tell_now(self, name: str, /, **fields: Any) -> None:
        # Names are told anew when a recording opens: the early ones need not wait for it.
        if self.recorder.recording:
            self.recorder.event(name, **fields)

    def _enter_foreign(self, scope: Marked) -> int:
        if self.recorder.recording:
            self.misuse.count("thread", scope.what)
            return FOREIGN
        self.begin_if_alone()
        return self.marker.enter(scope.number)

    def _leave_foreign(self, scope: Marked) -> None:
        if scope not in self._open:
            self.misuse.count("fork" if self.forked else "end_without_start", scope.what)
        else:
            self.misuse.count("thread", scope.what)
            self._late.append(scope)

    def _pop(self) -> None:
        self._open.pop()
        self.marker.let_step_in(self._open[-1].number if self._open and self._open[-1].lets_step_in else 0)

    def _cross(self, scope: Marked, outer: int) -> None:
        """Take a phase out from under what has begun in it and goes on."""
        place = self._open.index(scope)
        self._open[place + 1].outer = outer
        del self._open[place]
        self.misuse.count("crossed", scope.what)

    def _settle(self) -> None:
        """Mark the end of what could not be marked when it ended, now that the thread is ours and the rank is in it."""
        late, self._late = self._late, []
        for scope in late:
            if scope not in self._open or not self.marker.mine():
                continue
            if self._open[-1] is scope and self.marker.now() == scope.number:
                self._pop()
                self.marker.resume(scope.outer)
            elif self._open[-1] is not scope:
                self._open[self._open.index(scope) + 1].outer = scope.outer
                self._open.remove(scope)
            else:
                self._late.append(scope)
                continue
            scope.outer = UNMARKED

    def _forget(self) -> None:
        """In a forked child: what is open is the parent's."""
        self._open.clear()
        self._late.clear()
        self.loops.clear()
        self.started.clear()
        self._offset = None
        self._offsets = self._said_bytes = 0
        self._begun = False
        self._early = 0
        self._may_begin = False
        self.forked = True


def is_ordinary(error: BaseException) -> bool:
    """Whether it is how Python ends a loop or a generator, and no failure."""
    return isinstance(error, StopIteration | StopAsyncIteration | GeneratorExit)
