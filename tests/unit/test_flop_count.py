"""Which FLOPs of a step are counted, and that whatever counts is gone where it must not be."""

from collections.abc import Callable, Iterator
from threading import get_ident
from typing import Any

import pytest
import torch
from torch._C import DispatchKey
from torch._ops import HigherOrderOperator
from torch.utils.checkpoint import checkpoint

from trainspan.record.flop_count import STEP, FlopCount
from trainspan.record.hooks import backward, forward, optimizer
from trainspan.record.marker import make_marker
from trainspan.record.patches import Patches
from trainspan.recording.layout import HEADER_BYTES, MARK_BYTES

ROWS, WIDE, HIGH = 2, 8, 4
FORWARD = 2 * ROWS * WIDE * HIGH
"""Of a layer of 8 by 4, for 2 rows; a backward takes that for the weights, and again for an input with a gradient."""

_modes: Callable[[], int] = torch._C._len_torch_dispatch_stack


class Training:
    """The hooks of a process that trains, with the counter, in this one."""

    def __init__(self, patches: Patches, is_compiled: Callable[[], bool]):
        self.told: list[dict[str, Any]] = []
        self.marker = make_marker(get_ident)
        marks = 4096
        self.marker.attach(memoryview(bytearray(HEADER_BYTES + marks * MARK_BYTES)).cast("q"), marks)
        count = FlopCount(self.marker, lambda _, **fields: self.told.append(fields), is_compiled)
        marker = self.marker._replace(around=count.around)
        search = forward.install(marker, patches)
        search.begin()
        backward.install(marker, patches, lambda: False)
        optimizer.install(marker, patches, lambda: False, [search.step_ended, count.step_ended], search.made)
        self.layer = torch.nn.Linear(WIDE, HIGH)
        self.optimizer = torch.optim.SGD(self.layer.parameters(), lr=0.1)

    def step(self, loss: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """One step of training."""
        loss(torch.randn(ROWS, WIDE)).sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


@pytest.fixture
def make_training() -> Iterator[Callable[..., Training]]:
    """Puts the hooks into torch, and takes them out again."""
    patches = Patches()
    yield lambda is_compiled=lambda: False: Training(patches, is_compiled)
    patches.undo()


def test_forward_and_backward_of_the_third_step_are_counted(make_training: Callable[..., Training]) -> None:
    """A layer of 8 by 4, for 2 samples, whose input has no gradient."""
    training = make_training()

    for _ in range(STEP + 3):
        training.step(training.layer)

    assert training.told == [{"step": STEP, "flops": 2 * FORWARD}]


@pytest.mark.filterwarnings("ignore:.*torch.cpu.amp:FutureWarning")  # the checkpoint of torch 2.4, of itself
@pytest.mark.parametrize("reentrant", [False, True])
def test_what_is_computed_once_more_is_not_counted(make_training: Callable[..., Training], reentrant: bool) -> None:
    """MFU is of the model's FLOPs; with those of activation checkpointing it would be HFU."""
    training = make_training()

    def loss(batch: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = checkpoint(training.layer, batch.requires_grad_(), use_reentrant=reentrant)
        return result

    for _ in range(STEP + 1):
        training.step(loss)

    assert training.told == [{"step": STEP, "flops": 3 * FORWARD}]


@pytest.mark.parametrize("in_training_mode", [False, True])
def test_a_validation_is_not_counted(make_training: Callable[..., Training], in_training_mode: bool) -> None:
    """It trains nothing, also where the script forgets to call `eval`."""
    training = make_training()

    for _ in range(STEP + 1):
        training.layer.train(in_training_mode)
        with torch.no_grad():
            training.layer(torch.randn(ROWS, WIDE))
        training.layer.train()
        training.step(training.layer)

    assert training.told == [{"step": STEP, "flops": 2 * FORWARD}]


class Doubled(HigherOrderOperator):
    """An operator of higher order, as an extension brings them, that runs uncompiled."""

    def __init__(self) -> None:
        super().__init__("trainspan_test_doubled")
        self.py_impl(DispatchKey.CPU)(lambda tensor: tensor * 2)
        self.py_impl(DispatchKey.AutogradCPU)(self._with_gradients)

    def __call__(self, tensor: torch.Tensor) -> Any:
        return super().__call__(tensor)

    def _with_gradients(self, tensor: torch.Tensor) -> torch.Tensor:
        with torch._C._AutoDispatchBelowAutograd():
            without = self(tensor)
        return tensor + without


def test_operator_of_higher_order_is_called_as_without_the_count(
    make_training: Callable[..., Training], capsys: pytest.CaptureFixture[str]
) -> None:
    """Under a mode that it does not know torch before 2.11 raises; torch's table has no such operator."""
    doubled, training, calls = Doubled(), make_training(), HigherOrderOperator.__call__
    training.layer.register_forward_hook(lambda _module, _args, output: doubled(output))

    for _ in range(STEP + 2):
        training.step(training.layer)

    assert (training.told, _modes()) == ([], 0)
    assert HigherOrderOperator.__call__ is calls
    assert "trainspan_test_doubled" in capsys.readouterr().err


def test_nothing_is_there_between_forward_and_backward(make_training: Callable[..., Training]) -> None:
    """A script may end, fork, validate or enter a mode of its own there, in any order."""
    training = make_training()
    seen = []

    def loss(batch: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = training.layer(batch)
        seen.append(_modes())
        return result

    handle = training.layer.register_forward_hook(lambda *_: seen.append(_modes()))
    for _ in range(STEP):
        training.step(loss)
    loss(torch.randn(ROWS, WIDE))
    handle.remove()

    assert seen == [0, 0] * STEP + [1, 0]


def test_exception_leaves_nothing_behind(
    make_training: Callable[..., Training], capsys: pytest.CaptureFixture[str]
) -> None:
    """A script may try the step again with a smaller batch: what had been done of it counts for nothing."""
    training = make_training()
    for _ in range(STEP):
        training.step(training.layer)

    with pytest.raises(RuntimeError):
        training.layer(torch.randn(ROWS, WIDE + 1))
    left = _modes()
    training.step(training.layer)

    assert (left, training.told) == (0, [])
    assert "an exception" in capsys.readouterr().err


def test_backward_with_a_graph_of_its_own_is_not_told(
    make_training: Callable[..., Training], capsys: pytest.CaptureFixture[str]
) -> None:
    """A gradient penalty: its operators keep gradients, as do those that compute a forward once more."""
    training = make_training()

    def loss(batch: torch.Tensor) -> torch.Tensor:
        batch.requires_grad_()
        output = training.layer(batch)
        [slope] = torch.autograd.grad(output.sum(), batch, create_graph=True)
        return output.sum() + slope.sum()

    for _ in range(STEP + 1):
        training.step(loss)

    assert (training.told, _modes()) == ([], 0)
    assert "can be differentiated" in capsys.readouterr().err


def test_a_step_without_a_forward_is_not_told(
    make_training: Callable[..., Training], capsys: pytest.CaptureFixture[str]
) -> None:
    """Half of the FLOPs are no FLOPs: the forward is in no module, or is a graph that is replayed."""
    training = make_training()
    weights = training.layer.weight

    for _ in range(STEP + 1):
        training.step(lambda batch: batch @ weights.t())

    assert training.told == []
    assert "no forward" in capsys.readouterr().err


def test_flops_of_compiled_code_are_not_counted(
    make_training: Callable[..., Training], capsys: pytest.CaptureFixture[str]
) -> None:
    """Under the counter it runs uncompiled, or raises where the user has asked for a whole graph."""
    training = make_training(lambda: True)

    for _ in range(STEP + 1):
        training.step(training.layer)

    assert (_modes(), training.told) == (0, [])
    assert "TRAINSPAN_FLOPS_PER_TOKEN" in capsys.readouterr().err


def test_a_function_first_compiled_in_that_step_is_compiled(make_training: Callable[..., Training]) -> None:
    """`fullgraph=True` raises where it finds a mode, and torch is asked whether anything is compiled too early."""
    training = make_training()
    graphs = []

    def backend(graph: Any, _: Any) -> Any:
        graphs.append(_modes())
        return graph.forward

    compiled = torch.compile(lambda x: x * 2, fullgraph=True, backend=backend)
    for _ in range(STEP):
        training.step(training.layer)

    def use(*call: Any) -> None:
        compiled(call[-1].detach())

    handle = training.layer.register_forward_hook(use)
    training.step(training.layer)
    handle.remove()

    assert (graphs, training.told, _modes()) == ([0], [], 0)


def test_mode_that_is_left_open_in_a_forward_stays(make_training: Callable[..., Training]) -> None:
    """It is the script's; the counter, below it, is gone all the same."""
    training = make_training()
    mode = torch.utils._python_dispatch.TorchDispatchMode()
    for _ in range(STEP):
        training.step(training.layer)

    def enter(*_: Any) -> None:
        mode.__enter__()

    handle = training.layer.register_forward_hook(enter)
    training.layer(torch.randn(ROWS, WIDE))
    stack = [torch._C._get_dispatch_stack_at(place) for place in range(_modes())]
    handle.remove()
    mode.__exit__(None, None, None)

    assert stack == [mode]
    assert _modes() == 0
