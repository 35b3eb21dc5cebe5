"""Optimizer steps and the boundary of a step, by torch's own global hooks.

A step of training ends when the lead optimizer's outermost `step` returns. The lead is the first to step; if it has
not stepped while another did `_PATIENCE` times, that one becomes the lead. So a GAN's two optimizers make one step an
iteration, accumulation makes one step of several micro-batches, and a wrapper that calls an inner optimizer (ZeRO, a
subclass calling super().step()) counts once. An optimizer that was made after the lead's last step leads from its own
first one: another training has begun, though the lead may still be there. Cost: 0.5 µs a step.

Optimizers that step as soon as a gradient is there (a hook on each parameter) do so in a backward, where they are: the
step of training ends with it. Beside one that steps outside, as of a framework, they end none.

A framework's own step may let one optimizer step several times (a partition of the parameters after the other), several
optimizers, or none (a gradient was infinite, or the framework's optimizers are none of torch's). It is marked as a
whole, and is one step.
"""

import functools
import sys
import weakref
from collections.abc import Callable, Iterable
from types import CodeType, FrameType
from typing import Any, NamedTuple

import torch
from torch.optim import optimizer as optim
from torch.optim.optimizer import Optimizer

from trainspan.guard import warn_once
from trainspan.names import Phase
from trainspan.record.marker import FOREIGN, NESTED, SAME, Marker
from trainspan.record.patches import Patches
from trainspan.record.traced import compiler, is_traced

_OPTIMIZER = int(Phase.OPTIMIZER)
_BACKWARD = int(Phase.BACKWARD)
_PATIENCE = 8
_NO_GRAPH_TASK = -1
_graph_task: Callable[[], int] = getattr(torch._C, "_current_graph_task_id", lambda: _NO_GRAPH_TASK)


class Stepping(NamedTuple):
    """What others may ask and tell of the optimizers' steps.

    `lead()`: the optimizer whose steps are the steps of training; None before the first.
    `scaled(outer)`: a gradient scaler, in a phase of its own, may let an optimizer step; with that its phase ends, and
    the rank is back in `outer`. `unscaled()`: whether none has stepped; none is expected to any more.
    `skipped(optimizer, outer)`: the scaler did not let it, and the phase ends with that.
    `made(optimizer)`: there is an optimizer that is none of torch's, and the calling thread is going to train with it.
    `whole(call, outcome)`: `call`, a framework's own step, marked as one, whatever steps in it.
    `outcome(args, result)`: the optimizer that stands for it, and whether the step was made; None: none was due, as in
    an accumulation that the optimizer keeps itself. It may raise.
    """

    lead: Callable[[], Any]
    scaled: Callable[[int], None]
    unscaled: Callable[[], bool]
    skipped: Callable[[Any, int], None]
    made: Callable[[Any], None]
    whole: Callable[[Callable[..., Any], "Outcome"], Callable[..., Any]]


Outcome = Callable[[tuple[Any, ...], Any], tuple[Any, bool | None]]


def install(
    marker: Marker,
    patches: Patches,
    claim: Callable[[], bool],
    step_ends: Iterable[Callable[[], None]],
    made: Callable[[Any], None] = lambda _: None,
) -> Stepping:
    """Mark every optimizer step, and the end of every step of training.

    Args:
        marker: where the marks go.
        patches: remembers the originals.
        claim: asks to record for the calling thread, which evidently trains, or is going to: it makes an optimizer;
            True if it now does.
        step_ends: each is called after every step of training; more may join.
        made: `made(optimizer)` is told of each one that is made.

    Raises:
        AttributeError: this torch has no global optimizer hooks (before 2.1); there are then no steps to see.
    """
    lead = _Lead()

    def note_made(optimizer: Any) -> None:
        lead.note_made(optimizer, marker.steps())
        made(optimizer)

    def foreign_made(optimizer: Any) -> None:
        claim()
        note_made(optimizer)

    before, after, stepping = _hooks(marker, claim, step_ends, lead, foreign_made)
    handles = (optim.register_optimizer_step_pre_hook(before), optim.register_optimizer_step_post_hook(after))
    for handle in handles:
        patches.on_undo(handle.remove)
    make = vars(Optimizer)["__init__"]

    def make_optimizer(self: Any, *args: Any, **kwargs: Any) -> None:
        claim()
        make(self, *args, **kwargs)
        note_made(self)

    patches.replace(Optimizer, "__init__", functools.update_wrapper(make_optimizer, make))
    return stepping


