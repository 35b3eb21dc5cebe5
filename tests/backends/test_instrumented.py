"""`opentelemetry-instrument torchrun` into the real Jaeger: the script's own spans, inside the steps of their rank."""

from pathlib import Path
from typing import Any

import pytest

from tests.backends import stack as stacks
from tests.backends.stack import Stack
from tests.integration.instrumented import Instrumented
from trainspan.identity import span_id_of, trace_id_of

pytestmark = pytest.mark.backends("that Jaeger shows a script's own spans inside the step they happened in")


def parent_of(span: dict[str, Any]) -> str | None:
    """The id of the span it is a child of."""
    parents = [found["spanID"] for found in span["references"] if found["refType"] == "CHILD_OF"]
    return parents[0] if parents else None


def whole_or_none(stack: Stack, trace_id: int) -> list[dict[str, Any]] | None:
    """The spans of a trace, once it has a root and what both ranks added."""
    spans: list[dict[str, Any]] = stack.trace(trace_id)["spans"]
    names = [span["operationName"] for span in spans]
    counts = [names.count(name) for name in ("training.step", "training.rank_step", "iteration", "inner")]
    return spans if counts == [1, 2, 2, 2] else None


def test_spans_of_the_script_are_in_their_ranks_step(stack: Stack, tmp_path: Path) -> None:
    """One trace on the screen: all ranks, their phases, and the user's own words for what they did."""
    run = f"instrumented-{tmp_path.name}-{stack.folder.parent.name}"
    environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": stack.otlp_http, "TRAINSPAN_RUN_ID": run}

    ended = Instrumented(tmp_path).torchrun("spans.py", "plain", state=tmp_path / "state", environ=environ)
    # Two ranks and a relay deliver it: it is whole when each has.
    spans = stacks.wait_for(lambda: whole_or_none(stack, trace_id_of(run, 0, "step", 2)))

    rank_steps = {f"{span_id_of(run, 0, 'step', 2, 'rank', rank):016x}" for rank in (0, 1)}
    iterations = [span for span in spans if span["operationName"] == "iteration"]
    inner = [span for span in spans if span["operationName"] == "inner"]
    assert ended.exit_code == 0, ended.stderr
    assert {span["spanID"] for span in spans if span["operationName"] == "training.rank_step"} == rank_steps
    assert {parent_of(span) for span in iterations} == rank_steps
    assert {parent_of(span) for span in inner} == {span["spanID"] for span in iterations}
    assert [span["operationName"] for span in spans if parent_of(span) is None] == ["training.step"]
    # Jaeger warns of a parent that is missing, and of a clock that it had to move.
    assert all(not span["warnings"] for span in spans)
