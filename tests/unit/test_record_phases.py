"""Numbers for the phases that a user names, and the count of what is misused."""

from typing import Any

import pytest

from trainspan.names import CUSTOM_FIRST, CUSTOM_LAST, Phase
from trainspan.record.attributes import MOST, values_of
from trainspan.record.misuse import KINDS, Misuse
from trainspan.record.phases import PhaseNumbers


class Told:
    """What was told."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def __call__(self, kind: str, /, **fields: Any) -> None:
        self.events.append({"event": kind, **fields})


def test_known_phase_keeps_its_number_and_is_not_told() -> None:
    """`forward` is what the hooks call it, too."""
    told = Told()
    numbers = PhaseNumbers(told, lambda: None)

    found = {phase: numbers.number_of(phase.wire) for phase in Phase if phase is not Phase.OTHER}

    assert found == {phase: int(phase) for phase in found}
    assert told.events == []


def test_name_is_told_once_and_again_to_each_recording() -> None:
    """A fork that trains has a recording of its own, whose reader knows nothing of the first."""
    told = Told()
    numbers = PhaseNumbers(told, lambda: None)

    first, again, same = (numbers.number_of(name) for name in ("roll out", "roll out", "roll_out"))
    numbers.tell_all()

    assert first == again == same == CUSTOM_FIRST
    assert numbers.wire_of(first) == "custom.roll_out"
    assert told.events == [{"event": "phase_name", "number": CUSTOM_FIRST, "name": "roll_out"}] * 2


def test_names_beyond_the_last_number_share_it() -> None:
    """A name for each item must not take a number that another phase has."""
    misused: list[None] = []
    numbers = PhaseNumbers(Told(), lambda: misused.append(None))

    found = [numbers.number_of(f"item {item}") for item in range(40)]

    assert found == [*range(CUSTOM_FIRST, CUSTOM_LAST), *[CUSTOM_LAST] * 9]
    assert len(misused) == 9
    assert numbers.wire_of(CUSTOM_LAST) == "custom.other"
    assert numbers.wire_of(Phase.FORWARD) == "forward"


@pytest.mark.parametrize(
    ("name", "wire"), [("", "other"), ("ä/b c", "__b_c"), ("x" * 99, "x" * 64), ("other", "other")]
)
def test_name_is_made_fit_for_the_wire(name: str, wire: str) -> None:
    """It becomes a label of a series and a name of a span."""
    numbers = PhaseNumbers(Told(), lambda: None)

    assert numbers.wire_of(numbers.number_of(name)) == f"custom.{wire}"


def test_misuse_is_told_ever_more_seldom_and_at_the_end() -> None:
    """A mistake at each of a million steps would fill the event log; the count is right in the end."""
    told = Told()
    misuse = Misuse(told)

    for _ in range(100):
        misuse.count("crossed", "phase()")
    before_end = [event["count"] for event in told.events]
    misuse.tell_all()
    misuse.tell_all()

    assert before_end == [1, 2, 4, 8, 16, 32, 64]
    assert [event["count"] for event in told.events[7:]] == [100]
    assert {event["kind"] for event in told.events} == {"crossed"}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_a_sentence_with_its_call(kind: str) -> None:
    """The line on stderr is all that most users see of it."""
    assert KINDS[kind].startswith("{what} is") or KINDS[kind].startswith("{what} ")
    assert ";" in KINDS[kind]


class Tensor:
    """What is expensive to show: it fails when it is asked for a value."""

    def __str__(self) -> str:
        raise AssertionError("shown")

    __repr__ = __float__ = __bool__ = __str__


def test_values_are_never_turned_into_texts() -> None:
    """To show a tensor waits for its device, and tells what is in it."""
    refused: list[str] = []
    given = {"a": 1, "b": True, "c": 0.5, "d": "x" * 2000, "e": None, "f": Tensor(), "g": [1], "h": 1 << 63, "": 1}

    values = values_of(given, refused.append)

    assert values == {"a": 1, "b": True, "c": 0.5, "d": "x" * 1024}
    assert refused == ["f", "g", "h", ""]


def test_attributes_have_a_bound() -> None:
    """A dictionary of a model's weights by name must not become a log record."""
    refused: list[str] = []

    values = values_of({str(number): number for number in range(MOST + 5)}, refused.append)

    assert len(values) == MOST
    assert len(refused) == 5
