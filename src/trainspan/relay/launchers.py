"""The launchers of this node: what they say killed a worker, and what they tell of themselves."""

from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any

from trainspan.recording.reader import RecordingReader
from trainspan.relay.otlp.resource import HashedResource, node_resource, rank_resource
from trainspan.relay.signals.contexts import RankSource
from trainspan.relay.signals.launches import launch_record, launch_span
from trainspan.relay.signals.logs import Record
from trainspan.relay.signals.spans import Span
from trainspan.relay.tail import Sighting
from trainspan.relay.timeline.launches import Launches
from trainspan.sampling import Sampling, SpanNames


class Launcher:
    """One of them. `source`: who it is; `launches`: what it has told; `place`: where it says it runs."""

    def __init__(self, reader: RecordingReader, environ: Mapping[str, str]):
        identity = reader.identity
        self.source = RankSource(identity, reader.anchor, rank_resource(identity, environ))
        self.launches = Launches()
        self.place: dict[str, str] = {}

    def take(self, event: Mapping[str, Any]) -> None:
        """Take over what it tells."""
        self.launches.take(event)
        place = event.get("attributes") if event["event"] == "place" else None
        if isinstance(place, dict):
            self.place = {key: value for key, value in place.items() if isinstance(value, str)}


class Launchers:
    """All of them.

    Args:
        sampling: whether there are spans at all; `span_names`: which.
        environ: the settings.

    Attributes:
        causes: by pid, what a launcher says ended a worker before its work was done.
        stopped: by pid, the signal that a launcher says it has stopped a worker with.
        living: whether one of them lives.
    """

    def __init__(self, sampling: Sampling, span_names: SpanNames, environ: Mapping[str, str]):
        self.causes: dict[int, str] = {}
        self.stopped: dict[int, str] = {}
        self._seen_end: set[int] = set()
        self._known: dict[Path, Launcher] = {}
        self._living: set[Path] = set()
        self._sampling = sampling
        self._span_names = span_names
        self._environ = environ

    @property
    def living(self) -> bool:
        """Whether one of them lives."""
        return bool(self._living)

    def knows(self, path: Path) -> bool:
        """Whether the recording is that of a launcher seen before."""
        return path in self._known

    def take(self, sighting: Sighting) -> None:
        """Take over what one look at the recording of a launcher gave."""
        path = sighting.reader.path
        if path not in self._known:
            self._known[path] = Launcher(sighting.reader, self._environ)
        self._living.add(path)
        for event in sighting.events:
            self._known[path].take(event)
            self._take_end(event)
        if sighting.ended:
            self._living.discard(path)

    def has_told(self, pid: int) -> bool:
        """Whether a launcher has said how a worker ended, or that it ends it."""
        return pid in self.causes or pid in self.stopped or pid in self._seen_end

    def _take_end(self, event: Mapping[str, Any]) -> None:
        pid, signal, exit_code = event.get("pid"), event.get("signal"), event.get("exit_code")
        if event["event"] not in ("worker_ended", "worker_stopped") or type(pid) is not int:
            return
        if isinstance(signal, str):
            (self.causes if event["event"] == "worker_ended" else self.stopped)[pid] = signal
        elif type(exit_code) is int:
            self._seen_end.add(pid)
            if exit_code:
                self.causes[pid] = f"exit code {exit_code}"

    def began_unix_ns(self, attempt: int) -> int | None:
        """When one of them began with an attempt; None if none has."""
        began = [one.source.unix_of(one.launches.began_ns[attempt]) for one in self._of(attempt)]
        return min(began, default=None)

    def _of(self, attempt: int) -> list[Launcher]:
        return [one for one in self._known.values() if attempt in one.launches.began_ns]

    def reasons(self) -> dict[int, str]:
        """Why attempts were begun anew, as far as a launcher has said it."""
        return {attempt: why for one in self._known.values() for attempt, why in one.launches.reasons.items()}

    def time_s(self) -> dict[str, float]:
        """What they have taken, by what they did."""
        total: dict[str, float] = {}
        for launcher in self._known.values():
            for operation, time_s in launcher.launches.time_s().items():
                total[operation] = total.get(operation, 0.0) + time_s
        return total

    def metrics(self) -> dict[str, float]:
        """What was put into torchelastic's metrics; of several launchers, by the newest."""
        return {name: value for one in self._known.values() for name, value in one.launches.metrics.items()}

    def spans(self, attempts: Container[int]) -> list[Span]:
        """What is new of these attempts, as spans; of the others it waits: their trace has no root yet."""
        spans = []
        for launcher in self._known.values():
            for launch in launcher.launches.take_done(attempts):
                span = launch_span(launcher.source, launch, self._resource(launcher, launch.attempt, launch.node))
                if span is not None and not self._sampling.off and self._span_names.takes(span.name):
                    spans.append(span)
        return spans

    def records(self, observed_unix_ns: int) -> list[Record]:
        """What is new, as log records."""
        return [
            launch_record(one.source, event, self._resource(one, one.source.identity.attempt, None), observed_unix_ns)
            for one in self._known.values()
            for event in one.launches.take_events()
        ]

    def _resource(self, launcher: Launcher, attempt: int, node: int | None) -> HashedResource:
        identity = launcher.source.identity
        return node_resource(identity.run, attempt, node or 0, identity.host, self._environ, launcher.place)
