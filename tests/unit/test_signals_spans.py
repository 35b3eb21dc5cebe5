"""A step becomes a trace that every relay can complete without a message, and that stays within its bound."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import StatusCode

from tests.unit.signal_shapes import context_of, shown, source_of
from trainspan.identity import span_id_of, trace_id_of
from trainspan.names import Phase
from trainspan.relay.signals.spans import MOST_SPANS, RankPart, rank_budget, step_spans
from trainspan.relay.timeline.collectives import Call, Group, Kind
from trainspan.relay.timeline.device import DeviceStep
from trainspan.relay.timeline.progress import Position
from trainspan.relay.timeline.records import ProcessEnd, RankStep
from trainspan.testing.builders import rank_step


def part_of(rank: int, step: RankStep, end: ProcessEnd | None = None, world_size: int = 2) -> RankPart:
    """Rank `rank`'s part of `step`."""
    return RankPart(source_of(rank, world_size), step, end)


def named(spans: list[ReadableSpan], name: str) -> list[ReadableSpan]:
    """Those of `spans` with this name."""
    return [span for span in spans if span.name == name]


def test_a_step_of_two_ranks_as_it_goes_on_the_wire() -> None:
    """The whole payload, once: ids, parents, links, times, attributes, resources."""
    parts = [
        part_of(0, rank_step(7, [(Phase.FORWARD, 10), (Phase.BACKWARD, 20)], start_ns=1100)),
        part_of(1, rank_step(7, [(Phase.FORWARD, 12), (Phase.OTHER, 1), (Phase.FORWARD, 5)], start_ns=1090)),
    ]

    spans, cut = step_spans(parts, "first")

    trace = trace_id_of("run-1", 0, "step", 7)
    root = (trace, span_id_of("run-1", 0, "step", 7))
    attempt = (trace_id_of("run-1", 0, "attempt"), span_id_of("run-1", 0, "attempt"))
    fine = (StatusCode.UNSET, None)

    def of_rank(rank: int, *what: str | int) -> tuple[int, int]:
        return trace, span_id_of("run-1", 0, "step", 7, "rank", rank, *what)

    def rank_span(rank: int, microbatches: int, times_ns: tuple[int, int]) -> dict[str, Any]:
        return {
            "name": "training.rank_step",
            "context": of_rank(rank),
            "parent": root,
            "resource": {"training.rank": rank},
            "attributes": {
                "training.rank": rank,
                "training.step": 7,
                "training.microbatches": microbatches,
                "training.sampled.reason": "first",
            },
            "links": [attempt],
            "status": fine,
            "times_ns": times_ns,
        }

    def phase_span(rank: int, phase: str, ordinal: int, times_ns: tuple[int, int]) -> dict[str, Any]:
        return {
            "name": f"training.{phase}",
            "context": of_rank(rank, f"training.{phase}", ordinal),
            "parent": of_rank(rank),
            "resource": {"training.rank": rank},
            "attributes": {"training.rank": rank, "training.step": 7, "training.phase": phase},
            "links": [],
            "status": fine,
            "times_ns": times_ns,
        }

    assert cut == 0
    assert [shown(span) for span in spans] == [
        {
            "name": "training.step",
            "context": root,
            "parent": None,
            "resource": {"training.rank": 0},
            "attributes": {"training.step": 7, "training.sampled.reason": "first"},
            "links": [],
            "status": fine,
            "times_ns": (90, 130),
        },
        rank_span(0, 1, (100, 130)),
        phase_span(0, "forward", 0, (100, 110)),
        phase_span(0, "backward", 0, (110, 130)),
        rank_span(1, 0, (90, 108)),
        phase_span(1, "forward", 0, (90, 102)),
        phase_span(1, "other", 0, (102, 103)),
        phase_span(1, "forward", 1, (103, 108)),
    ]


def test_a_node_without_rank_0_refers_to_a_root_that_another_relay_makes() -> None:
    """Two roots in one trace would tear it in two; the id is known without a message, and it is remote."""
    away = step_spans([part_of(9, rank_step(7), world_size=16)], "share").spans
    home = step_spans([part_of(0, rank_step(7), world_size=16)], "share").spans

    parent = named(away, "training.rank_step")[0].parent

    assert named(away, "training.step") == []
    assert parent is not None
    assert parent.is_remote
    assert context_of(parent) == context_of(named(home, "training.step")[0].context)
    own_parent = named(home, "training.rank_step")[0].parent
    assert own_parent is not None
    assert not own_parent.is_remote


def test_a_step_that_only_this_node_may_keep_has_a_root_of_its_own() -> None:
    """Nobody can know here whether rank 0's relay keeps it too: an id of its own is right in both cases."""
    parts = [part_of(rank, rank_step(7, start_ns=1000 + rank), world_size=16) for rank in (8, 9)]

    root, *below = step_spans(parts, "slow", root_rank=8).spans

    ranks = named(below, "training.rank_step")
    assert root.parent is None
    assert dict(root.attributes or {}) == {
        "training.step": 7,
        "training.sampled.reason": "slow",
        "training.node_rank": 1,
    }
    assert context_of(root.context) == (
        trace_id_of("run-1", 0, "step", 7),
        span_id_of("run-1", 0, "step", 7, "root", 8),
    )
    assert [context_of(span.parent) for span in ranks] == [context_of(root.context)] * 2
    assert (root.start_time, root.end_time) == (ranks[0].start_time, ranks[1].end_time)


