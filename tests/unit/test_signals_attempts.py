"""The trace of an attempt: one root, its processes and how they ended, and the run while it runs."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.trace import StatusCode

from tests.unit.signal_shapes import UNIX_NS, context_of, shown, source_of
from trainspan.identity import span_id_of, trace_id_of
from trainspan.names import Phase
from trainspan.relay.signals.attempts import (
    MOST_CHECKPOINTS,
    MOST_TOLD,
    attempt_span,
    checkpoint_span,
    process_spans,
    segment_span,
    told_span,
)
from trainspan.relay.signals.spans import MOST_SPANS
from trainspan.relay.timeline.checkpoints import Checkpoint
from trainspan.relay.timeline.records import EndReason, ProcessEnd
from trainspan.relay.timeline.segments import MOST, Segment
from trainspan.relay.timeline.told import Told
from trainspan.testing.builders import rank_step

TRACE = trace_id_of("run-1", 0, "attempt")
ROOT = (TRACE, span_id_of("run-1", 0, "attempt"))
CLOSED = ProcessEnd(9000, "closed")


def test_a_process_that_closed_as_it_goes_on_the_wire() -> None:
    """The whole payload, once: process, init and the import of torch in it."""
    spans, cut = process_spans(source_of(0), 1000, 4000, CLOSED, None, (1500, 2500))

    def span(name: str, *what: str, parent: tuple[int, int], times_ns: tuple[int, int]) -> dict[str, Any]:
        return {
            "name": name,
            "context": (TRACE, span_id_of("run-1", 0, "attempt", "rank", 0, *what)),
            "parent": parent,
            "resource": {"training.rank": 0},
            "attributes": {"training.rank": 0},
            "links": [],
            "status": (StatusCode.UNSET, None),
            "times_ns": times_ns,
        }

    process = span("training.process", parent=ROOT, times_ns=(0, 8000))
    init = span("training.init", "training.init", parent=process["context"], times_ns=(0, 3000))
    torch_import = span(
        "training.init.import",
        "training.init.import",
        parent=init["context"],
        times_ns=(500, 1500),
    )
    process["attributes"] = {"training.rank": 0, "training.end.reason": "closed"}
    assert [shown(made) for made in spans] == [process, init, torch_import]
    assert cut == 0


@pytest.mark.parametrize(("reason", "cause"), [("died", "SIGKILL"), ("exception", "ValueError")])
def test_a_process_that_failed_in_a_step_says_where(reason: EndReason, cause: str) -> None:
    """It is the first thing to read after a crash."""
    step = rank_step(41, [(Phase.FORWARD, 5), (Phase.BACKWARD, 5)], complete=False)

    process, init = process_spans(source_of(1), 1000, 4000, ProcessEnd(9000, reason, cause), step).spans

    assert process.status.status_code is StatusCode.ERROR
    assert process.status.description == f"process ended by {cause} in backward of step 41"
    assert (process.attributes or {})["training.end.reason"] == reason
    assert init.status.status_code is StatusCode.UNSET
    assert process.parent is not None
    assert process.parent.is_remote


def test_a_process_that_never_took_a_step_ended_in_init() -> None:
    """Most failed jobs fail there."""
    _process, init = process_spans(source_of(0), 1000, 9000, ProcessEnd(9000, "died", "SIGKILL"), None).spans

    assert shown(init)["times_ns"] == (0, 8000)
    assert init.status.description == "process ended by SIGKILL in init"


def test_a_process_that_closed_without_a_step_has_no_error() -> None:
    """A script that only prepares data is no failure."""
    process, init = process_spans(source_of(0), 1000, 9000, CLOSED, None).spans

    assert process.status.status_code is init.status.status_code is StatusCode.UNSET


def test_an_init_that_lost_marks_hide_has_no_span() -> None:
    """Its end would be made up."""
    spans, cut = process_spans(source_of(0), 1000, None, ProcessEnd(9000, "died"), None, (1500, 2500))

    assert [span.name for span in spans] == ["training.process"]
    assert spans[0].status.description == "process ended"
    assert cut == 0


def test_the_root_ends_with_the_first_failure_and_links_to_the_attempt_before() -> None:
    """When one rank dies, its peers follow; the first one is the reason."""
    again = source_of(0, attempt=2)
    ends = [(source_of(0), ProcessEnd(9000, "exception", "DistError")), (source_of(1), ProcessEnd(8000, "died"))]

    root = attempt_span(again, UNIX_NS - 5, ends)

    assert shown(root) == {
        "name": "training.attempt",
        "context": (trace_id_of("run-1", 2, "attempt"), span_id_of("run-1", 2, "attempt")),
        "parent": None,
        "resource": {"training.rank": 0},
        "attributes": {"training.end.reason": "died"},
        "links": [(trace_id_of("run-1", 1, "attempt"), span_id_of("run-1", 1, "attempt"))],
        "status": (StatusCode.ERROR, "rank 1: process ended"),
        "times_ns": (-5, 8000),
    }


def test_the_first_attempt_has_no_link_and_no_error_when_all_closed() -> None:
    """There is nothing before it."""
    root = attempt_span(source_of(0), UNIX_NS, [(source_of(0), CLOSED), (source_of(1), CLOSED)])

    assert list(root.links) == []
    assert root.status.status_code is StatusCode.UNSET
    assert (root.attributes or {})["training.end.reason"] == "closed"


def test_a_segment_carries_its_steps_below_the_process() -> None:
    """Jaeger shows progress of a run that has not ended."""
    span = segment_span(source_of(0), Segment(3, 1000, 2000, first_step=10, last_step=19))
    idle = segment_span(source_of(0), Segment(4, 2000, 3000, None, None))

    assert shown(span) == {
        "name": "training.segment",
        "context": (TRACE, span_id_of("run-1", 0, "attempt", "rank", 0, "training.segment", 3)),
        "parent": (TRACE, span_id_of("run-1", 0, "attempt", "rank", 0)),
        "resource": {"training.rank": 0},
        "attributes": {"training.rank": 0, "training.step.first": 10, "training.step.last": 19},
        "links": [],
        "status": (StatusCode.UNSET, None),
        "times_ns": (0, 1000),
    }
    assert dict(idle.attributes or {}) == {"training.rank": 0}
    assert context_of(idle.context) != context_of(span.context)


def test_a_checkpoint_is_a_span_below_its_process() -> None:
    """When it was, how long, how large, and whether it came off."""
    save = Checkpoint("save", "blocking", True, 2000, 3000, "abc", 4096)

    made = checkpoint_span(source_of(1), save, 0)
    failed = checkpoint_span(source_of(1), save._replace(kind="load", ok=False, path=None, size_bytes=None), 1)

    assert made is not None
    assert failed is not None
    key = ("training.checkpoint.save", "blocking", 2000)
    assert shown(made) == {
        "name": "training.checkpoint.save",
        "context": (TRACE, span_id_of("run-1", 0, "attempt", "rank", 1, *key)),
        "parent": (TRACE, span_id_of("run-1", 0, "attempt", "rank", 1)),
        "resource": {"training.rank": 1},
        "attributes": {
            "training.rank": 1,
            "training.checkpoint.part": "blocking",
            "training.checkpoint.path": "abc",
            "training.checkpoint.bytes": 4096,
        },
        "links": [],
        "status": (StatusCode.UNSET, None),
        "times_ns": (1000, 2000),
    }
    assert failed.name == "training.checkpoint.load"
    assert (failed.status.status_code, failed.status.description) == (StatusCode.ERROR, "an exception left the load")


def test_checkpoints_in_the_trace_are_bounded() -> None:
    """A script that saves every step must not break the trace; metrics and ledger have them all."""
    save = Checkpoint("save", "blocking", True, 2000, 3000, None, None)

    assert checkpoint_span(source_of(0, 1), save, MOST_CHECKPOINTS - 1) is not None
    assert checkpoint_span(source_of(0, 1), save, MOST_CHECKPOINTS) is None
    assert checkpoint_span(source_of(1, 4 * MOST_CHECKPOINTS), save, 0) is None


def test_what_a_rank_tells_is_a_span_below_its_process_or_its_init() -> None:
    """The name says where it belongs; a word of the user's never speaks for the rank."""
    told = Told("tokenize", 2000, 3000, True, {"words": 7, "training.rank": 99}, None)
    init = told._replace(name="training.init.model", ok=False)

    made = told_span(source_of(1), told, 0, 5000)
    in_init = told_span(source_of(1), init, 1, 5000)
    after_it = told_span(source_of(1), init, 1, 2500)

    assert made is not None
    assert in_init is not None
    assert after_it is not None
    assert shown(made) == {
        "name": "tokenize",
        "context": (TRACE, span_id_of("run-1", 0, "attempt", "rank", 1, "tokenize", 2000)),
        "parent": (TRACE, span_id_of("run-1", 0, "attempt", "rank", 1)),
        "resource": {"training.rank": 1},
        "attributes": {"training.rank": 1, "words": 7},
        "links": [],
        "status": (StatusCode.UNSET, None),
        "times_ns": (1000, 2000),
    }
    assert context_of(in_init.parent) == (TRACE, span_id_of("run-1", 0, "attempt", "rank", 1, "training.init"))
    assert context_of(after_it.parent) == context_of(made.parent)
    assert (in_init.status.status_code, in_init.status.description) == (StatusCode.ERROR, "left by an exception")


