"""The main promise: an untouched script under torchrun, and every rank of a step in one trace, over real OTLP."""

from pathlib import Path
from statistics import median

import pytest

from tests.integration.relayed import SpanSeen, by_trace, latest_numbers, spans_of, train, wait_for_relay
from trainspan.identity import span_id_of, trace_id_of
from trainspan.testing.otlp_sink import OtlpSink, Protocol, attributes_of

STEPS = 8
INIT = ("import", "process_group", "model", "wrap", "optimizer", "data_loader", "first_step")
FACTS = {
    "training.model.class": "Sequential",
    "training.model.parameters": 12 * (512 * 512 + 512),
    "training.optimizer.class": "SGD",
    "training.optimizer.lr": 1e-3,
    "training.batch.size": 128,
    "training.strategy": "ddp",
    "training.precision": "float32",
    "training.compiled": False,
}
SAMPLED = {0, 1, 2, 3, 4, 7}  # the first five, and the last


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_each_sampled_step_is_one_trace_that_holds_both_ranks(tmp_path: Path, protocol: Protocol) -> None:
    """Ranks side by side under one root, with no message between them: that is what nobody else gives."""
    with OtlpSink(protocol) as sink:
        ended = train("clocked_ddp.py", state=tmp_path, environ={**sink.environ, "TRAINSPAN_RUN_ID": "e2e"}, ranks=2)
        wait_for_relay(tmp_path)

    spans = spans_of(sink)
    steps = {t[0].attributes["training.step"]: t for t in by_trace(spans).values() if _root(t).name == "training.step"}
    assert ended.exit_code == 0, ended.stderr
    assert set(steps) >= SAMPLED
    for number, trace in steps.items():
        _check_step_trace(number, trace)
    _check_against_own_clock(steps, {line["rank"]: line["steps"] for line in ended.lines})
    _check_attempt(spans)
    _check_started(sink)
    _check_ended(sink)
    _check_metrics(sink)


def _root(trace: list[SpanSeen]) -> SpanSeen:
    (root,) = (span for span in trace if not span.parent)
    return root


def _check_step_trace(number: int, trace: list[SpanSeen]) -> None:
    """Computed ids, right parents, phases that partition their step, the root around both ranks."""
    root = _root(trace)
    rank_steps = [span for span in trace if span.name == "training.rank_step"]
    assert root.trace == f"{trace_id_of('e2e', 0, 'step', number):032x}"
    assert root.span == f"{span_id_of('e2e', 0, 'step', number):016x}"
    assert sorted(span.attributes["training.rank"] for span in rank_steps) == [0, 1]
    assert all(span.attributes["training.step"] == number for span in trace)
    assert root.start_ns == min(span.start_ns for span in rank_steps)
    assert root.end_ns == max(span.end_ns for span in rank_steps)
    attempt = f"{span_id_of('e2e', 0, 'attempt'):016x}"
    for rank_step in rank_steps:
        rank = rank_step.attributes["training.rank"]
        phases = sorted((span for span in trace if span.parent == rank_step.span), key=lambda span: span.start_ns)
        names = [span.name for span in phases if span.name != "training.other"]
        # The step starts where the one before it ended, so its first phase is the wait for its batch.
        expected = ["data_wait", "h2d", "forward", "backward", "grad_clip", "optimizer"]
        assert [name for name in names if name != "training.data_wait"] == [f"training.{name}" for name in expected[1:]]
        assert names[0] == "training.data_wait"
        assert rank_step.parent == root.span
        assert rank_step.links == (attempt,)
        assert rank_step.resource["training.rank"] == rank
        assert all(span.attributes["training.rank"] == rank for span in phases)
        edges = [rank_step.start_ns, *(span.end_ns for span in phases)]
        assert [span.start_ns for span in phases] == edges[:-1]
        assert edges[-1] == rank_step.end_ns