class _Lead:
    """Which optimizer's steps are the steps of training.

    Attributes:
        optimizer: `optimizer()`: the lead itself; None before the first step, and once it is gone.
        others: steps of others since its last one.
    """

    __slots__ = ("_inside", "_made", "_made_at", "optimizer", "others")

    def __init__(self) -> None:
        self.optimizer: Callable[[], Any] = lambda: None  # a weak reference, once there is one
        self.others = 0
        self._inside = False  # whether it is one of those that step in the backward
        self._made: set[int] = set()  # since that many steps
        self._made_at = 0

    def note_made(self, optimizer: Any, steps: int) -> None:
        """Take over that an optimizer was made after so many steps of training."""
        if steps != self._made_at:
            self._made_at = steps
            self._made.clear()
        self._made.add(id(optimizer))

    def is_inside(self, optimizer: Any, steps: int) -> bool:
        """Whether a backward, in which this one was the first to step, has ended a step of training."""
        if not self._inside and self.is_followed(optimizer, steps):
            self._inside = True
        return self._inside

    def is_followed(self, optimizer: Any, steps: int) -> bool:
        """Whether a step of another one ends a step of training all the same: it becomes the lead.

        Args:
            optimizer: the other one.
            steps: of training so far.
        """
        self.others += 1
        is_new = self._made_at == steps > 0 and id(optimizer) in self._made
        is_led = self.optimizer() is not None
        if is_led and self.others < _PATIENCE and not is_new and not self._inside:
            return False
        # The backward of this step has just ended it: who steps outside of it leads from the next one on.
        ends = not self._inside or is_new or not is_led
        self._elect(optimizer)
        return ends

    def _elect(self, optimizer: Any) -> None:
        self.others = 0
        self._inside = False
        self.optimizer = weakref.ref(optimizer)


