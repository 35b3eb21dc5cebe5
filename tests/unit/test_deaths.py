"""How a process came to its end, by its own words and by those of who started it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.recordings import opened, record_into
from trainspan import settings
from trainspan.relay.deaths import Dying
from trainspan.relay.follower import RankFollower
from trainspan.relay.launchers import Launchers
from trainspan.relay.signals.aggregates import ExplicitAggregate, StepAggregates
from trainspan.relay.tail import Sighting
from trainspan.relay.timeline.records import ProcessEnd
from trainspan.sampling import SpanNames, sampling_from

SEEN_NS = 7_000
STOPPED = {"event": "stopped", "ts": 5_000, "signal": "SIGKILL"}


@pytest.fixture
def follower(tmp_path: Path) -> Iterator[RankFollower]:
    """A rank that is followed."""
    recording = record_into(tmp_path)
    reader = opened(recording.writer.path)
    yield RankFollower(reader, {}, StepAggregates(ExplicitAggregate), own=True)
    reader.close()
    recording.writer.close(1)


@pytest.fixture
def launchers() -> Launchers:
    """Launchers, of which none says anything."""
    return Launchers(sampling_from({})[0], SpanNames.of(settings.load({})[0]), {})


def test_rank_that_was_told_of_its_stop_has_not_died(follower: RankFollower, launchers: Launchers) -> None:
    """Ray has no launcher that records: a worker is told, and then killed."""
    follower.read(Sighting(follower.reader, [], 0, [STOPPED], None))

    end = Dying(follower, SEEN_NS).end(launchers)

    assert end == ProcessEnd(SEEN_NS, "stopped", "SIGKILL", follower.alive_ns)


def test_word_of_the_launcher_on_how_a_rank_ended_goes_before_that(
    follower: RankFollower, launchers: Launchers
) -> None:
    """It may have died by itself before it was stopped."""
    identity = follower.reader.identity
    ended = {"event": "worker_ended", "ts": 6_000_000, "pid": identity.pid, "exit_code": 3, "signal": None}
    launchers.hear(ended, identity.host)
    follower.read(Sighting(follower.reader, [], 0, [STOPPED], None))

    end = Dying(follower, SEEN_NS).end(launchers)

    assert (end.reason, end.cause) == ("died", "exit code 3")