def test_what_is_told_is_bounded_and_never_below_a_span_that_is_left_out() -> None:
    """At a world size where a rank has one span, that is its process."""
    told = Told("training.init.model", 2000, 3000, True, {}, "model_init")

    crowded = told_span(source_of(0, 4000), told, 0, 5000)

    assert crowded is not None
    assert context_of(crowded.parent) == (TRACE, span_id_of("run-1", 0, "attempt", "rank", 0))
    assert told_span(source_of(0, 1), told, MOST_TOLD - 1, 5000) is not None
    assert told_span(source_of(0, 1), told, MOST_TOLD, 5000) is None
    assert told_span(source_of(1, 4 * MOST_TOLD), told, 0, 5000) is None


@given(st.integers(1, 50_000))
def test_the_attempts_trace_is_bounded_at_any_world_size(world_size: int) -> None:
    """Root, all segments, and what the ranks may have, counted together."""

    def spans_of(rank: int) -> int:
        spans, cut = process_spans(source_of(rank, world_size), 1000, 4000, CLOSED, None, (1500, 2500))
        assert len(spans) + cut == 3
        return len(spans)

    every = next((rank for rank in range(1, world_size) if spans_of(rank)), 1)

    assert spans_of(0) >= 1
    assert 1 + MOST + MOST_CHECKPOINTS + MOST_TOLD + -(-world_size // every) * spans_of(0) <= MOST_SPANS
