"""What the metrics of a node are made of beside those of each rank: its own health, and what its ranks share."""

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from trainspan.identity import Identity
from trainspan.relay.follower import RankFollower
from trainspan.relay.otlp.destinations import Signal
from trainspan.relay.otlp.outlet import SignalHealth
from trainspan.relay.otlp.resource import HashedResource, node_resource
from trainspan.relay.signals.aggregates import Aggregate, StepAggregates
from trainspan.relay.signals.beginnings import Beginnings
from trainspan.relay.signals.metrics import Health, NodeReading, RankReading, SharedReading, has_own_histograms
from trainspan.relay.tail import Sighting


class Speaker(NamedTuple):
    """Who speaks for the node: the identity of its newest process, the node's rank, and as in `node_resource`."""

    identity: Identity
    node_rank: int | None
    rank_beside: int | None


class _Shared(NamedTuple):
    """What the ranks of one attempt share, and since when."""

    aggregates: StepAggregates
    start_unix_ns: int


class NodeMetrics:
    """Of one run on this node.

    Args:
        environ: the settings.
        histogram: makes the aggregate of a histogram.
        started_unix_ns: when the relay began with the run.

    Attributes:
        health: of the relay; its parts add to it, `look_at` does the rest.
    """

    def __init__(self, environ: Mapping[str, str], histogram: Callable[[], Aggregate], started_unix_ns: int):
        self.health = Health()
        self._environ = environ
        self._histogram = histogram
        self._started_unix_ns = started_unix_ns
        self._beginnings = Beginnings()
        self._shared: dict[int, _Shared] = {}

    def aggregates_of(self, identity: Identity) -> tuple[StepAggregates, bool]:
        """What counts the steps of a rank, and whether these alone: else those of all ranks of its attempt."""
        own = has_own_histograms(identity.world_size)
        if own:
            return StepAggregates(self._histogram), own
        if identity.attempt not in self._shared:
            self._shared[identity.attempt] = _Shared(StepAggregates(self._histogram), time.time_ns())
        return self._shared[identity.attempt].aggregates, own

    def count(self, sighting: Sighting, lost: int, now_ns: int) -> None:
        """Count what was seen of a recording, of which `lost` marks were lost to everybody."""
        self.health.marks += len(sighting.marks) // 2
        self.health.marks_lost += lost
        if sighting.marks:
            self.health.lag_s = max(0, now_ns - sighting.marks[0]) / 1e9

    def look_at(self, followers: Sequence[RankFollower], given_up: int, signals: Mapping[Signal, SignalHealth]) -> None:
        """Take over how the relay fares.

        Args:
            followers: of all recordings, given up ones too: a counter never falls.
            given_up: how many are.
            signals: how each fares.
        """
        health = self.health
        health.recording_errors = sum(one.reader.errors + one.timeline.invalid for one in followers) + given_up
        health.events_dropped = sum(follower.reader.events_dropped() for follower in followers)
        misuse: Counter[str] = Counter()
        for follower in followers:
            misuse.update(follower.said.misuse)
        health.misuse = dict(misuse)
        health.cpu_s = time.process_time()
        health.exports = {signal: state.delivered for signal, state in signals.items()}
        health.export_failures = {signal: state.failures for signal, state in signals.items()}
        health.export_rejected = {signal: state.rejected for signal, state in signals.items()}
        health.spool_bytes = {signal: state.pending_bytes for signal, state in signals.items()}
        health.spool_dropped = {signal: state.dropped for signal, state in signals.items()}

    def ranks(self, readings: Sequence[RankReading], time_unix_ns: int) -> list[RankReading]:
        """`readings` with beginnings that are not behind `time_unix_ns`: the clock may have been set back."""
        return [r._replace(start_unix_ns=self._beginnings.of(r.start_unix_ns, time_unix_ns)) for r in readings]

    def node(self, speaker: Speaker, time_unix_ns: int) -> NodeReading:
        """What is known of the node; what its launchers and its GPUs tell is to be added."""
        resource = self._resource(speaker, speaker.identity.attempt)
        return NodeReading(resource, self._beginnings.of(self._started_unix_ns, time_unix_ns), self.health)

    def shared(self, speaker: Speaker, time_unix_ns: int, over: Collection[int]) -> list[SharedReading]:
        """What the ranks of each attempt share; of the attempts that are `over`, for the last time."""
        readings = [
            SharedReading(
                self._resource(speaker, attempt),
                self._beginnings.of(shared.start_unix_ns, time_unix_ns),
                shared.aggregates,
            )
            for attempt, shared in self._shared.items()
        ]
        for attempt in over:
            self._shared.pop(attempt, None)
        return readings

    def _resource(self, speaker: Speaker, attempt: int) -> HashedResource:
        identity, node_rank, beside = speaker
        return node_resource(identity.run, attempt, node_rank, identity.host, self._environ, rank_beside=beside)