def test_what_comes_late_joins_the_root_its_node_has_made() -> None:
    """A second root would be a second span of one id."""
    late = step_spans([part_of(9, rank_step(7), world_size=16)], "slow", root_rank=8).spans

    assert named(late, "training.step") == []
    assert context_of(late[0].parent) == (
        trace_id_of("run-1", 0, "step", 7),
        span_id_of("run-1", 0, "step", 7, "root", 8),
    )


@pytest.mark.parametrize("world_size", [16, 1_000, 9_000, 40_000])
@pytest.mark.parametrize("ranks_per_node", [1, 8])
def test_roots_of_all_nodes_are_within_the_bound_of_a_trace(world_size: int, ranks_per_node: int) -> None:
    """A step slow everywhere has a root from each node."""
    step = rank_step(7, [(Phase.FORWARD, 1)] * 20)

    spans = 0
    for first in range(0, world_size, ranks_per_node):
        ranks = range(first, min(first + ranks_per_node, world_size))
        sources = {rank: source_of(rank, world_size, ranks_per_node=ranks_per_node) for rank in ranks}
        spans += len(step_spans([RankPart(sources[rank], step) for rank in ranks], "slow", first).spans)

    assert spans <= MOST_SPANS


def test_the_step_in_which_a_rank_died_is_an_error_in_its_last_phase() -> None:
    """It is what the relay lives for: the last phase of a rank that could not say goodbye."""
    step = rank_step(41, [(Phase.FORWARD, 10), (Phase.BACKWARD, 20)], complete=False)

    spans = step_spans([part_of(1, step, ProcessEnd(step.end_ns, "died", "SIGKILL"))], "failed").spans

    rank_span, forward, backward = spans
    sentence = "process ended by SIGKILL in backward of step 41"
    assert (rank_span.attributes or {})["training.end.reason"] == "died"
    assert (rank_span.status.status_code, rank_span.status.description) == (StatusCode.ERROR, sentence)
    assert (backward.status.status_code, backward.status.description) == (StatusCode.ERROR, sentence)
    assert forward.status.status_code is StatusCode.UNSET


def test_a_phase_left_by_an_exception_is_an_error_and_the_step_goes_on() -> None:
    """A loop that catches an out-of-memory and retries completes its step."""
    step = rank_step(3, [(Phase.FORWARD, 10), (Phase.FORWARD, 20)], failed=[0])

    rank_span, failed, retried = step_spans([part_of(1, step)], "failed").spans

    assert (failed.status.status_code, failed.status.description) == (StatusCode.ERROR, "left by an exception")
    assert rank_span.status.status_code is retried.status.status_code is StatusCode.UNSET


@given(st.lists(st.tuples(st.sampled_from(list(Phase)), st.integers(1, 99)), min_size=1, max_size=20))
def test_the_phases_of_a_rank_fill_its_step_exactly(phases: list[tuple[Phase, int]]) -> None:
    """In a waterfall nothing may overlap, and no time be missing; and no two spans share an id."""
    rank_span, *children = step_spans([part_of(1, rank_step(0, phases))], "first").spans

    at_ns = rank_span.start_time
    for child in children:
        assert context_of(child.parent) == context_of(rank_span.context)
        assert child.start_time == at_ns
        at_ns = child.end_time
    assert at_ns == rank_span.end_time
    assert len({context_of(span.context) for span in (rank_span, *children)}) == 1 + len(phases)


