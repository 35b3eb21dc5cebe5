"""The scopes of the API where there is something to record.

    PhaseScope        a phase of the step, known or the script's own
    EvaluationScope   a validation or a test: the phase `validation`, or a generation; a span counts what was in it
    StepScope         one step of training, however many optimizers step in it
    LoopScope         the application, the training loop: a span, and the sign that this process trains
    TimedScope        any stretch, on any thread: a span

Cost: a phase 2 µs; what makes a span, 25 µs.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from time import monotonic_ns
from types import TracebackType
from typing import Any, Final, TypeVar

from trainspan import names
from trainspan.names import Phase
from trainspan.record.arguments import is_function
from trainspan.record.attributes import Value
from trainspan.record.engine import UNMARKED, Engine, is_ordinary
from trainspan.record.scope import Scope, decorated

F = TypeVar("F", bound=Callable[..., Any])
L = TypeVar("L", bound="LiveScope")

Call = tuple[str, tuple[Any, ...]]
"""A function of the API by name, and what it is given."""

_VALIDATION: Final = int(Phase.VALIDATION)
_GENERATION: Final = int(Phase.GENERATION)
_EVALUATION: Final = "evaluation"
_STEP: Final = "step"


class LiveScope(Scope, ABC):
    """What all of them have in common: ours fails quietly, and a decorator makes a new scope for each call.

    An object that holds one can be copied and pickled. A copy is another scope like it; a pickle is the call that made
    it, which does nothing in a process that records nothing.

    `what` is that call, in words.
    """

    __slots__ = ("_engine", "what")

    def __init__(self, engine: Engine, what: str):
        self._engine = engine
        self.what = what

    def __enter__(self: L) -> L:
        self._engine.safely(self.start)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, stack: TracebackType | None
    ) -> None:
        self._engine.safely(self.end, error)

    def __call__(self, function: F) -> F:
        if not is_function(function):
            # A class or a module inside a function is none any more, and a static method is a method.
            self._engine.misuse.count("argument", self.what)
            return function
        return decorated(function, self, self._engine.is_traced)

    def __copy__(self) -> Scope:
        return self.again()

    def __deepcopy__(self, memo: dict[int, Any]) -> Scope:
        return self.again()

    def __reduce__(self) -> tuple[Callable[..., Scope], tuple[Any, ...]]:
        function, arguments = self.call()
        return self._engine.functions[function], arguments

    @abstractmethod
    def again(self) -> Scope: ...

    @abstractmethod
    def call(self) -> Call:
        """The call that makes such a scope."""

    @abstractmethod
    def start(self) -> None:
        """What happens when it is entered."""

    @abstractmethod
    def end(self, error: BaseException | None) -> None:
        """What happens when it is left, by this error if there is one."""


class PhaseScope(LiveScope):
    """A phase."""

    __slots__ = ("_ignored", "number", "outer")

    lets_step_in = True

    def __init__(self, engine: Engine, what: str, number: int):
        super().__init__(engine, what)
        self.number = number
        self.outer = UNMARKED
        self._ignored = 0  # entries of this very scope while it is open

    def again(self) -> Scope:
        return PhaseScope(self._engine, self.what, self.number)

    def call(self) -> Call:
        return "phase", (self.what,)

    def start(self) -> None:
        if self.outer >= 0 or self._engine.is_in(self.number):
            self._engine.misuse.count("reentered", self.what)
            self._ignored += self.outer >= 0
        else:
            self._engine.enter(self)

    def end(self, error: BaseException | None) -> None:
        if self._ignored:
            self._ignored -= 1
        else:
            self._engine.leave(self, failed=error is not None and not is_ordinary(error))


class NotingScope(LiveScope):
    """A scope that makes a span: `note` adds to its attributes."""

    __slots__ = ("_attributes", "_call", "_started_ns")

    def __init__(self, engine: Engine, what: str, call: Call, attributes: dict[str, Value] | None = None):
        super().__init__(engine, what)
        self._call = call
        self._attributes = attributes or {}
        self._started_ns: int | None = None  # while it is open

    def call(self) -> Call:
        return self._call

    def note(self, /, **attributes: Any) -> None:
        self._engine.safely(self._note, attributes)

    def _note(self, attributes: dict[str, Any]) -> None:
        self._attributes = {**self._attributes, **self._engine.values_of(attributes, self.what)}

    def _open_once(self, kind: str) -> bool:
        """Begin, unless another scope of this kind is open or the thread does not train: both are misuse."""
        if not self._engine.takes_thread(self.what):
            return False
        if kind in self._engine.loops:
            self._engine.misuse.count("nested", self.what)
            return False
        self._engine.loops[kind] = self
        self._started_ns = monotonic_ns()
        return True

    def _close(self, kind: str) -> int | None:
        """When it began, once: it has ended. None: it had not, or not in this process."""
        started_ns, self._started_ns = self._started_ns, None
        if started_ns is None:
            return None
        if self._engine.loops.get(kind) is not self:
            self._engine.misuse.count("fork" if self._engine.forked else "end_without_start", self.what)
            return None
        del self._engine.loops[kind]
        return started_ns


class EvaluationScope(NotingScope):
    """A stretch in which the model is used and not trained; what is in it is all of one phase.

    `kind`: `validation`, `testing` or `generation`.
    """

    __slots__ = ("_kind", "iterations", "number", "outer")

    lets_step_in = False

    def __init__(self, engine: Engine, what: str, kind: str):
        super().__init__(engine, what, (f"{kind}_loop", ()))
        self._kind = kind
        self.iterations = 0
        self.number = _GENERATION if kind == "generation" else _VALIDATION
        self.outer = UNMARKED

    def again(self) -> Scope:
        return EvaluationScope(self._engine, self.what, self._kind)

    def start(self) -> None:
        if self._open_once(_EVALUATION):
            self.iterations = 0
            self._engine.enter(self)

    def end(self, error: BaseException | None) -> None:
        started_ns = self._close(_EVALUATION)
        if started_ns is None:
            return
        self._engine.leave(self, failed=error is not None and not is_ordinary(error))
        attributes = {**self._attributes, names.VALIDATION_ITERATIONS: self.iterations}
        state = "validation" if self.number == _VALIDATION else None
        self._engine.span(f"training.{self._kind}", started_ns, error, attributes, state)


class EvaluationStepScope(PhaseScope):
    """One batch of an evaluation; outside of any, it is one by itself."""

    __slots__ = ()

    def again(self) -> Scope:
        return EvaluationStepScope(self._engine, self.what, self.number)

    def call(self) -> Call:
        return "validation_step", ()

    def start(self) -> None:
        evaluation = self._engine.loops.get(_EVALUATION)
        if evaluation is None:
            super().start()
        else:
            evaluation.iterations += 1


class StepScope(LiveScope):
    """One step of training: it ends where this is left, and not where an optimizer's step in it ends."""

    __slots__ = ("_number", "_open")

    def __init__(self, engine: Engine, number: int | None):
        super().__init__(engine, "step()")
        self._number = number
        self._open = False

    def again(self) -> Scope:
        return StepScope(self._engine, None)  # the number is that of one step

    def call(self) -> Call:
        return "step", (self._number,)

    def start(self) -> None:
        engine = self._engine
        engine.begin()
        if not engine.takes_thread(self.what):
            return
        if _STEP in engine.loops or not engine.between_phases():
            engine.misuse.count("nested", self.what)
            return
        engine.loops[_STEP] = self
        self._open = True
        engine.begin_steps()
        engine.marker.hold_step(True)
        if self._number is not None:
            engine.number_step(self._number)

    def end(self, error: BaseException | None) -> None:
        if not self._open:
            return
        self._open = False
        engine = self._engine
        if engine.loops.get(_STEP) is not self:
            engine.misuse.count("fork", self.what)
            return
        del engine.loops[_STEP]
        if not engine.marker.mine():
            engine.misuse.count("thread", self.what)
            return
        engine.marker.hold_step(False)
        if error is None:
            engine.end_step(self.what)
        elif not is_ordinary(error) and engine.between_phases():
            engine.marker.fail()


