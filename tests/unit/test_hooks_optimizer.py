"""Optimizer steps: which of them end a step of training, and what a failure leaves behind."""

import inspect
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import torch
from torch.optim import SGD, Optimizer
from torch.optim import optimizer as optim

from tests.unit.tapes import Tape, recording_marker
from trainspan.guard import seen
from trainspan.names import Phase
from trainspan.record.hooks import optimizer as hook
from trainspan.record.marker import Marker
from trainspan.record.patches import Patches
from trainspan.recording.layout import SKIPPED


class Watched(NamedTuple):
    """The marker, its tape, who claimed to train, and how many steps have ended."""

    marker: Marker
    tape: Tape
    claims: list[int]
    stepped: list[int]
    patches: Patches
    stepping: hook.Stepping

    def steps(self) -> list[str]:
        """The marks that end a step or an optimizer."""
        return [mark for mark in self.tape.written() if not mark.startswith("enter")]


@pytest.fixture
def watched() -> Iterator[Watched]:
    """Torch with the hook in it; no other thread may train."""
    marker, tape = recording_marker()
    claims: list[int] = []
    stepped: list[int] = []
    patches = Patches()

    def claim() -> bool:
        claims.append(threading.get_ident())
        return False

    stepping = hook.install(marker, patches, claim, [lambda: stepped.append(marker.steps())])
    yield Watched(marker, tape, claims, stepped, patches, stepping)
    patches.undo()


class Foreign:
    """An optimizer that is none of torch's."""


def make(kind: Callable[..., Any] = SGD) -> Any:
    """An optimizer over one weight with a gradient."""
    weight = torch.nn.Parameter(torch.zeros(1))
    weight.grad = torch.ones(1)
    return kind([weight], lr=0.1)


class Inherited(SGD):
    """Calls the step that it inherits."""

    def step(self, closure: Callable[[], float] | None = None) -> Any:
        return super().step(closure)


class Failing(SGD):
    """Fails when told to."""

    fails = True

    def step(self, closure: Callable[[], float] | None = None) -> Any:
        if self.fails:
            raise ArithmeticError
        return super().step(closure)


class Tolerant(SGD):
    """Goes on without an inner optimizer that fails."""

    inner: Failing

    def step(self, closure: Callable[[], float] | None = None) -> Any:
        try:
            self.inner.step()
        except ArithmeticError:
            return super().step(closure)


def test_step_is_marked_and_ends_a_step_of_training(watched: Watched) -> None:
    """Everything is counted from it."""
    optimizer = make()

    optimizer.step()
    optimizer.step()

    assert watched.tape.written() == ["enter optimizer", "step other 0", "enter optimizer", "step other 1"]
    assert watched.stepped == [1, 2]


@pytest.mark.parametrize("kind", [Inherited, Failing])
def test_step_that_calls_another_counts_once(watched: Watched, kind: type[SGD]) -> None:
    """Torch calls its hooks for the step that is inherited as well."""
    optimizer = make(kind)
    optimizer.fails = False

    optimizer.step()

    assert watched.tape.written() == ["enter optimizer", "step other 0"]


def test_step_after_a_failure_is_recorded_right(watched: Watched) -> None:
    """The hook behind a step that fails is not called."""
    optimizer = make(Failing)

    with pytest.raises(ArithmeticError):
        optimizer.step()
    optimizer.fails = False
    optimizer.step()

    assert watched.tape.written() == ["enter optimizer", "abort other", "enter optimizer", "step other 0"]


def test_phase_after_a_failure_is_not_inside_the_optimizer(watched: Watched) -> None:
    """The next thing that a loop does is to ask for a batch."""
    with pytest.raises(ArithmeticError):
        make(Failing).step()

    watched.marker.resume(watched.marker.enter(Phase.DATA_WAIT))

    assert watched.tape.written() == ["enter optimizer", "abort other", "enter data_wait", "resume other"]


