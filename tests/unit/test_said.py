"""What a script says, read with distrust: a log can hold anything."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainspan.relay.said import Said
from trainspan.relay.timeline.user_events import UserEvent
from trainspan.sampling import Sampling, SpanNames, sampling_from

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
FIELDS = ("name", "step", "attributes", "values", "tags", "kind", "count")
EVENTS = st.sampled_from(["user_event", "configured", "misuse", "another"])


def said(*events: dict[str, Any]) -> Said:
    """What has been said with these events."""
    found = Said()
    for event in events:
        found.take({"ts": 5, **event})
    return found


def test_event_is_taken_with_its_step() -> None:
    """It belongs to a step, or to what came before the first one."""
    early: dict[str, Any] = {"event": "user_event", "name": "ready", "step": None, "attributes": {}}
    late = {"event": "user_event", "name": "reward", "step": 7, "attributes": {"mean": 0.5, "bad": []}}

    assert said(early, late).events == [UserEvent("ready", 5, None, {}), UserEvent("reward", 5, 7, {"mean": 0.5})]


def test_what_is_configured_last_holds() -> None:
    """The batch size grows; a tag that was not known at the start comes later."""
    first = {"event": "configured", "values": {"training.global_batch_size": 8, "training.unknown": 1}, "tags": {}}
    second = {
        "event": "configured",
        "values": {"training.global_batch_size": 16, "training.perf_tag": "8b"},
        "tags": {"team": "x"},
    }

    found = said(first, second)

    assert found.configured == {"training.global_batch_size": 16}
    assert found.tags == {"training.perf_tag": "8b", "training.tag.team": "x"}
    assert [event.name for event in found.events] == ["training.configured"] * 2


@given(st.lists(st.fixed_dictionaries({"event": EVENTS}, optional=dict.fromkeys(FIELDS, JSON)), max_size=5))
def test_any_json_is_taken_or_left(events: list[dict[str, Any]]) -> None:
    """The relay goes on whatever a rank has scribbled."""
    found = said(*events)

    assert all(isinstance(event.name, str) for event in found.events)
    assert all(isinstance(value, str) for value in found.tags.values())
    assert all(count >= 0 for count in found.misuse.values())


def test_kinds_of_misuse_have_a_bound() -> None:
    """Each is a series."""
    found = said(*({"event": "misuse", "kind": f"kind {number}", "count": 1} for number in range(100)))

    assert len(found.misuse) == 32


@pytest.mark.parametrize(
    ("allow", "deny", "taken"),
    [
        (None, None, {"training.forward", "training.custom.a", "training.step"}),
        (("training.custom.*",), None, {"training.custom.a", "training.step"}),
        (None, ("training.*",), {"training.step"}),
        (("*.forward", "*.a"), ("*.a",), {"training.forward", "training.step"}),
    ],
)
def test_spans_are_chosen_by_name(allow: tuple[str, ...] | None, deny: tuple[str, ...] | None, taken: set[str]) -> None:
    """What holds others stays: a child of nothing is lost in every backend."""
    chosen = SpanNames(allow, deny)

    found = {name for name in ("training.forward", "training.custom.a", "training.step") if chosen.takes(name)}

    assert found == taken
    assert {name for name in taken if chosen.takes(name)} == taken


def test_every_so_many_steps_are_traced() -> None:
    """A share by chance is no help to who compares every hundredth step."""
    sampling, problems = sampling_from({"TRAINSPAN_SPANS_EVERY": "100"})

    reasons = [sampling.reason_for_step(number, trace_id=0) for number in (0, 1, 99, 100)]

    assert (sampling, problems) == (Sampling(None, 0.01, 100), [])
    assert reasons == ["every", None, None, "every"]


def test_sampler_of_the_specification_has_precedence() -> None:
    """`OTEL_*` variables mean what the specification says."""
    sampling, _ = sampling_from({"TRAINSPAN_SPANS_EVERY": "100", "OTEL_TRACES_SAMPLER": "always_on"})

    assert sampling.reason_for_step(7, trace_id=0) == "always_on"
