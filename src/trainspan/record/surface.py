"""What the functions of the API do in a process that may train: they make scopes, and events."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from trainspan import names
from trainspan.names import NamedPhase, Phase, named_phase
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

CONFIGURED: Final = {
    "global_batch_size": names.GLOBAL_BATCH_SIZE,
    "micro_batch_size": names.MICRO_BATCH_SIZE,
    "sequence_length": names.SEQUENCE_LENGTH,
    "flops_per_sample": names.FLOPS_PER_SAMPLE,
    "flops_per_token": names.FLOPS_PER_TOKEN,
    "target_steps": names.TARGET_STEPS,
    "target_samples": names.TARGET_SAMPLES,
    "target_tokens": names.TARGET_TOKENS,
    "first_step": names.FIRST_GLOBAL_STEP,
    "first_sample": names.FIRST_SAMPLE,
    "session_tag": names.SESSION_TAG,
    "perf_tag": names.PERF_TAG,
    "baseline": names.BASELINE,
}
"""What `configure` takes, and its name on the wire."""

_VALIDATION: Final = int(Phase.VALIDATION)
_NAME_CHARACTERS: Final = 128
_INIT_STATES: Final = {"model": "model_init"}


class Surface:
    """The API, live.

    Args:
        recorder: of this process.
        role: of this process.
        is_traced: whether a compiler traces what is running now.
    """

    def __init__(self, recorder: Recorder, role: str, is_traced: Callable[[], bool]):
        self._recorder = recorder
        self.engine = Engine(recorder, is_traced, may_begin=role == Role.RANK)
        self.callbacks = Callbacks(self.engine)
        self._number_of = self.engine.phases.number_of
        self._span_names = SpanNames.of(recorder.settings)

    def application(self) -> Scope:
        return LoopScope(self.engine, "application()", names.SPAN_APPLICATION, is_training=False)

    def init(self, name: str) -> Scope:
        safe = self._phase_of(name, "init").name
        state = _INIT_STATES.get(safe, "init")
        what = f"init({safe!r})"
        return TimedScope(self.engine, what, f"{names.SPAN_INIT}.{safe}", state=state, begins=True)

    def training_loop(self, first_step: int | None, target_steps: int | None) -> Scope:
        told = {"first_step": first_step, "target_steps": target_steps}
        if first_step is not None or target_steps is not None:
            self.configure(told)
        return LoopScope(self.engine, "training_loop()", names.SPAN_LOOP, is_training=True)

    def step(self, number: int | None) -> Scope:
        return StepScope(self.engine, number if type(number) is int else None)

    def phase(self, name: str) -> Scope:
        if type(name) is not str:
            name = self._phase_of(name, "phase").name
        return PhaseScope(self.engine, name, self._number_of(name))

    def evaluation(self, kind: str) -> Scope:
        return EvaluationScope(self.engine, f"{kind}_loop()", kind)

    def evaluation_step(self) -> Scope:
        return EvaluationStepScope(self.engine, "validation_step()", _VALIDATION)

    def checkpoint(self, kind: str, path: Any, step: int | None, background: bool) -> Scope:
        return CheckpointScope(self.engine, f"checkpoint_{kind}()", kind, path, step, background=background)

    def checkpoint_saved(self, path: Any) -> None:
        self.engine.safely(tell_saved, self.engine, path)

    def timed(self, name: str, attributes: Mapping[str, Any] | None) -> Scope:
        phase = self._phase_of(name, "timed")
        if not self._span_names.takes(phase.span):
            return Scope()
        what = f"timed({phase.name!r})"
        values = self.engine.values_of(attributes, what) if isinstance(attributes, dict) else {}
        return TimedScope(self.engine, what, phase.span, values)

    def _phase_of(self, name: object, what: str) -> NamedPhase:
        """What `name` is on the wire; what is no text has no name of its own."""
        if isinstance(name, str):
            return named_phase(name)
        self.engine.misuse.count("value", f"{what}(), of which the name")
        return named_phase(NamedPhase.REST)

    def event(self, name: str, attributes: dict[str, Any]) -> None:
        self.engine.safely(self._event, str(name)[:_NAME_CHARACTERS], attributes)

    def _event(self, name: str, attributes: dict[str, Any]) -> None:
        marker = self.engine.marker
        step = marker.steps() if marker.started() else None
        values = self.engine.values_of(attributes, f"event({name!r})")
        self.engine.event("user_event", name=name, step=step, attributes=values)

    def log(self, values: Any, value: Any, step: Any) -> None:
        scalars_of(self._recorder).log(values, value, step=step)

    def counter(self, name: str, by: Any) -> None:
        scalars_of(self._recorder).counter(name, by)

    def observe(self, name: str, callback: Callable[[], Any]) -> None:
        scalars_of(self._recorder).observe(name, callback)

    def processed(self, samples: Any, tokens: Any) -> None:
        work_of(self._recorder).add(samples, tokens)

    def configure(self, told: Mapping[str, Any]) -> None:
        self.engine.safely(self._configure, told)

    def _configure(self, told: Mapping[str, Any]) -> None:
        given = {CONFIGURED[name]: told[name] for name in CONFIGURED if told.get(name) is not None}
        values = self.engine.values_of(given, "configure()")
        tags = told.get("tags")
        named = self.engine.values_of(dict(tags), "configure(tags=…)") if isinstance(tags, Mapping) else {}
        self.engine.event("configured", values=values, tags={name: str(value) for name, value in named.items()})

    def is_enabled(self, kind: str | None) -> bool:
        return kind is None or self._span_names.takes(str(kind))
