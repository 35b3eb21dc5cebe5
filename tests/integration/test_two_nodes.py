"""Two nodes, each with its own relay: no message passes between the relays, and yet each step is one trace."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.integration.relayed import SCRIPTS, TORCHRUN, SpanSeen, by_trace, spans_of, train_with, wait_for_relay
from tests.ports import free_port
from trainspan.identity import span_id_of, trace_id_of
from trainspan.testing.otlp_sink import OtlpSink

RUN = "two-nodes"
FAILS_IN = 8
FAILED_TRACE = f"{trace_id_of(RUN, 0, 'step', FAILS_IN):032x}"
SAMPLED_EVERYWHERE = {0, 1, 2, 3, 4, 11}  # the first five, and the last; none of the others is of the fixed share


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[SpanSeen]]:
    """The traces of a run of 2 nodes with 2 ranks each, by their id."""
    states = [tmp_path_factory.mktemp(f"node{node}") for node in (0, 1)]
    with OtlpSink() as sink:
        environ = {**sink.environ, "TRAINSPAN_RUN_ID": RUN}
        port = free_port()

        def run_node(node: int) -> None:
            place = ("--nnodes=2", f"--node-rank={node}", "--master-addr=127.0.0.1", f"--master-port={port}")
            script = str(SCRIPTS / "two_nodes_ddp.py")
            ended = train_with(*TORCHRUN, "--nproc-per-node=2", *place, script, state=states[node], environ=environ)
            assert ended.exit_code == 0, ended.stderr

        with ThreadPoolExecutor() as nodes:
            list(nodes.map(run_node, (0, 1)))
        for state in states:
            wait_for_relay(state)
    return by_trace(spans_of(sink))


def _ranks(trace: list[SpanSeen]) -> list[int]:
    return sorted(span.attributes["training.rank"] for span in trace if span.name == "training.rank_step")


def test_each_step_that_all_sample_is_one_trace_with_one_root_and_four_ranks(traces: dict[str, list[SpanSeen]]) -> None:
    """Side by side under one root, from two relays that never spoke."""
    found = {number: traces.get(f"{trace_id_of(RUN, 0, 'step', number):032x}", []) for number in SAMPLED_EVERYWHERE}

    roots = {number: [span.span for span in trace if not span.parent] for number, trace in found.items()}

    assert {number: _ranks(trace) for number, trace in found.items()} == {number: [0, 1, 2, 3] for number in found}
    assert roots == {number: [f"{span_id_of(RUN, 0, 'step', number):016x}"] for number in found}


def test_a_step_that_failed_on_the_node_without_rank_0_has_a_root_all_the_same(
    traces: dict[str, list[SpanSeen]],
) -> None:
    """Rank 0's relay knows nothing of it; ranks whose parent is nowhere are shown with a warning, if at all."""
    trace = traces[FAILED_TRACE]

    (root,) = (span for span in trace if not span.parent)

    assert _ranks(trace) == [2, 3]
    assert root.name == "training.step"
    assert root.attributes["training.sampled.reason"] == "failed"
    assert root.attributes["training.node_rank"] == 1


def test_every_span_has_its_parent_and_no_id_comes_twice(traces: dict[str, list[SpanSeen]]) -> None:
    """Whatever the two relays decided each for itself, a backend gets whole trees."""
    spans = [span for trace in traces.values() for span in trace]

    ids = [(span.trace, span.span) for span in spans]
    parents = {(span.trace, span.parent) for span in spans if span.parent}

    assert len(set(ids)) == len(ids)
    assert parents <= set(ids)


def test_both_processes_of_both_nodes_are_in_the_trace_of_the_attempt(traces: dict[str, list[SpanSeen]]) -> None:
    """The attempt is the job's, not a node's."""
    trace = traces[f"{trace_id_of(RUN, 0, 'attempt'):032x}"]

    processes = [span.attributes["training.rank"] for span in trace if span.name == "training.process"]
    nodes = {span.resource["training.node_rank"] for span in trace if span.name == "training.process"}

    assert sorted(processes) == [0, 1, 2, 3]
    assert nodes == {0, 1}