def _hooks(  # noqa: PLR0915 - closures over one state, each a few lines
    marker: Marker,
    claim: Callable[[], bool],
    step_ends: Iterable[Callable[[], None]],
    lead: _Lead,
    made: Callable[[Any], None],
) -> tuple[Callable[[Any, Any, Any], None], Callable[[Any, Any, Any], None], Stepping]:
    enter, resume, step, abort, mine = marker.enter, marker.resume, marker.step, marker.abort, marker.mine
    wrapper: CodeType | None = None
    depth = 0  # calls of the wrapper on the stack, as far as they have been marked
    outer = 0
    in_whole = unmade = False  # a framework's own step is open; a scaler in it has not let the optimizer step
    scaled_in: int | None = None  # where a gradient scaler was asked for a step; None: none is, or any more
    inside: Any = None  # the first optimizer that has stepped in the backward that is open
    alone = False  # whether every step so far was one of the thread that trains; once that is not so, it stays so
    foreign = False  # whether another thread has taken one

    def runs() -> bool:
        # Asked by whatever is entered while an optimizer's step is open: a closure's forward, or, when an exception
        # left the step without its post hook being called, the next batch.
        nonlocal depth
        if _frames_of(wrapper) >= depth:
            return True
        depth = 0
        abort(outer)
        return False

    def before(optimizer: Any, args: Any, kwargs: Any) -> None:
        nonlocal depth, outer
        if (depth or in_whole or scaled_in is not None or wrapper is None) and goes_on(sys._getframe(1).f_code):
            return
        entered = enter(_OPTIMIZER)
        if entered < 0:
            entered = refused(entered, optimizer)
        if entered >= 0:
            outer = entered
            depth = 1

    def goes_on(caller: CodeType) -> bool:
        """Whether this is an inner step of one that is marked."""
        nonlocal depth, scaled_in, wrapper
        if wrapper is None:
            # What torch wraps around every optimizer's `step` calls this hook.
            wrapper = caller
        if depth and mine():
            frames = _frames_of(wrapper)
            if frames > 1:
                depth = frames
                return True
            depth = 0
            # Who has left the optimizer's step by way of an outer phase has left that one too, and says so itself.
            if marker.now() == _OPTIMIZER:
                abort(outer)
        if scaled_in is not None and mine():
            resume(scaled_in)
            scaled_in = None
        return in_whole and mine()

    def refused(answer: int, optimizer: Any) -> int:
        """The phase to return to after all."""
        nonlocal alone, foreign, inside
        if answer == SAME:
            return _OPTIMIZER  # the user has marked this as a phase
        # The backward of a device's tensors runs on a thread of torch's, for the one that waits for it.
        if marker.now() == _BACKWARD and (answer == NESTED or _graph_task() != _NO_GRAPH_TASK):
            if inside is None:
                inside = optimizer
            marker.on_leave(left_backward)
            return NESTED
        if answer == FOREIGN:
            # It may still be open when the next step of the thread that trains ends.
            alone, foreign = False, True
            if claim():
                return enter(_OPTIMIZER)
        return answer

    def left_backward(failed: bool) -> None:
        nonlocal inside
        optimizer, inside = inside, None
        if not failed and not marker.held() and lead.is_inside(optimizer, marker.steps()):
            lead.others = 0
            marker.complete()
            for end in step_ends:
                end()

    def after(optimizer: Any, args: Any, kwargs: Any) -> None:
        nonlocal depth
        if (depth != 1 or not alone) and not ends():
            return
        if lead.optimizer() is not optimizer:
            close(optimizer, outer, step)
            depth = 0
            return
        # `close`, written out for the commonest end.
        lead.others = 0
        ended = step(outer)
        depth = 0  # not before: what a signal's handler raises here leaves the step, and the next to come sees that
        if ended:
            for end in step_ends:
                end()

    def ends() -> bool:
        """Whether the outermost step has ended, which `depth` still counts then."""
        nonlocal depth, alone
        if not depth or not mine():
            return False
        alone = not foreign
        if depth > 1:
            # An inner step that an exception left is not on the stack any more, and its hook was not called.
            left = min(depth, _frames_of(wrapper) or depth) - 1
            depth = left or 1
            return not left
        return True

    def close(optimizer: Any, outer: int, end_step: Callable[[int], bool]) -> None:
        if lead.optimizer() is not optimizer and not lead.is_followed(optimizer, marker.steps()):
            if outer != _OPTIMIZER:
                resume(outer)
            return
        lead.others = 0
        if end_step(outer):
            for end in step_ends:
                end()

    def leading() -> Any:
        return lead.optimizer()

    def scaled(outer: int) -> None:
        nonlocal scaled_in
        scaled_in = outer

    def unscaled() -> bool:
        nonlocal scaled_in
        waited, scaled_in = scaled_in is not None, None
        return waited

    def skipped(optimizer: Any, outer: int) -> None:
        nonlocal unmade
        if in_whole:
            unmade = True
            resume(outer)
        else:
            close(optimizer, outer, marker.skip)

    def whole(call: Callable[..., Any], outcome: Outcome) -> Callable[..., Any]:
        def whole_step(*args: Any, **kwargs: Any) -> Any:
            nonlocal in_whole, unmade
            if is_traced() or compiler._is_compiling_flag or (mine() and (in_whole or (depth and runs()))):
                return call(*args, **kwargs)
            outer = enter(_OPTIMIZER)
            if outer < 0:
                outer = refused(outer, call)
            if outer < 0:
                return call(*args, **kwargs)
            in_whole, unmade = True, False
            try:
                result = call(*args, **kwargs)
            except BaseException:
                in_whole = False
                if outer != _OPTIMIZER:
                    abort(outer)
                raise
            in_whole = False
            optimizer, was_made = _known(outcome, args, result)
            if was_made is not None:
                close(optimizer, outer, step if was_made and not unmade else marker.skip)
            elif outer != _OPTIMIZER:
                resume(outer)
            return result

        return functools.update_wrapper(whole_step, call)

    for hook in (before, after):
        # A compiler that traces `step` calls the hooks as they are. Stepping aside, as other hooks do, would leave no
        # step at all where the optimizer is compiled. Every torch so far breaks its graph in `step` by itself.
        hook._torchdynamo_disable = True  # type: ignore[attr-defined]  # torch's name, on any function
    marker.guard_optimizer(runs)
    return before, after, Stepping(leading, scaled, unscaled, skipped, made, whole)


def _known(outcome: Outcome, args: tuple[Any, ...], result: Any) -> tuple[Any, bool | None]:
    """The outcome of a framework's step; one that it does not tell as expected was made, by nobody that is known."""
    try:
        optimizer, made = outcome(args, result)
        weakref.ref(optimizer)  # as the lead is kept
        return optimizer, made
    except Exception as error:
        warn_once("whole_step", f"whether a step was skipped is not known: {type(error).__name__}: {error}")
        return outcome, True


def _frames_of(code: CodeType | None) -> int:
    """How many calls of `code` are on this thread's stack. Cost: 50 ns a frame."""
    count = 0
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        count += frame.f_code is code
        frame = frame.f_back
    return count