def test_inner_failure_that_is_caught_does_not_hide_the_step(watched: Watched) -> None:
    """The outer step went well: it counts, and so does the next."""
    optimizer = make(Tolerant)
    optimizer.inner = make(Failing)

    optimizer.step()
    optimizer.step()

    assert watched.steps() == ["step other 0", "step other 1"]


def test_closure_is_inside_the_optimizer(watched: Watched) -> None:
    """LBFGS and Lightning run forward and backward in there."""

    def closure() -> float:
        watched.marker.resume(watched.marker.enter(Phase.FORWARD))
        return 0.0

    make().step(closure)

    assert watched.tape.written() == ["enter optimizer", "enter forward", "resume optimizer", "step other 0"]


def test_second_optimizer_ends_no_step(watched: Watched) -> None:
    """A GAN has two for one iteration."""
    first, second = make(), make()

    for optimizer in (first, second, first, second):
        optimizer.step()

    assert watched.steps() == ["step other 0", "resume other", "step other 1", "resume other"]


def test_second_optimizer_leads_when_the_first_has_not_stepped_for_long(watched: Watched) -> None:
    """Training in stages: the first one is still there, and never steps again."""
    first, second = make(), make()
    first.step()

    for _ in range(10):
        second.step()

    assert watched.steps() == ["step other 0", *["resume other"] * 7, "step other 1", "step other 2", "step other 3"]


def test_second_optimizer_leads_at_once_when_the_first_is_gone(watched: Watched) -> None:
    """A second training in the same process has an optimizer of its own."""
    first = make()
    first.step()
    del first

    make().step()

    assert watched.steps() == ["step other 0", "step other 1"]


def step_inside(watched: Watched, *optimizers: Optimizer, failed: bool = False) -> None:
    """A backward in which each of them steps once."""
    outer = watched.marker.enter(Phase.BACKWARD)
    for optimizer in optimizers:
        optimizer.step()
    (watched.marker.abort if failed else watched.marker.resume)(outer)


def test_backward_in_which_optimizers_step_ends_a_step_of_training(watched: Watched) -> None:
    """Each parameter may be updated as soon as it has its gradient: there is no other sign of a step."""
    optimizers = [make() for _ in range(20)]

    for _ in range(3):
        step_inside(watched, *optimizers)

    steps = [mark for number in range(3) for mark in ("enter backward", "resume other", f"step other {number}")]
    assert watched.tape.written() == steps
    assert watched.stepped == [1, 2, 3]


def test_backward_that_fails_ends_no_step(watched: Watched) -> None:
    """The next one has nothing of it."""
    optimizer = make()

    step_inside(watched, optimizer, failed=True)
    step_inside(watched)
    step_inside(watched, optimizer)

    assert watched.steps() == ["abort other", "resume other", "resume other", "step other 0"]


def test_steps_inside_a_held_step_end_none(watched: Watched) -> None:
    """The script itself says where a step ends."""
    optimizer = make()
    watched.marker.hold_step(True)

    step_inside(watched, optimizer)
    watched.marker.hold_step(False)
    watched.marker.complete()

    assert watched.steps() == ["resume other", "step other 0"]


def test_optimizer_that_steps_outside_leads_those_that_step_inside(watched: Watched) -> None:
    """What is not in the backward comes at the end of a step: each is counted once, whoever was seen first."""
    inner, outer = make(), make()

    for _ in range(4):
        step_inside(watched, inner)
        outer.step()

    # The first one ended before the outer optimizer had been seen.
    first = ["resume other", "step other 0", "resume other"]
    assert watched.steps() == [*first, *(m for n in (1, 2, 3) for m in ("resume other", f"step other {n}"))]


