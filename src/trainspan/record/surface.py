"""What the functions of the API do in a process that may train: they make scopes, and events."""

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from trainspan import names
from trainspan.names import NamedPhase, Phase, named_phase
from trainspan.record.arguments import amount_of, flag_of, mapping_of, path_of, tag_of, text_of, whole_of
from trainspan.record.attributes import Value
from trainspan.record.callbacks import Callbacks
from trainspan.record.checkpoint_scope import CheckpointScope, tell_saved
from trainspan.record.engine import Engine
from trainspan.record.recorder import Recorder
from trainspan.record.scalars import scalars_of
from trainspan.record.scope import Scope
from trainspan.record.scopes import (
    EvaluationScope,
    EvaluationStepScope,
    LoopScope,
    PhaseScope,
    StepScope,
    TimedScope,
)
from trainspan.record.work import work_of
from trainspan.role import Role
from trainspan.sampling import SpanNames

CONFIGURED: Final[Mapping[str, tuple[str, Callable[[object], Value | None]]]] = {
    "global_batch_size": (names.GLOBAL_BATCH_SIZE, whole_of),
    "micro_batch_size": (names.MICRO_BATCH_SIZE, whole_of),
    "sequence_length": (names.SEQUENCE_LENGTH, whole_of),
    "flops_per_sample": (names.FLOPS_PER_SAMPLE, amount_of),
    "flops_per_token": (names.FLOPS_PER_TOKEN, amount_of),
    "target_steps": (names.TARGET_STEPS, whole_of),
    "target_samples": (names.TARGET_SAMPLES, whole_of),
    "target_tokens": (names.TARGET_TOKENS, whole_of),
    "first_step": (names.FIRST_GLOBAL_STEP, whole_of),
    "first_sample": (names.FIRST_SAMPLE, whole_of),
    "session_tag": (names.SESSION_TAG, tag_of),
    "perf_tag": (names.PERF_TAG, tag_of),
    "baseline": (names.BASELINE, flag_of),
}
"""What `configure` takes: its name on the wire, and what reads it."""

_VALIDATION: Final = int(Phase.VALIDATION)
_NAME_CHARACTERS: Final = 128
_INIT_STATES: Final = {"model": "model_init"}

T = TypeVar("T")


