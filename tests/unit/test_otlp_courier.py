"""Which batch waits, which is passed over, and which is dropped, against an endpoint that answers as it is told."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from trainspan.relay.otlp.claims import claim
from trainspan.relay.otlp.complaints import Complaints
from trainspan.relay.otlp.courier import (
    ASKED_WAIT_MAX_S,
    BACKOFF_MAX_S,
    PATIENCE_REFUSED,
    PATIENCE_UNANSWERED,
    Courier,
)
from trainspan.relay.otlp.delivery import Outcome
from trainspan.relay.otlp.destinations import Destination
from trainspan.relay.otlp.journal import Journal

ACCEPTED = Outcome("accepted")
REFUSED = Outcome("refused", "HTTP 400")
UNANSWERED = Outcome("unanswered", "ConnectionError")
UNREADABLE = Outcome("unreadable", "torn")


class FakeEndpoint:
    """Answers each line by `answer`, and keeps those it accepted."""

    destination = Destination("traces", "otlp", url="http://collector:4318/v1/traces")

    def __init__(self) -> None:
        self.accepted: list[int] = []
        self.answer: Callable[[int], Outcome] = lambda _: ACCEPTED

    def send(self, text: bytes | None) -> Outcome:
        """The answer to the line with this number."""
        number = int(text or b"")
        outcome = self.answer(number)
        if outcome is ACCEPTED:
            self.accepted.append(number)
        return outcome


@pytest.fixture
def endpoint() -> FakeEndpoint:
    """One that accepts everything."""
    return FakeEndpoint()


@pytest.fixture
def said() -> list[str]:
    """What the courier has said."""
    return []


@pytest.fixture
def journal(tmp_path: Path, said: list[str]) -> Iterator[Journal]:
    """One with the lines 0 to 9."""
    path, claimed = claim(tmp_path, "traces", 0)
    opened = Journal(path, claimed, 1 << 20, Complaints(said.append))
    for number in range(10):
        opened.append(b"%d" % number)
    yield opened
    opened.close()


@pytest.fixture
def courier(journal: Journal, endpoint: FakeEndpoint, said: list[str]) -> Courier:
    """Between the two."""
    return Courier(journal, endpoint, Complaints(said.append))


def steps_until_stuck_for_good(courier: Courier, most: int = 100) -> None:
    """Let the courier go on until nothing is left, or for `most` steps."""
    for _ in range(most):
        if courier.step() == "empty":
            return


def test_lines_go_in_order(courier: Courier, endpoint: FakeEndpoint) -> None:
    """The plain case."""
    steps_until_stuck_for_good(courier)

    assert endpoint.accepted == list(range(10))
    assert (courier.delivered, courier.failures) == (10, 0)


def test_unreadable_line_is_skipped_at_once(
    courier: Courier, journal: Journal, endpoint: FakeEndpoint, said: list[str]
) -> None:
    """No endpoint will ever read what we cannot."""
    endpoint.answer = lambda number: UNREADABLE if number == 3 else ACCEPTED

    steps_until_stuck_for_good(courier)

    assert endpoint.accepted == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    assert (journal.dropped, courier.failures, len(said)) == (1, 0, 1)


@pytest.mark.parametrize("poison", [{4}, {4, 5}, {4, 5, 7}, {0, 1, 2, 3, 4, 5}])
def test_poison_is_passed(poison: set[int], courier: Courier, journal: Journal, endpoint: FakeEndpoint) -> None:
    """What is wrong with one batch is often wrong with its neighbours."""
    endpoint.answer = lambda number: REFUSED if number in poison else ACCEPTED

    steps_until_stuck_for_good(courier)

    assert sorted(endpoint.accepted) == [number for number in range(10) if number not in poison]
    assert journal.dropped == len(poison)
    assert courier.delivered == 10 - len(poison)


@pytest.mark.parametrize("answer", [REFUSED, UNANSWERED])
def test_nothing_is_dropped_while_everything_is_refused(
    answer: Outcome, courier: Courier, journal: Journal, endpoint: FakeEndpoint, said: list[str]
) -> None:
    """An endpoint that takes nothing says nothing about a batch."""
    endpoint.answer = lambda _: answer

    steps_until_stuck_for_good(courier)

    assert journal.dropped == 0
    assert journal.lines_delivered == 0
    assert len(said) == 1


@pytest.mark.parametrize(("answer", "patience"), [(REFUSED, PATIENCE_REFUSED), (UNANSWERED, PATIENCE_UNANSWERED)])
def test_first_batch_has_its_chances(answer: Outcome, patience: int, courier: Courier, endpoint: FakeEndpoint) -> None:
    """A proxy that restarts answers 400 or 500 for a second; order is worth waiting for."""
    asked: list[int] = []

    def refuse_first(number: int) -> Outcome:
        asked.append(number)
        return answer if number == 0 else ACCEPTED

    endpoint.answer = refuse_first

    for _ in range(patience - 1):
        courier.step()

    assert asked == [0] * (patience - 1)


def test_endpoint_that_comes_back_during_the_probe_gets_all(
    courier: Courier, journal: Journal, endpoint: FakeEndpoint
) -> None:
    """The outage ends between the first batch and the one behind it: the first is not poison."""
    refusals = iter([REFUSED] * PATIENCE_REFUSED)
    endpoint.answer = lambda _: next(refusals, ACCEPTED)

    steps_until_stuck_for_good(courier)

    assert sorted(endpoint.accepted) == list(range(10))
    assert journal.dropped == 0


def test_endpoint_that_is_busy_again_after_the_probe_costs_the_first_batch_alone(
    courier: Courier, journal: Journal, endpoint: FakeEndpoint
) -> None:
    """A collector that comes back to a backlog takes one and answers 503 to the rest: they are no poison."""
    busy = iter([UNANSWERED] * 10)

    def answer(number: int) -> Outcome:
        if not endpoint.accepted:
            return ACCEPTED if number == 4 else UNANSWERED
        return next(busy, ACCEPTED)

    endpoint.answer = answer

    steps_until_stuck_for_good(courier)

    assert set(endpoint.accepted) == set(range(1, 10))
    assert (journal.dropped, courier.delivered) == (1, 9)


def test_what_is_refused_before_a_busy_moment_is_dropped_and_the_rest_kept(
    courier: Courier, journal: Journal, endpoint: FakeEndpoint
) -> None:
    """What has had its verdict is done with; what has had none is asked again."""
    asked: list[int] = []

    def answer(number: int) -> Outcome:
        asked.append(number)
        if number in (0, 1):
            return REFUSED
        return UNANSWERED if number == 2 and asked.count(2) == 2 else ACCEPTED

    endpoint.answer = answer

    steps_until_stuck_for_good(courier)

    assert sorted(set(endpoint.accepted)) == list(range(2, 10))
    assert journal.dropped == 2


def test_waits_grow_to_their_bound(courier: Courier, endpoint: FakeEndpoint) -> None:
    """A thousand nodes that ask every half second keep a collector down."""
    endpoint.answer = lambda _: UNANSWERED
    waits_s = []

    for _ in range(12):
        courier.step()
        waits_s.append(courier.backoff_s())

    planned_s = [0.5, 1, 2, 4, 8, 16, *[BACKOFF_MAX_S] * 6]
    assert all(0.8 <= wait_s / plan_s <= 1.2 for wait_s, plan_s in zip(waits_s, planned_s, strict=True))


def test_endpoint_that_asks_for_time_gets_it_within_a_bound(courier: Courier, endpoint: FakeEndpoint) -> None:
    """It knows best when it can take more, up to what a run can wait; and none of its answers makes a batch poison."""
    asked: list[int] = []

    def throttle(number: int) -> Outcome:
        asked.append(number)
        return Outcome("unanswered", "HTTP 429", retry_after_s=next(waits_s))

    waits_s = iter([60.0, 1e9, *[60.0] * 40])
    endpoint.answer = throttle

    courier.step()
    first_s = courier.backoff_s()
    courier.step()
    second_s = courier.backoff_s()
    for _ in range(PATIENCE_UNANSWERED + 5):
        courier.step()

    assert (first_s, second_s) == (60.0, ASKED_WAIT_MAX_S)
    assert set(asked) == {0}


def test_unreadable_disk_is_told_and_tried_again(courier: Courier, journal: Journal, said: list[str]) -> None:
    """A file server that hiccups must not end the thread that delivers."""
    descriptor = journal._claim.descriptor
    journal._claim.descriptor = -1

    step = courier.step()

    journal._claim.descriptor = descriptor
    assert step == "stuck"
    assert courier.step() == "moved"
    assert len(said) == 1
