"""Whether a compiler traces is asked in a shorter way than torch's own; the answer must be torch's."""

import torch
from torch import Tensor, nn

from trainspan.record.traced import compiler, is_traced


def ours() -> bool:
    """As the hooks ask."""
    return bool(is_traced() or compiler._is_compiling_flag)


class Asks(nn.Module):
    """Asks both while it runs. The answers are not kept in it: an export takes back what it changes there."""

    def __init__(self, answers: list[tuple[bool, bool]]) -> None:
        super().__init__()
        self.answer = answers.append

    def forward(self, numbers: Tensor) -> Tensor:
        self.answer((ours(), torch.compiler.is_compiling()))
        return numbers + 1


def test_while_dynamo_traces_a_hook_steps_aside() -> None:
    """What it did there would be compiled into the user's graph, or break it."""

    def add(numbers: Tensor) -> Tensor:
        return numbers + 1 if ours() else numbers

    compiled = torch.compile(add, backend="eager", fullgraph=True)

    assert compiled(torch.zeros(1)).item() == 1
    assert add(torch.zeros(1)).item() == 0


def test_an_export_that_runs_the_model_is_known_as_torch_knows_it() -> None:
    """It traces no Python, so the first of the two questions says no."""
    answers: list[tuple[bool, bool]] = []
    model = Asks(answers)

    torch.export.export(model, (torch.zeros(1),), strict=False)
    exported = answers.copy()
    model(torch.zeros(1))

    assert exported
    assert all(mine == torchs for mine, torchs in exported)
    assert answers[-1] == (False, False)