class LoopScope(NotingScope):
    """The application, or its training loop.

    `span`: name of its span. `is_training`: whether the first step begins with it.
    """

    __slots__ = ("_is_training", "_span", "_steps")

    def __init__(
        self,
        engine: Engine,
        what: str,
        call: Call,
        span: str,
        attributes: dict[str, Value] | None = None,
        *,
        is_training: bool,
    ):
        super().__init__(engine, what, call, attributes)
        self._span = span
        self._is_training = is_training
        self._steps = 0

    def again(self) -> Scope:
        return LoopScope(
            self._engine, self.what, self._call, self._span, self._attributes, is_training=self._is_training
        )

    def start(self) -> None:
        self._engine.begin()
        if self._open_once(self._span):
            self._steps = self._engine.marker.steps()
            if self._is_training:
                self._engine.begin_steps()

    def end(self, error: BaseException | None) -> None:
        started_ns = self._close(self._span)
        if started_ns is not None:
            steps = self._engine.marker.steps() - self._steps
            self._engine.span(self._span, started_ns, error, {**self._attributes, names.STEPS_DONE: steps})


class TimedScope(NotingScope):
    """Any stretch of time: a span, on any thread."""

    __slots__ = ("_begins", "_span", "_starts_ns", "_state")

    def __init__(
        self,
        engine: Engine,
        what: str,
        call: Call,
        span: str,
        attributes: dict[str, Value] | None = None,
        *,
        state: str | None = None,
        begins: bool = False,
    ):
        super().__init__(engine, what, call, attributes)
        self._span = span
        self._state = state
        self._begins = begins
        self._starts_ns: list[int] = []

    def again(self) -> Scope:
        return TimedScope(
            self._engine,
            self.what,
            self._call,
            self._span,
            self._attributes,
            state=self._state,
            begins=self._begins,
        )

    def start(self) -> None:
        if self._begins:
            self._engine.begin()
        else:
            self._engine.begin_if_alone()
        self._engine.spans.said[self._span] += 1
        self._starts_ns.append(monotonic_ns())

    def end(self, error: BaseException | None) -> None:
        if self._starts_ns:
            self._engine.spans.said[self._span] -= 1
            self._engine.span(self._span, self._starts_ns.pop(), error, self._attributes, self._state)
