"""Gradient scaling: what of a step it is, and where it skips the optimizer."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import torch

from tests.unit.tapes import Tape, recording_marker
from trainspan.names import Phase
from trainspan.record.hooks import amp
from trainspan.record.hooks import optimizer as optimizer_hook
from trainspan.record.marker import Marker
from trainspan.record.patches import Patches
from trainspan.recording.layout import SKIPPED

AMP = ["enter amp", "resume other"]


class Watched(NamedTuple):
    """The marker, its tape, and how many steps have ended."""

    marker: Marker
    tape: Tape
    stepped: list[int]
    stepping: optimizer_hook.Stepping

    def steps(self) -> list[tuple[int, bool]]:
        """Number of each step, and whether it was skipped."""
        marks = [mark.operand for mark in self.tape.slots() if mark and mark.kind == "step"]
        return [(operand & ~SKIPPED, bool(operand & SKIPPED)) for operand in marks]


@pytest.fixture
def watched() -> Iterator[Watched]:
    """Torch with the hooks of optimizer and scaler in it."""
    marker, tape = recording_marker()
    stepped: list[int] = []
    patches = Patches()
    stepping = optimizer_hook.install(marker, patches, lambda: False, [lambda: stepped.append(marker.steps())])
    amp.install(marker, patches, stepping)
    yield Watched(marker, tape, stepped, stepping)
    patches.undo()


def make(gradient: float = 1.0) -> tuple[Any, Any]:
    """A scaler and an optimizer over one weight with a gradient."""
    weight = torch.nn.Parameter(torch.zeros(1))
    weight.grad = torch.full((1,), gradient)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    scaler.scale(torch.ones(1))
    return scaler, torch.optim.SGD([weight], lr=0.1)


def test_scaler_and_optimizer_are_told_apart(watched: Watched) -> None:
    """On a device the scaler's check waits for the whole backward: that is no slow optimizer."""
    scaler, optimizer = make()

    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()

    assert watched.tape.written() == [*AMP, *AMP, "enter optimizer", "step other 0", *AMP]
    assert watched.steps() == [(0, False)]
    assert watched.stepped == [1]


@pytest.mark.parametrize("gradient", [float("inf"), float("nan")])
def test_skipped_step_is_a_step_that_says_so(watched: Watched, gradient: float) -> None:
    """A script counts its iterations; one whose steps are all skipped is in trouble, and must not look dead."""
    scaler, optimizer = make(gradient)

    scaler.step(optimizer)
    scaler.update()

    assert watched.steps() == [(0, True)]
    assert watched.stepped == [1]
    assert scaler.get_scale() == 2.0


def test_skipped_step_of_another_optimizer_is_no_step(watched: Watched) -> None:
    """In a GAN one of two optimizers is skipped; the other one's step ends the iteration."""
    scaler, leading = make()
    other_scaler, other = make(float("inf"))

    scaler.step(leading)
    other_scaler.step(other)

    assert watched.steps() == [(0, False)]
    assert watched.tape.written()[-2:] == AMP


def test_scaler_that_asks_a_callback_skips_no_step(watched: Watched) -> None:
    """fastai learns so whether a gradient was infinite, and steps its optimizer after that."""

    class Asked:
        """Looks like an optimizer."""

        def __init__(self, optimizer: Any):
            self.param_groups = optimizer.param_groups

        def step(self) -> None:
            """The gradients are finite."""

    scaler, optimizer = make()

    scaler.step(Asked(optimizer))
    optimizer.step()

    assert watched.tape.written() == [*AMP, "enter optimizer", "step other 0"]
    assert watched.steps() == [(0, False)]


@pytest.mark.parametrize("gradient", [1.0, float("inf")])
def test_scaler_in_a_framework_step_tells_whether_it_was_made(watched: Watched, gradient: float) -> None:
    """The framework itself may not know: DeepSpeed asks its optimizer, which is torch's own, and no scaler."""
    scaler, optimizer = make(gradient)

    watched.stepping.whole(lambda: scaler.step(optimizer), lambda _args, _result: (optimizer, True))()

    assert watched.steps() == [(0, gradient != 1.0)]
    assert watched.tape.written()[0] == "enter optimizer"
    assert watched.stepped == [1]


def test_scaler_that_is_off_is_not_seen(watched: Watched) -> None:
    """Scripts keep it in place for bfloat16 and switch it off."""
    _, optimizer = make()
    scaler = torch.amp.GradScaler("cpu", enabled=False)

    scaler.step(optimizer)
    scaler.update()

    assert watched.tape.written() == ["enter optimizer", "step other 0"]


def test_failure_of_the_scaler_ends_its_phase(watched: Watched) -> None:
    """A second step without an update is refused; what comes after is not the scaler's."""
    scaler, optimizer = make()
    scaler.step(optimizer)

    with pytest.raises(RuntimeError):
        scaler.step(optimizer)

    outer = watched.marker.enter(Phase.FORWARD)
    assert watched.tape.written()[-3:] == ["enter amp", "abort other", "enter forward"]
    assert outer == Phase.OTHER
    assert watched.steps() == [(0, False)]


def test_failure_of_the_optimizer_is_the_optimizers(watched: Watched) -> None:
    """The scaler has let it step: the phase that failed is its own."""

    class Failing(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            raise ArithmeticError(closure)

    scaler, plain = make()
    optimizer = Failing(plain.param_groups[0]["params"], lr=0.1)

    with pytest.raises(ArithmeticError):
        scaler.step(optimizer)
    watched.marker.enter(Phase.FORWARD)

    assert watched.tape.written() == [*AMP, "enter optimizer", "abort other", "enter forward"]