class Surface:
    """The API, live.

    Args:
        recorder: of this process.
        role: of this process.
        is_traced: whether a compiler traces what is running now.
        functions: of the API, by name.
    """

    def __init__(self, recorder: Recorder, role: str, is_traced: Callable[[], bool], functions: Mapping[str, Any]):
        self._recorder = recorder
        self.engine = Engine(recorder, is_traced, functions, may_begin=role == Role.RANK)
        self.callbacks = Callbacks(self.engine)
        self._number_of = self.engine.phases.number_of
        self._span_names = SpanNames.of(recorder.settings)

    def application(self) -> Scope:
        return LoopScope(self.engine, "application()", ("application", ()), names.SPAN_APPLICATION, is_training=False)

    def init(self, name: str) -> Scope:
        safe = self._phase_of(name, "init").name
        state = _INIT_STATES.get(safe, "init")
        what = f"init({safe!r})"
        span = f"{names.SPAN_INIT}.{safe}"
        return TimedScope(self.engine, what, ("init", (safe,)), span, state=state, begins=True)

    def training_loop(self, first_step: int | None, target_steps: int | None) -> Scope:
        told = {"first_step": first_step, "target_steps": target_steps}
        if first_step is not None or target_steps is not None:
            self.engine.safely(self._configure, told, "training_loop")
        call = "training_loop", (first_step, target_steps)
        return LoopScope(self.engine, "training_loop()", call, names.SPAN_LOOP, is_training=True)

    def step(self, number: object) -> Scope:
        return StepScope(self.engine, self._read(whole_of, number, "step(number=…)"))

    def phase(self, name: str) -> Scope:
        if type(name) is not str:
            name = self._phase_of(name, "phase").name
        return PhaseScope(self.engine, name, self._number_of(name))

    def evaluation(self, kind: str) -> Scope:
        return EvaluationScope(self.engine, f"{kind}_loop()", kind)

    def evaluation_step(self) -> Scope:
        return EvaluationStepScope(self.engine, "validation_step()", _VALIDATION)

    def checkpoint(self, kind: str, path: object, step: object, background: object) -> Scope:
        what = f"checkpoint_{kind}"
        return CheckpointScope(
            self.engine,
            f"{what}()",
            kind,
            self._read(path_of, path, f"{what}(path=…)"),
            self._read(whole_of, step, f"{what}(step=…)"),
            background=self._read(flag_of, background, f"{what}(background=…)") or False,
        )

    def checkpoint_saved(self, path: object) -> None:
        self.engine.safely(tell_saved, self.engine, self._read(path_of, path, "checkpoint_saved(path=…)"))

    def timed(self, name: object, attributes: object) -> Scope:
        phase = self._phase_of(name, "timed")
        what = f"timed({phase.name!r})"
        given = self._read(mapping_of, attributes, f"timed({phase.name!r}, attributes=…)")
        if not self._span_names.takes(phase.span):
            return Scope()
        values = self.engine.values_of(given, what) if given else {}
        return TimedScope(self.engine, what, ("timed", (phase.name, values)), phase.span, values)

    def _phase_of(self, name: object, what: str) -> NamedPhase:
        """What `name` is on the wire."""
        return named_phase(self._name_of(name, what))

    def _name_of(self, name: object, what: str) -> str:
        """`name` as a text; what is none has no name of its own."""
        text = text_of(name)
        if text is None:
            self._refuse(f"{what}(name=…)")
            return NamedPhase.REST
        return text

    def _read(self, read: Callable[[object], T | None], given: object, what: str) -> T | None:
        """What `read` makes of an argument that need not be given; what it can make nothing of is misuse."""
        if given is None:
            return None
        found = read(given)
        if found is None:
            self._refuse(what)
        return found

    def _refuse(self, what: str) -> None:
        self.engine.misuse.count("argument", what)

    def event(self, name: object, attributes: dict[str, Any]) -> None:
        self.engine.safely(self._event, self._name_of(name, "event")[:_NAME_CHARACTERS], attributes)

    def _event(self, name: str, attributes: dict[str, Any]) -> None:
        marker = self.engine.marker
        step = marker.steps() if marker.started() else None
        values = self.engine.values_of(attributes, f"event({name!r})")
        self.engine.event("user_event", name=name, step=step, attributes=values)

    def log(self, values: Any, value: Any, step: Any) -> None:
        self.engine.safely(self._log, values, value, step)

    def _log(self, values: Any, value: Any, step: Any) -> None:
        given: str | Mapping[Any, Any] | None = text_of(values)
        if given is None:
            given = self._read(mapping_of, values, "log(values=…)") or {}
            if value is not None:
                self._refuse("log({…}, value=…)")
        number = self._read(whole_of, step, "log(step=…)")
        for name in scalars_of(self._recorder).log(given, value, step=number):
            self._refuse(f"log({name[:_NAME_CHARACTERS]!r})")

    def counter(self, name: object, by: object) -> None:
        self.engine.safely(self._count, name, by)

    def _count(self, name: object, by: object) -> None:
        text = text_of(name)
        if text is None:
            self._refuse("counter(name=…)")
        elif not scalars_of(self._recorder).counter(text, by):
            self._refuse(f"counter({text[:_NAME_CHARACTERS]!r}, by=…)")

    def observe(self, name: object, callback: Any, total: object) -> None:
        self.engine.safely(self._observe, name, callback, total)

    def _observe(self, name: object, callback: Any, total: object) -> None:
        text = text_of(name)
        if text is None:
            self._refuse("observe(name=…)")
        elif not callable(callback):
            self._refuse(f"observe({text[:_NAME_CHARACTERS]!r}, callback=…)")
        else:
            only_grows = self._read(flag_of, total, f"observe({text[:_NAME_CHARACTERS]!r}, total=…)") or False
            scalars_of(self._recorder).observe(text, callback, total=only_grows)

    def processed(self, samples: Any, tokens: Any) -> None:
        self.engine.safely(self._add_work, samples, tokens)

    def _add_work(self, samples: Any, tokens: Any) -> None:
        for name in work_of(self._recorder).add(samples, tokens):
            self._refuse(f"processed({name}=…)")

    def configure(self, told: Mapping[str, Any]) -> None:
        self.engine.safely(self._configure, told, "configure")

    def _configure(self, told: Mapping[str, Any], what: str) -> None:
        given: dict[str, Any] = {}
        for name, (wire, read) in CONFIGURED.items():
            given[wire] = self._read(read, told.get(name), f"{what}({name}=…)")
        values = self.engine.values_of(given, f"{what}()")
        tags = self._read(mapping_of, told.get("tags"), f"{what}(tags=…)") or {}
        named = self.engine.values_of(tags, f"{what}(tags=…)")
        self.engine.event("configured", values=values, tags={name: str(value) for name, value in named.items()})

    def is_enabled(self, kind: object) -> bool:
        name = self._read(text_of, kind, "is_enabled(kind=…)")
        return kind is None or (name is not None and self._span_names.takes(name))