def test_step_in_a_thread_of_the_engine_is_one_of_who_waits(watched: Watched) -> None:
    """On a device the hooks of a backward run in threads of torch's, and nobody else trains there."""
    tensor = torch.ones(1, requires_grad=True)
    optimizer = make()
    tensor.register_post_accumulate_grad_hook(lambda _: optimizer.step())
    outer = watched.marker.enter(Phase.BACKWARD)
    before = list(watched.claims)

    engine = threading.Thread(target=tensor.backward)
    engine.start()
    engine.join()
    watched.marker.resume(outer)

    assert watched.tape.written() == ["enter backward", "resume other", "step other 0"]
    assert watched.claims == before


def test_new_optimizer_leads_at_once(watched: Watched) -> None:
    """Another training has begun in this process, though the one before has left its optimizer behind."""
    old = make()
    old.step()
    first, second = make(), make()

    for _ in range(2):
        first.step()
        second.step()

    assert watched.steps() == ["step other 0", "step other 1", "resume other", "step other 2", "resume other"]


def test_optimizer_that_was_made_with_the_lead_does_not_follow_it(watched: Watched) -> None:
    """The two of a GAN are made one after the other, and both are new when the first of them steps."""
    first, second = make(), make()

    first.step()
    second.step()
    first.step()

    assert watched.steps() == ["step other 0", "resume other", "step other 1"]


def test_making_an_optimizer_claims_to_train(watched: Watched) -> None:
    """It is the first sign of training in a process that nobody launched as a rank."""
    make()

    assert watched.claims == [threading.get_ident()]


@pytest.mark.parametrize("steps_before", [0, 1])
def test_other_thread_steps_unseen(watched: Watched, steps_before: int) -> None:
    """Also while this one has a step open, whose depth is counted, and after steps without another thread."""
    other, mine = make(), make()
    for _ in range(steps_before):
        mine.step()
    thread = threading.Thread(target=other.step)

    def closure() -> float:
        thread.start()
        thread.join()
        return 0.0

    mine.step(closure)

    assert watched.tape.written()[-2:] == ["enter optimizer", f"step other {steps_before}"]
    assert len(watched.tape.written()) == 2 + 2 * steps_before
    assert watched.claims[-1] == thread.ident


def test_step_of_another_thread_that_outlasts_one_of_ours_ends_none(watched: Watched) -> None:
    """It begins before ours and ends within our next one, whose phase is not its to end."""
    mine, other = make(), make()
    mine.step()
    began, may_end = threading.Event(), threading.Event()

    def theirs() -> float:
        began.set()
        may_end.wait(60)
        return 0.0

    thread = threading.Thread(target=other.step, args=(theirs,))

    def ours() -> float:
        may_end.set()
        thread.join()
        assert watched.marker.now() == Phase.OPTIMIZER
        return 0.0

    thread.start()
    began.wait(60)
    mine.step()
    mine.step(ours)

    steps = [f"step other {number}" for number in range(3)]
    assert watched.tape.written() == [mark for step in steps for mark in ("enter optimizer", step)]


def test_step_of_another_thread_ends_none_that_an_exception_has_left_open(watched: Watched) -> None:
    """It may even be of the same optimizer: what the marks say is said by the thread that trains."""
    optimizer = make(Failing)
    optimizer.fails = False
    optimizer.step()
    optimizer.fails = True
    with pytest.raises(ArithmeticError):
        optimizer.step()
    optimizer.fails = False
    thread = threading.Thread(target=optimizer.step)

    thread.start()
    thread.join()
    optimizer.step()

    assert watched.tape.written()[2:] == ["enter optimizer", "abort other", "enter optimizer", "step other 1"]


def test_failure_of_another_rank_does_not_bind_a_forked_one(watched: Watched) -> None:
    """A ring attached anew, as in a fork in the middle of a step: what was open there is not open here."""
    with pytest.raises(ArithmeticError):
        make(Failing).step()
    fresh = Tape()

    watched.marker.attach(fresh.words, fresh.capacity)
    make().step()

    assert fresh.written()[-2:] == ["enter optimizer", "step other 0"]


