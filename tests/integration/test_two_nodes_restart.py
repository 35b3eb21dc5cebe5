"""Two nodes under torchrun, and a rank dies on one of them: in the next attempts, too, each step is one trace.

The restart count that torchrun gives its workers is their node's (pytorch/pytorch#108158): rank 0 is told 0 again.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.data.training.restarted_nodes import STEPS
from tests.integration.relayed import (
    SCRIPTS,
    TORCHRUN,
    SpanSeen,
    by_trace,
    spans_of,
    train_with,
    wait_for_relay,
)
from tests.ports import free_port
from trainspan.identity import trace_id_of
from trainspan.testing.otlp_sink import OtlpSink, attributes_of

RUN = "restarted-nodes"
ATTEMPTS = [0, 1, 2]  # the second launch is the third


@pytest.fixture(scope="module")
def sink(tmp_path_factory: pytest.TempPathFactory) -> OtlpSink:
    """What the relays of both nodes sent of two launches; for the second one, node 1 is a new machine."""
    first, second, third = (tmp_path_factory.mktemp("node") for _ in range(3))
    shared = tmp_path_factory.mktemp("shared")
    with OtlpSink() as sink:
        for states in ((first, second), (first, third)):
            _launch(states, shared, sink)
    return sink


def _launch(states: Sequence[Path], shared: Path, sink: OtlpSink) -> None:
    place = ("--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{free_port()}", f"--rdzv-id={RUN}")
    script = (str(SCRIPTS / "restarted_nodes.py"), str(shared))

    def run_node(state: Path) -> None:
        command = (*TORCHRUN, "--nproc-per-node=1", "--max-restarts=2", *place, *script)
        ended = train_with(*command, state=state, environ=sink.environ)
        assert ended.exit_code == 0, ended.stderr

    with ThreadPoolExecutor() as nodes:
        list(nodes.map(run_node, states))
    for state in states:
        wait_for_relay(state)


@pytest.fixture(scope="module")
def traces(sink: OtlpSink) -> dict[str, list[SpanSeen]]:
    """The traces, by their id."""
    return by_trace(spans_of(sink))


@pytest.mark.parametrize("attempt", ATTEMPTS)
def test_each_step_is_one_trace_of_both_ranks_in_every_attempt(traces: dict[str, list[SpanSeen]], attempt: int) -> None:
    """What a restart must not cost is the view that one looks for after a restart."""
    found = [traces.get(f"{trace_id_of(RUN, attempt, 'step', step):032x}", []) for step in range(STEPS)]

    ranks = [sorted(s.attributes["training.rank"] for s in trace if s.name == "training.rank_step") for trace in found]

    assert ranks == [[0, 1]] * STEPS


@pytest.mark.parametrize("attempt", ATTEMPTS)
def test_both_nodes_are_in_the_trace_of_every_attempt(traces: dict[str, list[SpanSeen]], attempt: int) -> None:
    """With what their launchers did for it, and under the number that everything else of the attempt carries."""
    trace = traces[f"{trace_id_of(RUN, attempt, 'attempt'):032x}"]

    seen = {(span.name, span.resource["training.node_rank"], span.resource["training.attempt"]) for span in trace}

    expected = {(name, node, attempt) for name in ("training.process", "training.launch") for node in (0, 1)}
    assert expected <= seen


def test_no_id_comes_twice_and_no_attempt_is_missing(traces: dict[str, list[SpanSeen]]) -> None:
    """Two attempts of one number would be drawn on top of each other."""
    spans = [span for trace in traces.values() for span in trace]

    ids = [(span.trace, span.span) for span in spans]

    assert len(set(ids)) == len(ids)
    assert {span.resource["training.attempt"] for span in spans} == set(ATTEMPTS)


def test_rank_that_failed_is_told_from_the_one_that_was_stopped_for_it(sink: OtlpSink) -> None:
    """The first closes in good order and exits with a code; the other, of which nothing was wrong, is killed."""
    told = [item.item for item in sink.logs() if item.item.event_name == "training.died"]

    by_rank = {attributes_of(record.attributes)["training.rank"]: record for record in told}
    ends = {
        rank: (attributes_of(record.attributes)["training.end.reason"], record.body.string_value)
        for rank, record in by_rank.items()
    }
    assert {rank: reason for rank, (reason, _) in ends.items()} == {0: "stopped", 1: "exited"}
    assert ends[0][1].startswith("process ended by SIGTERM of its launcher in ")
    assert ends[1][1].startswith("process ended by exit code 3 in ")


def test_restart_is_told_as_one_after_a_failure(sink: OtlpSink) -> None:
    """The node that tells it may have lost no rank itself: its own were healthy when the nodes met again."""
    told = [
        (attributes_of(point.attributes)["training.restart.reason"], point.as_double or point.as_int)
        for item in sink.metrics()
        if item.item.name == "training.restarts"
        for point in item.item.sum.data_points
    ]

    # Of the second launch node 0 may be the new machine, which knows of nothing before it.
    assert max(count for reason, count in told if reason == "failure") == 1
    assert {count for reason, count in told if reason == "membership"} <= {0}
