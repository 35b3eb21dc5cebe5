"""What is inside a step, and before and between steps, over real OTLP: two ranks with all that a step can hold."""

import json
import subprocess
import sys
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.integration.recorded import start_ranks
from tests.integration.relayed import SpanSeen, latest_numbers, run_folder, spans_of, wait_for_relay
from trainspan import names
from trainspan.testing.otlp_sink import OtlpSink

TORCH = tuple(int(number) for number in version("torch").split(".")[:2])

STEPS = 8
SKIPPED = 2


class Seen(NamedTuple):
    """What came in, and what the ranks printed with and without trainspan."""

    spans: list[SpanSeen]
    sink: OtlpSink
    alone: list[dict[str, object]]
    recorded: list[dict[str, object]]
    folder: Path

    def named(self, name: str, rank: int | None = None) -> list[SpanSeen]:
        """Spans of that name in the order of time."""
        found = [span for span in self.spans if span.name == name]
        return sorted(
            (span for span in found if rank is None or span.attributes["training.rank"] == rank),
            key=lambda span: span.start_ns,
        )


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """The job, every step of it sampled, beside one that nobody watches."""
    state = tmp_path_factory.mktemp("inside")
    with OtlpSink() as sink:
        environ = {**sink.environ, "OTEL_TRACES_SAMPLER": "always_on", "TRAINSPAN_RELAY": "process"}
        runs = [
            start_ranks(2, "inside_ddp.py"),
            start_ranks(2, "inside_ddp.py", state=state, **environ, TRAINSPAN_RUN_ID="inside"),
        ]
        alone, recorded = (run.ended() for run in runs)
        assert (alone.exit_code, recorded.exit_code) == (0, 0), recorded.stderr
        wait_for_relay(state)
    return Seen(spans_of(sink), sink, alone.lines, recorded.lines, run_folder(state))


def test_nothing_in_the_ranks_differs(seen: Seen) -> None:
    """Weights, generators, threads and sockets, with every hook at work."""
    lines = [[{**line, "pid": 0} for line in sorted(run, key=lambda line: int(str(line["rank"])))] for run in seen[2:4]]

    assert lines[0] == lines[1]
    assert len(lines[0]) == 2


def test_collectives_of_two_ranks_are_linked(seen: Seen) -> None:
    """From the one that waits to the one that came last, without a message."""
    reduces = seen.named("training.collective")
    by_id = {span.span: span for span in reduces}

    called = Counter((span.attributes["training.rank"], span.attributes["training.collective.op"]) for span in reduces)
    assert called == {(0, "all_reduce"): STEPS - 1, (1, "all_reduce"): STEPS - 1}
    assert len(by_id) == len(reduces)
    for span in reduces:
        [peer] = [by_id[link] for link in span.links if link in by_id]
        assert peer.trace == span.trace
        assert peer.attributes["training.rank"] == 1 - span.attributes["training.rank"]
        assert peer.attributes["training.collective.seq"] == span.attributes["training.collective.seq"]
        assert (span.attributes["training.collective.bytes"], span.attributes["training.collective.group"]) == (
            4,
            "default_pg",
        )


def test_skipped_step_is_one_of_the_steps(seen: Seen) -> None:
    """Eight iterations are eight steps, and one of them learned nothing."""
    skipped = [span.attributes["training.step"] for span in seen.spans if "training.amp.skipped" in span.attributes]

    assert skipped == [SKIPPED] * 2
    assert latest_numbers(seen.sink, "training.steps") == {(0,): STEPS, (1,): STEPS}
    assert latest_numbers(seen.sink, "training.steps.skipped") == {(0,): 1, (1,): 1}


@pytest.mark.parametrize("rank", [0, 1])
def test_validations_are_loops_with_iterations(seen: Seen, rank: int) -> None:
    """One between two steps, one after the last."""
    phases = {names.PHASE, names.STEP}  # the trace of a step has a span of that name for each batch
    loops = [span for span in seen.named("training.validation", rank) if not phases & set(span.attributes)]

    assert [span.attributes["training.validation.iterations"] for span in loops] == [3, 2]
    assert loops[1].start_ns > max(span.end_ns for span in seen.named("training.optimizer", rank))


