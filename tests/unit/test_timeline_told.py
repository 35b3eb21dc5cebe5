"""What a rank tells as a span of its own, from the hook's words to what the relay believes of them."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from trainspan.record.spans import EARLY_TOLD, TOLD, SpanTeller
from trainspan.relay.timeline.told import ATTRIBUTES, Told, told_of

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
FIELDS = st.sampled_from(["name", "start_ns", "end_ns", "ok", "attributes", "state"])


def test_what_is_told_is_what_is_read() -> None:
    """The two ends of the event agree on its fields."""
    told: list[dict[str, Any]] = []
    teller = SpanTeller(lambda event, **fields: told.append({"event": event, **fields}), lambda: True)

    teller.span("training.init.model", 5, 9, ok=False, state="model_init", attributes={"class": "GPT", "depth": 2})
    teller.span("tokenize", 9, 12)

    assert [event["event"] for event in told] == ["span", "span"]
    assert [told_of(event) for event in told] == [
        Told("training.init.model", 5, 9, False, {"class": "GPT", "depth": 2}, "model_init"),
        Told("tokenize", 9, 12, True, {}, None),
    ]


def test_teller_knows_when_to_stop() -> None:
    """A process that never trains collects little, one that times every call does not fill its event log."""
    told: list[str] = []
    recording = False
    teller = SpanTeller(lambda _, **fields: told.append(fields["name"]), lambda: recording)

    for _ in range(EARLY_TOLD + 1):
        teller.span("early", 1, 2)
    recording = True
    for _ in range(TOLD):
        teller.span("late", 1, 2)

    assert (told.count("early"), len(told), teller.dropped) == (EARLY_TOLD, TOLD, EARLY_TOLD + 1)


@given(st.dictionaries(FIELDS, JSON))
def test_nothing_in_a_log_is_believed_unseen(event: dict[str, Any]) -> None:
    """Whatever stands there is told as it should be, or not at all."""
    told = told_of(event)

    if told is not None:
        assert told.name
        assert 0 <= told.start_ns <= told.end_ns
        assert len(told.attributes) <= ATTRIBUTES
        assert all(isinstance(value, str | bool | int | float) for value in told.attributes.values())


def test_texts_numbers_and_states_have_bounds() -> None:
    """What OTLP cannot carry, and what would fill a trace, is left out; the rest stays."""
    times = {"start_ns": 1, "end_ns": 2}
    attributes = {"long": "x" * 5000, "big": 1 << 70, "list": [1], "": 1, "fits": 1.5}

    told = told_of({"name": "n", "attributes": attributes, "state": "asleep", **times})

    assert told == Told("n", 1, 2, True, {"long": "x" * 1024, "fits": 1.5}, None)
    assert told_of({"name": "n" * 129, **times}) is None
    assert told_of({"name": "n", "start_ns": 2, "end_ns": 1}) is None