def whole_step(watched: Watched, *optimizers: Any, made: bool = True) -> Callable[[], str]:
    """A framework's own step over some optimizers."""

    def step() -> str:
        for optimizer in optimizers:
            optimizer.step()
        return "answer"

    lead = watched.patches  # whatever lives as long
    return watched.stepping.whole(step, lambda _args, result: (lead, made and result == "answer"))


def test_framework_step_is_one_whatever_steps_in_it(watched: Watched) -> None:
    """A partition of the parameters after the other, or several optimizers; and one framework's step in another's."""
    first, second = make(), make()
    inner = whole_step(watched, second)

    def step() -> None:
        first.step()
        first.step()
        assert inner() == "answer"

    watched.stepping.whole(step, lambda _args, _result: (first, True))()

    assert watched.tape.written() == ["enter optimizer", "step other 0"]
    assert watched.stepped == [1]


def test_framework_step_without_an_optimizers_is_a_skipped_one(watched: Watched) -> None:
    """A gradient was infinite: the micro-batches before it are not those of the next step."""
    whole_step(watched, make())()
    whole_step(watched, made=False)()

    marks = [mark for mark in watched.tape.slots() if mark is not None and mark.kind == "step"]
    assert [(mark.operand & ~SKIPPED, bool(mark.operand & SKIPPED)) for mark in marks] == [(0, False), (1, True)]
    assert watched.stepped == [1, 2]


def test_framework_step_that_was_not_due_ends_none(watched: Watched) -> None:
    """An optimizer that accumulates by itself is called for each micro-batch, and steps at the last."""
    due, optimizer = [None, True], Foreign()
    step = watched.stepping.whole(lambda: "answer", lambda _args, _result: (optimizer, due.pop(0)))

    answers = step(), step()

    assert answers == ("answer", "answer")
    assert watched.tape.written() == ["enter optimizer", "resume other", "enter optimizer", "step other 0"]


def test_optimizer_that_is_none_of_torchs_claims_to_train(watched: Watched) -> None:
    """fastai and Keras have their own; without a claim nothing of such a training is recorded."""
    watched.stepping.made(Foreign())

    assert watched.claims == [threading.get_ident()]


def test_optimizer_that_is_none_of_torchs_leads_when_it_is_new(watched: Watched) -> None:
    """A second training whose optimizer another framework has made: it counts from its first step."""
    earlier = make()
    earlier.step()
    later = Foreign()
    watched.stepping.made(later)

    watched.stepping.whole(lambda: None, lambda _args, _result: (later, True))()

    assert watched.steps() == ["step other 0", "step other 1"]


def test_failure_of_a_framework_step_leaves_it(watched: Watched) -> None:
    """It is no step, and the next one is."""
    optimizer = make(Failing)
    step = whole_step(watched, optimizer)

    with pytest.raises(ArithmeticError):
        step()
    optimizer.fails = False
    answer = step()

    assert answer == "answer"
    assert watched.tape.written() == ["enter optimizer", "abort other", "enter optimizer", "step other 0"]


@pytest.mark.parametrize("outcome", [lambda _args, result: result["nothing"], lambda _args, _result: ("a text", True)])
def test_framework_step_whose_outcome_is_not_known_was_made(watched: Watched, outcome: hook.Outcome) -> None:
    """Another version may say it in another way: who trains does not notice."""
    before = seen().get("whole_step", 0)

    watched.stepping.whole(make().step, outcome)()

    assert watched.steps() == ["step other 0"]
    assert seen()["whole_step"] == before + 1


def test_undoing_leaves_torch_as_it_was(watched: Watched) -> None:
    """Neither a hook nor another `__init__`."""
    marked = inspect.signature(Optimizer.__init__)

    watched.patches.undo()
    make().step()

    assert watched.tape.written() == []
    assert marked == inspect.signature(Optimizer.__init__)
    assert Optimizer.__init__.__module__ == "torch.optim.optimizer"
    assert not optim._global_optimizer_pre_hooks
    assert not optim._global_optimizer_post_hooks
