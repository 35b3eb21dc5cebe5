"""The launchers of this node: what they say killed a worker, and what they tell of themselves."""

from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from trainspan.recording.reader import RecordingReader
from trainspan.relay.otlp.resource import HashedResource, node_resource, rank_resource
from trainspan.relay.signals.contexts import RankSource
from trainspan.relay.signals.launches import launch_record, launch_span, launcher_spans
from trainspan.relay.signals.logs import Record
from trainspan.relay.signals.spans import Span, Spans
from trainspan.relay.tail import Sighting
from trainspan.relay.timeline.launcher_summary import LauncherEnd, LauncherSummary, Outcome
from trainspan.relay.timeline.launches import Launches, cause_of
from trainspan.relay.timeline.told import texts_of
from trainspan.sampling import Sampling, SpanNames

GRACE_NS: Final = 5_000_000_000
"""How long the workers of a launcher that was killed may take to be seen; a relay that leaves does not wait."""


class Word(NamedTuple):
    """What a launcher says of the end of a worker. `cause`: of an end before its work was done; None: it was well."""

    at_ns: int
    cause: str | None


class Launcher:
    """One of them.

    Attributes:
        reader: of its recording.
        source: who it is.
        launches: what it has told; `place`: where it says it runs.
        how: whether it runs, or how it ended; `seen_ns`: when, or when it was last heard of.
    """

    def __init__(self, reader: RecordingReader, environ: Mapping[str, str]):
        identity = reader.identity
        self.reader = reader
        self.source = RankSource(identity, reader.anchor, rank_resource(identity, environ))
        self.launches = Launches(identity.attempt)
        self.place: dict[str, str] = {}
        self.how: LauncherEnd = "running"
        self.seen_ns = reader.process_start_ns
        self._looks = 0

    def take(self, event: Mapping[str, Any]) -> None:
        """Take over what it tells."""
        self.launches.take(event)
        if event["event"] == "place":
            self.place = texts_of(event)
        at_ns = event.get("ts")
        if type(at_ns) is int and self.seen_ns < at_ns < 1 << 62:
            self.seen_ns = at_ns

    def looked_at(self, ended: str | None, now_ns: int) -> None:
        """What was there to read has been taken over; `ended`: how it has ended, if it has."""
        self._looks += 1
        # Who was dead when first looked at may have been so for days.
        if ended != "died" or self._looks > 1:
            self.seen_ns = self.reader.closed_ns() or max(now_ns, self.seen_ns)
        if ended is not None:
            self.how = "died" if ended == "died" else "exception" if self.launches.error else "closed"
            self.launches.end(self.seen_ns)

    def summary(self) -> LauncherSummary:
        """How far it has come."""
        identity, launches = self.source.identity, self.launches
        latest = launches.open or launches.last
        summary = LauncherSummary(
            self.reader.path.stem,
            identity.host,
            identity.pid,
            launches.attempt,
            self.source.unix_of(self.reader.process_start_ns),
            self.source.unix_of(self.seen_ns),
            self.how,
            workers_ended=launches.worker_ends.total(),
            worker_cause=next((cause for cause, _ in launches.worker_ends.most_common(1)), None),
        )
        if latest is None:
            return summary._replace(error=launches.error)
        took_ns = (self.seen_ns if launches.open else latest.end_ns) - latest.start_ns
        outcome: Outcome = "done" if latest.ok else "open" if latest.error is None else "failed"
        error = latest.error or launches.error
        return summary._replace(operation=latest.operation, operation_ns=took_ns, outcome=outcome, error=error)

    def wrong(self) -> str | None:
        """What was wrong at its end; None if nothing."""
        last, ends = self.launches.last, self.launches.worker_ends
        if last is not None and not last.ok:
            return last.sentence
        if self.how == "died":
            return "the launcher was killed"
        if ends:
            return f"{ends.total()} of its workers failed: {', '.join(ends)}"
        return None if self.launches.error is None else f"{self.launches.error} left the launcher"