def _check_against_own_clock(steps: dict[int, list[SpanSeen]], clocked: dict[int, list[dict[str, int]]]) -> None:
    """Forward and backward as long as the script itself found them, within 2 %."""
    assert sorted(clocked) == [0, 1]
    for phase in ("forward", "backward"):
        ratios = [
            span.duration_ns / clocked[span.attributes["training.rank"]][number][f"{phase}_ns"]
            for number, trace in steps.items()
            for span in trace
            if span.name == f"training.{phase}"
        ]
        assert len(ratios) == 2 * len(steps)
        assert 0.98 <= median(ratios) <= 1.0


def _check_attempt(spans: list[SpanSeen]) -> None:
    """The attempt's trace: both processes under one root, with their start-up."""
    (attempt,) = (trace for trace in by_trace(spans).values() if _root(trace).name == "training.attempt")
    names = sorted(span.name for span in attempt)
    own = ["process", "init", *(f"init.{part}" for part in INIT)]
    launched = ["training.launch"] * 2  # a rendezvous, and the start of the workers
    assert names == sorted(
        ["training.attempt", "training.segment", *launched, *(f"training.{name}" for name in own * 2)]
    )
    assert all(span.error is None for span in attempt)
    for process in (span for span in attempt if span.name == "training.process"):
        assert {**FACTS, "training.step.last": STEPS - 1}.items() <= process.attributes.items()
    # What outlasts the init, as the first step does, is below the process.
    parents = {span.span: span for span in attempt if span.name in ("training.init", "training.process")}
    for span in (span for span in attempt if span.name.startswith("training.init.")):
        parent = parents[span.parent]
        assert span.attributes["training.rank"] == parent.attributes["training.rank"]
        assert parent.start_ns <= span.start_ns <= span.end_ns <= parent.end_ns


def _check_started(sink: OtlpSink) -> None:
    """Each rank says once what it trains."""
    records = [record.item for record in sink.logs()]
    started = [attributes_of(record.attributes) for record in records if record.event_name == "training.started"]
    assert sorted(said.pop("training.rank") for said in started) == [0, 1]
    assert all(FACTS.items() <= said.items() for said in started)


def _check_ended(sink: OtlpSink) -> None:
    """And once, at last, what it has done."""
    records = [record.item for record in sink.logs() if record.item.event_name.startswith("training.")]
    names = [record.event_name for record in records]
    ended = [attributes_of(record.attributes) for record in records if record.event_name == "training.ended"]
    assert sorted(names) == ["training.ended"] * 2 + ["training.started"] * 2
    assert sorted(said["training.rank"] for said in ended) == [0, 1]
    done = {"training.end.reason": "closed", "training.steps": STEPS, "training.step.last": STEPS - 1}
    assert all(done.items() <= said.items() for said in ended)


def _check_metrics(sink: OtlpSink) -> None:
    """Every step counted, and the states of each rank add up."""
    assert latest_numbers(sink, "training.steps") == {(0,): STEPS, (1,): STEPS}
    assert latest_numbers(sink, "training.progress.step") == {(0,): STEPS - 1, (1,): STEPS - 1}
    assert latest_numbers(sink, "trainspan.marks.lost") == {(None,): 0}
    assert latest_numbers(sink, "training.steps.skipped") == {(0,): 0, (1,): 0}
    reducer = latest_numbers(sink, "training.ddp.duration")
    assert {rank for rank, _part in reducer} == {0, 1}
    assert reducer[(0, "backward_overlap")] <= reducer[(0, "backward_comm")]
    states = latest_numbers(sink, "training.time")
    assert {rank for rank, _state in states} == {0, 1}
    assert {"init", "productive", "data_wait", "shutdown"} <= {state for _rank, state in states}
    goodput = latest_numbers(sink, "training.goodput")
    for rank in (0, 1):
        total_s = sum(seconds for (of_rank, _), seconds in states.items() if of_rank == rank)
        # With hindsight the excess of the first steps is compilation; the counter has called it productive.
        assert 0 < goodput[(rank, "attempt")] <= states[(rank, "productive")] / total_s + 1e-9
        assert goodput[(rank, "run")] == goodput[(rank, "attempt")]
