"""Compilations are told from what Dynamo notes anyway."""

from collections.abc import Iterator
from time import monotonic_ns
from typing import Any, NamedTuple

import pytest
import torch
from torch._dynamo.utils import CompilationMetrics

from trainspan.record.hooks import compiler as hook
from trainspan.record.spans import SpanTeller

REASONS = hasattr(CompilationMetrics, "recompile_reason")
"""Before torch 2.6 Dynamo keeps none."""


class Watched(NamedTuple):
    """What reads, and what was told."""

    compilations: hook.Compilations
    told: list[tuple[str, dict[str, Any]]]

    def spans(self) -> list[dict[str, Any]]:
        """What was told as spans."""
        return [fields for event, fields in self.told if event == "span"]

    def counts(self) -> dict[str, int]:
        """The newest counts."""
        counts: dict[str, int] = [fields for event, fields in self.told if event == "compiled"][-1]
        return counts


@pytest.fixture
def watched() -> Iterator[Watched]:
    """A compiler that has compiled nothing yet, read by the hook."""
    import torch._dynamo.utils as package

    torch._dynamo.reset()
    package.clear_compilation_metrics()
    package.counters.clear()
    told: list[tuple[str, dict[str, Any]]] = []

    def tell(event: str, /, **fields: Any) -> None:
        told.append((event, fields))

    compilations = hook.Compilations(SpanTeller(tell, lambda: True), tell)
    compilations.follow(package)
    yield Watched(compilations, told)
    torch._dynamo.reset()


def double(inputs: torch.Tensor) -> torch.Tensor:
    """Something to compile."""
    return inputs * 2


def test_first_compilation_and_recompilation_are_told_with_the_reason(watched: Watched) -> None:
    """Half of the users who compile have a recompilation in each step, and do not know."""
    compiled = torch.compile(double, backend="eager", dynamic=False)
    before_ns = monotonic_ns()

    compiled(torch.ones(2))
    watched.compilations.step_ended()
    compiled(torch.ones(3))
    watched.compilations.step_ended()

    first, second = watched.spans()
    assert first["attributes"]["training.compile.function"] == "double"
    assert "training.compile.reason" not in first["attributes"]
    assert not REASONS or "size" in second["attributes"]["training.compile.reason"]
    assert [span["state"] for span in (first, second)] == ["compile"] * 2
    assert before_ns - 1_000_000 <= first["start_ns"] < first["end_ns"] <= second["start_ns"] <= monotonic_ns()
    assert watched.counts() == {"compilations": 2, "recompilations": 1, "graph_breaks": 0}


def test_graph_breaks_are_counted(watched: Watched) -> None:
    """Each one costs a launch a step, for ever."""

    def broken(inputs: torch.Tensor) -> torch.Tensor:
        inputs = inputs * 2
        torch._dynamo.graph_break()
        return inputs + 1

    torch.compile(broken, backend="eager")(torch.ones(2))
    watched.compilations.step_ended()

    assert watched.counts()["graph_breaks"] == 1
    assert watched.compilations.count == len(watched.spans()) == 2


def test_nothing_is_told_of_steps_that_compile_nothing(watched: Watched) -> None:
    """That is nearly all of them."""
    torch.compile(double, backend="eager")(torch.ones(2))

    for _ in range(5):
        watched.compilations.step_ended()

    assert len(watched.told) == 2


def test_compilations_that_are_not_kept_are_counted(watched: Watched, capsys: pytest.CaptureFixture[str]) -> None:
    """Dynamo keeps 64, and a large model has more in its first step."""
    kept, many = 64, 100
    torch.compile(double, backend="eager")(torch.ones(2))
    watched.compilations.step_ended()

    for number in range(many):
        torch.compile(function_of(number), backend="eager")(torch.ones(2))
    watched.compilations.step_ended()
    torch.compile(function_of(many), backend="eager")(torch.ones(2))
    watched.compilations.step_ended()

    assert watched.counts() == {"compilations": 1 + many + 1, "recompilations": 0, "graph_breaks": 0}
    assert len(watched.spans()) == 1 + kept + 1
    assert f"{many - kept} compilations" in capsys.readouterr().err


def function_of(number: int) -> Any:
    """One more function to compile, with code of its own, from a file: torch 2.4 compiles others within one of its."""
    scope: dict[str, Any] = {}
    text = f"def function_{number}(inputs): return inputs * {number}"
    exec(compile(text, __file__, "exec"), scope)  # noqa: S102 - its own text
    return scope[f"function_{number}"]


def test_counts_go_on_when_the_compiler_forgets(watched: Watched) -> None:
    """`torch._dynamo.reset` and a cleared counter are no graph breaks taken back."""
    from torch._dynamo import utils

    for _ in range(2):
        torch.compile(lambda inputs: torch._dynamo.graph_break() or inputs * 2, backend="eager")(torch.ones(2))
        watched.compilations.step_ended()
        torch._dynamo.reset()
        utils.counters.clear()

    assert watched.counts()["graph_breaks"] == 2


def test_a_compiler_of_another_kind_is_left_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """Private names of torch may be gone: the recording goes on without them."""
    told: list[Any] = []
    compilations = hook.Compilations(SpanTeller(told.append, lambda: True), told.append)
    compilations.follow(torch)

    compilations.step_ended()
    compilations.step_ended()

    assert told == []
    assert "compilations are not seen" in capsys.readouterr().err