class Launchers:
    """All of them.

    Args:
        sampling: whether there are spans at all; `span_names`: which.
        environ: the settings.

    Attributes:
        living: whether one of them lives.
    """

    def __init__(self, sampling: Sampling, span_names: SpanNames, environ: Mapping[str, str]):
        # By host and number of the process: pods have numbers of their own, and begin anew with every restart.
        self._ended: dict[tuple[str, int], Word] = {}
        self._stopped: dict[tuple[str, int], Word] = {}
        self._started: set[tuple[str, int]] = set()
        self._known: dict[Path, Launcher] = {}
        self._living: set[Path] = set()
        self._ending: dict[Path, Launcher] = {}
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

    @property
    def newest(self) -> Launcher | None:
        """The one that was seen first last."""
        return next(reversed(self._known.values()), None)

    def take(self, sighting: Sighting, now_ns: int) -> None:
        """Take over what one look at the recording of a launcher gave."""
        path = sighting.reader.path
        if path not in self._known:
            self._known[path] = Launcher(sighting.reader, self._environ)
        self._living.add(path)
        for event in sighting.events:
            self._known[path].take(event)
            self.hear(event, sighting.reader.identity.host)
        if not sighting.more:
            self._known[path].looked_at(sighting.ended, now_ns)
        if sighting.ended:
            self._living.discard(path)
            self._ending[path] = self._known[path]

    def forget(self, path: Path) -> None:
        """Follow the recording of a launcher no further."""
        self._known.pop(path, None)
        self._ending.pop(path, None)
        self._living.discard(path)

    def ended(self, worker: RecordingReader) -> Word | None:
        """How a launcher says a worker ended; None: none has said it."""
        return _word_of(worker, self._ended)

    def stopped(self, worker: RecordingReader) -> Word | None:
        """With which signal a launcher says it has stopped a worker; None: none has."""
        return _word_of(worker, self._stopped)

    def has_told(self, worker: RecordingReader) -> bool:
        """Whether somebody has said how a worker ended, or that it ends it."""
        return self.ended(worker) is not None or self.stopped(worker) is not None

    def may_tell(self, worker: RecordingReader) -> bool:
        """Whether there is somebody who may yet say it."""
        started = worker.identity.host, worker.identity.pid
        return not self.has_told(worker) and (self.living or started in self._started)

    def hear(self, event: Mapping[str, Any], host: str) -> None:
        """Take over how a worker ended, if that is what an event says: of a launcher, or of `trainspan run`."""
        pid, at_ns, cause = event.get("pid"), event.get("ts"), cause_of(event)
        if event["event"] == "worker_started" and type(pid) is int:
            self._started.add((host, pid))
        if event["event"] not in ("worker_ended", "worker_stopped") or type(pid) is not int or type(at_ns) is not int:
            return
        if event["event"] == "worker_ended" and event.get("exit_code") == 0:
            self._ended[host, pid] = Word(at_ns, None)
        elif cause is not None:
            (self._ended if event["event"] == "worker_ended" else self._stopped)[host, pid] = Word(at_ns, cause)

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

    def over(self, now_ns: int, *, leaving: bool) -> list[Launcher]:
        """Those that have ended, once each, when no worker of theirs is to be expected any more.

        Args:
            now_ns: monotonic time.
            leaving: whether the relay is: it waits for nothing.
        """
        over = [path for path, one in self._ending.items() if leaving or now_ns - one.seen_ns >= GRACE_NS]
        return [self._ending.pop(path) for path in over]

    def spans_of(self, launcher: Launcher) -> Spans:
        """What is left of one that is over, for attempts that no rank was in: a trace of its own."""
        launches = launcher.launches
        left, launches.done = launches.done, []
        if not left or self._sampling.off:
            return Spans([], 0)
        resource = self._resource(launcher, launches.attempt, launches.node)
        lived_ns = launcher.reader.process_start_ns, launcher.seen_ns
        spans = launcher_spans(launcher.source, lived_ns, left, launcher.how, launcher.wrong(), resource)
        return Spans([span for span in spans if self._span_names.takes(span.name)], launches.cut)

    def summaries(self) -> list[LauncherSummary]:
        """How far each has come."""
        return [launcher.summary() for launcher in self._known.values()]

    def records(self, observed_unix_ns: int) -> list[Record]:
        """What is new, as log records."""
        return [
            launch_record(
                one.source, event, self._resource(one, one.source.identity.attempt, one.launches.node), observed_unix_ns
            )
            for one in self._known.values()
            for event in one.launches.take_events()
        ]

    def _resource(self, launcher: Launcher, attempt: int, node: int | None) -> HashedResource:
        identity = launcher.source.identity
        return node_resource(identity.run, attempt, node, identity.host, self._environ, launcher.place)


def _word_of(worker: RecordingReader, words: Mapping[tuple[str, int], Word]) -> Word | None:
    """The one that is about this worker, and not about a process that had its number before."""
    word = words.get((worker.identity.host, worker.identity.pid))
    return word if word is not None and word.at_ns >= worker.process_start_ns else None