@pytest.mark.parametrize("rank", [0, 1])
def test_compilations_are_told_and_charged(seen: Seen, rank: int) -> None:
    """The sixth batch is larger than the others."""
    first, again = seen.named("training.compile", rank)

    states = latest_numbers(seen.sink, "training.time")
    assert first.attributes["training.compile.function"] == again.attributes["training.compile.function"] == "loss_of"
    assert states[(rank, "compile")] == pytest.approx((first.duration_ns + again.duration_ns) / 1e9, rel=0.05)
    counts = latest_numbers(seen.sink, "training.compile.count")
    assert (counts[(rank, "first")], counts[(rank, "recompilation")]) == (1, 1)
    assert latest_numbers(seen.sink, "training.compile.graph_breaks")[(rank,)] == 0


@pytest.mark.skipif(
    TORCH < (2, 6), reason="before torch 2.6 Dynamo keeps no reason; would have shown that a recompilation has its own"
)
@pytest.mark.parametrize("rank", [0, 1])
def test_recompilation_says_why(seen: Seen, rank: int) -> None:
    """Without the reason nobody can stop it."""
    first, again = seen.named("training.compile", rank)

    assert "training.compile.reason" not in first.attributes
    assert "size" in again.attributes["training.compile.reason"]


def test_collective_metrics_count_every_call(seen: Seen) -> None:
    """Eight of the loss in the loop, each of four bytes."""
    newest: dict[tuple[str, int], tuple[int, float]] = {}
    for item in seen.sink.metrics():
        if item.item.name not in ("training.collective.size", "training.collective.duration"):
            continue
        for point in item.item.histogram.data_points:
            values = {attribute.key: attribute.value.string_value for attribute in point.attributes}
            if values == {"training.collective.op": "all_reduce", "training.collective.group": "default_pg"}:
                newest[(item.item.name, item.resource["training.rank"])] = (point.count, point.sum)

    assert {newest[("training.collective.size", rank)] for rank in (0, 1)} == {(STEPS, 4.0 * STEPS)}
    # The last one came after the last step.
    assert {newest[("training.collective.duration", rank)][0] for rank in (0, 1)} == {STEPS - 1}


def test_waiting_for_the_rank_that_came_late_is_charged_as_such(seen: Seen) -> None:
    """Rank 0 has nothing to do for 0.3 s in its seventh collective, and rank 1 is the one to look at."""
    said = subprocess.run(
        [sys.executable, "-m", "trainspan", "goodput", "--json", "--by", "rank", str(seen.folder)],
        capture_output=True,
        text=True,
        check=True,
    )

    waited = [span for span in seen.named("training.collective", 0) if span.duration_ns > 250_000_000]
    total_s = sum(span.duration_ns for span in seen.named("training.collective", 0)) / 1e9
    lost = {rank: found["badput_s"] for rank, found in json.loads(said.stdout)["by"]["rank"].items()}
    assert 6 in [span.attributes["training.collective.seq"] for span in waited]
    assert 0.25 < lost["0"]["straggler_wait"] <= total_s
    assert lost["1"].get("straggler_wait", 0) < lost["0"]["straggler_wait"]


def test_phases_of_the_steps_are_those_of_the_script(seen: Seen) -> None:
    """The order in which everything happened, once in full."""
    [step] = [s for s in seen.named("training.rank_step", 0) if s.attributes["training.step"] == 4]
    phases = [span for span in seen.spans if span.parent == step.span and span.name != "training.other"]

    order = [span.name.removeprefix("training.") for span in sorted(phases, key=lambda span: span.start_ns)]

    assert order == ["amp", "collective", *["validation"] * 3, "forward", "backward", "amp", "optimizer"]
    assert sum(s.duration_ns for s in seen.spans if s.parent == step.span) == step.duration_ns
