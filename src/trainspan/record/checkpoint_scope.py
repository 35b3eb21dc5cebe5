"""A checkpoint as the script says it: around whatever saves or loads it, on any thread.

What `torch.save`, safetensors or `torch.distributed.checkpoint` do inside is a part of it, and not a second one; the
largest file they write is where it lies, unless the script has said so.
"""

from time import monotonic_ns
from typing import Final

from trainspan.names import Phase
from trainspan.record.checkpoints import Cover
from trainspan.record.engine import UNMARKED, Engine
from trainspan.record.marker import FOREIGN
from trainspan.record.scope import Scope
from trainspan.record.scopes import Call, LiveScope

_NUMBERS: Final = {"save": int(Phase.CHECKPOINT_SAVE), "load": int(Phase.CHECKPOINT_LOAD)}


class CheckpointScope(LiveScope):
    """One save or load.

    Args:
        kind: save or load.
        path: where it lies; None: where what is called inside puts it.
        step: number in the run of the step that training goes on with, of a load.
        background: whether the save goes on after this: `checkpoint_saved` says when it has succeeded.
    """

    __slots__ = ("_background", "_cover", "_kind", "_path", "_started", "_step", "number", "outer")

    lets_step_in = False

    def __init__(
        self,
        engine: Engine,
        what: str,
        kind: str,
        path: str | None = None,
        step: int | None = None,
        *,
        background: bool = False,
    ):
        super().__init__(engine, what)
        self._kind = kind
        self._path = path
        self._step = step
        self._background = background
        self.number = _NUMBERS[kind]
        self.outer = UNMARKED
        self._cover: Cover | None = None
        self._started: tuple[int, int] | None = None  # ns, and the number of the next step

    def again(self) -> Scope:
        return CheckpointScope(self._engine, self.what, self._kind, self._path, self._step, background=self._background)

    def call(self) -> Call:
        more = self._background if self._kind == "save" else self._step
        return f"checkpoint_{self._kind}", (self._path, more)

    def start(self) -> None:
        engine, notes = self._engine, self._engine.recorder.notes
        engine.begin_if_alone()
        if self._started is not None:
            engine.misuse.count("reentered", self.what)
            return
        here = engine.marker.mine()
        if here and notes.cover is not None:
            engine.misuse.count("nested", self.what)
            return
        self._started = monotonic_ns(), engine.marker.steps()
        self.outer = FOREIGN
        if here:
            engine.enter(self)
            self._cover = notes.cover = Cover(self._kind)

    def end(self, error: BaseException | None) -> None:
        if self._started is None:
            return
        (start_ns, step), self._started = self._started, None
        engine, notes = self._engine, self._engine.recorder.notes
        cover, self._cover = self._cover, None
        if cover is not None and notes.cover is cover:
            notes.cover = None
        blocking = cover is not None or not engine.recorder.recording
        engine.leave(self, failed=error is not None)
        path = self._path or (cover.path if cover is not None else None)
        staging = self._background or (cover is not None and cover.staging)
        if staging and error is None:
            notes.stage_path(path, step, start_ns)
        more = {"run_step": self._step} if self._step is not None and self._kind == "load" else {}
        notes.tell(self._kind, path, start_ns, step, ok=error is None, blocking=blocking, staging=staging, **more)


def tell_saved(engine: Engine, path: str | None) -> None:
    """A save that went on in the background has succeeded."""
    notes = engine.recorder.notes
    now_ns, step = monotonic_ns(), engine.marker.steps()
    notes.tell("save", path, now_ns, step, ok=True, blocking=False, staging=False)
