"""What a rank tells of its GPU and is charged with, as its metrics and its summary have it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.recordings import opened, record_into
from trainspan.names import Phase
from trainspan.relay.follower import RankFollower
from trainspan.relay.live_history import LiveHistory
from trainspan.relay.signals.aggregates import ExplicitAggregate, StepAggregates
from trainspan.relay.tail import Sighting
from trainspan.relay.timeline.energy import Charge
from trainspan.relay.timeline.records import ProcessEnd

NOW_NS = 6_000_000_000


@pytest.fixture
def follower(tmp_path: Path) -> Iterator[RankFollower]:
    """A rank that is followed, where electricity has 400 g/kWh."""
    recording = record_into(tmp_path)
    reader = opened(recording.writer.path)
    environ = {"TRAINSPAN_CARBON_G_PER_KWH": "400"}
    yield RankFollower(reader, environ, StepAggregates(ExplicitAggregate), own=True)
    reader.close()
    recording.writer.close(1)


def test_energy_becomes_metrics_and_summary(follower: RankFollower) -> None:
    """A kilowatt hour is 400 g here; and what is not known is not zero."""
    history = LiveHistory(list)
    before = follower.read_metrics(NOW_NS, history)

    follower.charge_energy(Charge({Phase.FORWARD: 1.2e6, Phase.BACKWARD: 2.0e6}, 5_000_000_000))
    follower.charge_energy(Charge({Phase.BACKWARD: 0.4e6}, 1_000_000_000))
    after = follower.read_metrics(NOW_NS, history)

    assert before is not None
    assert after is not None
    assert (before.energy_j, before.carbon_g) == ({}, None)
    assert after.energy_j == {"forward": 1.2e6, "backward": 2.4e6}
    assert after.carbon_g == pytest.approx(400)
    assert (follower.summary.energy_j, follower.summary.energy_s) == (3.6e6, 6.0)


def test_the_energy_of_its_last_moments_is_told_after_its_end(follower: RankFollower) -> None:
    """It is known when the GPU is read next, and by then the rank has been told of for the last time."""
    history = LiveHistory(list)
    follower.finish(ProcessEnd(NOW_NS, "closed"))
    last = follower.read_metrics(NOW_NS, history)
    follower.charge_energy(Charge({Phase.FORWARD: 100.0}, 1_000_000))

    once_more = [follower.read_metrics(NOW_NS, history) for _ in range(3)]

    assert last is not None
    assert [reading and reading.energy_j for reading in once_more] == [{"forward": 100.0}, None, None]


def test_the_device_it_uses_is_taken_over(follower: RankFollower) -> None:
    """A line that makes no sense does not take back what made sense."""
    events = [{"ts": 1, "event": "device", "index": 3}, {"ts": 2, "event": "device", "index": "x"}]

    follower.read(Sighting(follower.reader, [], 0, events, None))

    assert follower.uses is not None
    assert follower.uses.number == 3
