"""Marks of collectives become calls of a kind, however wild the log that explains them."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainspan.names import Phase
from trainspan.recording.layout import ENTER, KIND_SHIFT, RESUME, SAME_CALL, SEQUENCE_SHIFT, WAIT
from trainspan.relay.timeline.collectives import MOST_LABELS, Call, Calls, Collectives, Group, Kind
from trainspan.relay.timeline.steps import RankTimeline
from trainspan.testing.builders import MarkTape

GROUP = {"event": "collective_group", "group": "0", "label": "default_pg", "ranks": [4, 5, 6, 7]}
KIND = {"event": "collective_kind", "kind": 3, "op": "all_reduce", "group": "0", "bytes": 4096}
WORLD = Group("0", "default_pg", (4, 5, 6, 7))
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


def operand(kind: int, sequence: int, how: int = 0) -> int:
    """What a mark holds."""
    return sequence << SEQUENCE_SHIFT | kind << KIND_SHIFT | how


def told(*events: dict[str, Any]) -> Collectives:
    """What these events tell of."""
    collectives = Collectives()
    for event in events:
        collectives.take(event)
    return collectives


def test_a_mark_is_explained_by_what_was_told_of_its_kind() -> None:
    """A mark has 54 bits: the name of a group is not in them."""
    collectives = told(GROUP, KIND)

    calls = [collectives.call(mark) for mark in (operand(3, 9), operand(3, 9, WAIT), operand(7, 9), WAIT)]

    assert calls[:2] == [Call(Kind("all_reduce", WORLD, 4096), 9), Call(Kind("wait", WORLD, 4096), None)]
    assert [(call.kind.op, call.sequence) for call in calls[2:]] == [("unknown", None), ("wait", None)]


def test_counts_are_told_so_far_and_taken_once() -> None:
    """A relay that starts anew reads them again from the beginning."""
    collectives = told(GROUP, KIND)
    counted = {"event": "collectives", "counts": [[3, 5], [8, 1]]}

    first = collectives.take(counted)
    again = collectives.take(counted)
    more = collectives.take({**counted, "counts": [[3, 7]]})

    kind = Kind("all_reduce", WORLD, 4096)
    assert (first, again, more) == ([Calls(kind, 5)], [], [Calls(kind, 2)])


def test_peers_follow_in_the_order_of_the_group() -> None:
    """Each links to the next ones, so the spans of a large group hang together without a link for each pair."""
    call = Call(Kind("all_reduce", WORLD, 4096), 9)

    peers = [call.peers(rank, 2) for rank in (4, 7, 99)]

    assert peers == [[5, 6], [4, 5], []]
    assert call.peers(5, 8) == [6, 7, 4]


def test_groups_whose_members_are_not_known_have_no_name_in_common() -> None:
    """Two that were made by hand are both called nothing: the calls of the one are not those of the other."""
    call = Call(Kind("all_reduce", Group("", "unknown", ()), 4096), 9)

    key, peers = call.key, call.peers(4, 8)

    assert (key, peers) == (None, [])


@pytest.mark.parametrize("op", ["send", "recv"])
def test_messages_between_two_have_no_peers(op: str) -> None:
    """Their numbers differ on the two sides: a link by number would lead to another message."""
    call = Call(Kind(op, WORLD, 4096), 9)

    peers = call.peers(4, 8)

    assert peers == []


def test_labels_are_bounded() -> None:
    """Each is a set of series; a script can make a group for each step."""
    groups = [{**GROUP, "group": str(n), "label": f"g{n}"} for n in range(40)]
    kinds = [{**KIND, "kind": n + 1, "group": str(n)} for n in range(40)]
    collectives = told(*groups, *kinds)

    labels = {collectives.call(operand(n + 1, 0)).kind.group.label for n in range(40)}

    assert len(labels) == MOST_LABELS + 1
    assert "other" in labels


@given(
    st.lists(
        st.fixed_dictionaries(
            {"event": st.sampled_from(["collective_group", "collective_kind", "collectives"])},
            optional=dict.fromkeys(("group", "label", "ranks", "kind", "op", "bytes", "counts"), ANYTHING),
        )
    ),
    st.integers(0, (1 << 54) - 1),
)
def test_any_log_is_read(events: list[dict[str, Any]], mark: int) -> None:
    """A damaged line must not end the relay of a whole node."""
    collectives = told(*events)

    call = collectives.call(mark)

    assert call.kind.op


def marked(tape: MarkTape, ns: int, what: int) -> None:
    """One stay in COLLECTIVE."""
    tape.mark(ENTER, Phase.COLLECTIVE, what)
    tape.now_ns += ns
    tape.mark(RESUME, Phase.OTHER)


@pytest.mark.parametrize(
    ("gap_ns", "waits", "shape"),
    [
        (10, operand(3, 9, WAIT | SAME_CALL), [("collective", 65)]),
        (0, operand(3, 9, WAIT | SAME_CALL), [("collective", 55)]),
        (10, operand(3, 9, WAIT), [("collective", 5), ("other", 10), ("collective", 50)]),
        (10, operand(3, 8, WAIT | SAME_CALL), [("collective", 5), ("other", 10), ("collective", 50)]),
    ],
)
def test_launch_and_wait_of_one_call_are_one(gap_ns: int, waits: int, shape: list[tuple[str, int]]) -> None:
    """A user calls `all_reduce` once; what was launched to be waited for later is two."""
    tape = MarkTape()
    tape.spend(Phase.FORWARD, 7)
    marked(tape, 5, operand(3, 9))
    tape.now_ns += gap_ns
    marked(tape, 50, waits)
    tape.step(0, optimizer_ns=3)
    timeline = RankTimeline()

    [step] = timeline.feed(tape.words)

    assert timeline.invalid == 0
    assert [(part.phase.wire, part.end_ns - part.start_ns) for part in step.intervals[1:-1]] == shape
    assert sum(part.end_ns - part.start_ns for part in step.intervals) == step.end_ns - step.start_ns
    assert len(step.calls) == len([name for name, _ in shape if name == "collective"])
    assert step.calls[0] == (step.intervals[1].start_ns, operand(3, 9))


def test_collectives_before_the_loop_begin_no_step() -> None:
    """A barrier after the weights have been loaded belongs to the init."""
    tape = MarkTape(now_ns=100)
    marked(tape, 50, operand(1, 0))
    tape.now_ns += 10
    tape.spend(Phase.FORWARD, 7)
    tape.step(0, optimizer_ns=3)

    [step] = RankTimeline().feed(tape.words)

    assert step.start_ns == 160