@given(st.integers(1, 200_000), st.integers(1, 40))
def test_a_trace_has_a_bounded_number_of_spans_at_any_world_size(world_size: int, phases: int) -> None:
    """Jaeger and Tempo cut traces off silently; we do it ourselves, and count."""
    every, budget = rank_budget(world_size, MOST_SPANS - 1)

    ranks = -(-world_size // every)

    assert budget >= 1
    assert 1 + ranks * min(budget, 1 + phases) <= MOST_SPANS


def test_a_small_share_of_the_trace_keeps_the_failed_and_the_longest_phases() -> None:
    """At 2000 ranks each has three spans: where it failed and what took long say most."""
    step = rank_step(
        5, [(Phase.DATA_WAIT, 1), (Phase.FORWARD, 30), (Phase.BACKWARD, 40), (Phase.OPTIMIZER, 2)], failed=[0]
    )

    spans, cut = step_spans([part_of(1, step, world_size=2500)], "failed")

    assert [span.name for span in spans] == ["training.rank_step", "training.data_wait", "training.backward"]
    assert cut == 2
    assert (spans[0].attributes or {})["training.spans.cut"] == 2


def test_the_phase_a_rank_died_in_is_kept_before_all_others() -> None:
    """Its interval may have no length at all."""
    step = rank_step(5, [(Phase.FORWARD, 30), (Phase.BACKWARD, 40), (Phase.OPTIMIZER, 0)], complete=False)

    spans = step_spans([part_of(1, step, ProcessEnd(step.end_ns, "died"), world_size=4000)], "failed").spans

    assert [span.name for span in spans] == ["training.rank_step"]
    spans = step_spans([part_of(1, step, ProcessEnd(step.end_ns, "died"), world_size=3999)], "failed").spans
    assert [span.name for span in spans] == ["training.rank_step", "training.optimizer"]


@pytest.mark.parametrize(("rank", "kept"), [(0, True), (1, False), (2, False), (3, True)])
def test_with_more_ranks_than_spans_every_kth_rank_is_shown(rank: int, kept: bool) -> None:
    """20,000 ranks: one span for every third, chosen alike on all nodes, and the rest counted."""
    spans, cut = step_spans([part_of(rank, rank_step(5, [(Phase.FORWARD, 30)]), world_size=20_000)], "share")

    assert bool(named(spans, "training.rank_step")) is kept
    assert named(spans, "training.forward") == []
    assert cut == (1 if kept else 2)


def test_times_of_the_device_are_on_the_spans_of_its_rank() -> None:
    """On a GPU the host's forward is its launch; whoever looks at the trace asks how long the work took."""
    step = rank_step(7, [(Phase.FORWARD, 10), (Phase.OTHER, 20)], start_ns=1000)
    timed = part_of(0, step)._replace(device=DeviceStep(7, (1010, 1030), (2_000_000, 5_000_000)))

    spans, _ = step_spans([timed, part_of(1, step)], "first")

    def on_device(span: ReadableSpan) -> dict[str, Any]:
        attributes = dict(span.attributes or {})
        return {name: attributes[name] for name in attributes if name.startswith("training.device.")}

    [forward, forward_elsewhere] = named(spans, "training.forward")
    [other, _] = named(spans, "training.other")
    [rank_span, _] = named(spans, "training.rank_step")
    assert on_device(forward) == {"training.device.start": 0.0, "training.device.duration": 0.002}
    assert on_device(other) == {"training.device.start": 0.002, "training.device.duration": 0.003}
    assert on_device(rank_span) == {"training.device.duration": 0.005}
    assert on_device(forward_elsewhere) == {}


def test_collectives_link_to_the_same_one_on_their_peers() -> None:
    """The rank that came last is found by following the links, and no message was needed for them."""
    kind = Kind("all_reduce", Group("7", "mesh_dp", (0, 1, 2)), 4096)
    step = rank_step(7, [(Phase.COLLECTIVE, 10), (Phase.FORWARD, 5), (Phase.COLLECTIVE, 3)], start_ns=1100)
    calls = {1100: Call(kind, 41), 1115: Call(Kind("wait", Group("", "unknown", ()), 0), None)}
    parts = [RankPart(source_of(rank, 3), step, calls=calls) for rank in range(3)]

    made = named(step_spans(parts, "first").spans, "training.collective")

    own = [span for span in made if span.start_time == parts[0].source.unix_of(1100)]
    waits = [span for span in made if span not in own]
    ids = [context_of(span.context) for span in own]
    assert [[context_of(link.context) for link in span.links] for span in own] == [
        [ids[1], ids[2]],
        [ids[2], ids[0]],
        [ids[0], ids[1]],
    ]
    assert dict(own[0].attributes or {}) == {
        "training.rank": 0,
        "training.step": 7,
        "training.phase": "collective",
        "training.collective.op": "all_reduce",
        "training.collective.group": "mesh_dp",
        "training.collective.seq": 41,
        "training.collective.bytes": 4096,
    }
    assert [(dict(span.attributes or {})["training.collective.op"], list(span.links)) for span in waits] == [
        ("wait", [])
    ] * 3
    assert len({context_of(span.context) for span in made}) == 6


def test_a_skipped_step_says_so() -> None:
    """What looks like training is none."""
    step = rank_step(7, [(Phase.FORWARD, 10), (Phase.AMP, 5)])._replace(skipped=True)

    [rank_span] = named(step_spans([part_of(0, step)], "first").spans, "training.rank_step")

    assert dict(rank_span.attributes or {})["training.amp.skipped"] is True


def test_a_step_says_what_its_framework_calls_it_and_what_it_worked_through() -> None:
    """A loss curve has the step of the whole run on its axis; the attempt's number leads nowhere after a restart."""
    step = rank_step(7)._replace(samples=8, tokens=1024)

    spans, _ = step_spans([RankPart(source_of(0), step, position=Position(1008, 2))], "first")

    [rank_span] = named(spans, "training.rank_step")
    assert rank_span.attributes is not None
    assert {name: rank_span.attributes[name] for name in list(rank_span.attributes)[-4:]} == {
        "training.global_step": 1008,
        "training.epoch": 2,
        "training.samples": 8,
        "training.tokens": 1024,
    }
