"""One run on this node, from recordings to OTLP: the one place that joins the rooms of the relay."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from trainspan import settings
from trainspan.errors import RecordingRefused, raised_by
from trainspan.identity import Identity
from trainspan.otel_variables import metric_interval_from, temporality_complaint
from trainspan.recording.last_words import LastWords
from trainspan.recording.layout import DAMAGED_SUFFIX
from trainspan.recording.reader import RecordingReader
from trainspan.relay.assembly import Assembly, Output
from trainspan.relay.deaths import Dying, orderly_end
from trainspan.relay.facts_of_run import RunLedger
from trainspan.relay.follower import RankFollower
from trainspan.relay.gpus import NodeGpus, is_here
from trainspan.relay.launchers import Launchers
from trainspan.relay.node_metrics import NodeMetrics, Speaker
from trainspan.relay.otlp.complaints import Complaints
from trainspan.relay.otlp.outlet import Outlet
from trainspan.relay.signals.metrics import histogram_kind_from, metrics_of
from trainspan.relay.summary_file import SummaryFile, read_summary, summary_interval_ns, write_summary, writing_ns
from trainspan.relay.tail import Sighting
from trainspan.relay.timeline.records import ProcessEnd, RankStep
from trainspan.relay.timeline.summary import Summary
from trainspan.role import Role
from trainspan.sampling import SpanNames, sampling_from

WORD_OF_AGENT_NS: Final = 5_000_000_000
"""How long the end of a process waits for a launcher that lives to say how it came."""


class Pipeline:
    """Everything of one run on this node.

    Args:
        folder: the run folder.
        environ: the settings of trainspan and OpenTelemetry.
        log: told one line at a time what somebody should know.
        gpus: of this node.
    """

    def __init__(self, folder: Path, environ: Mapping[str, str], log: Callable[[str], None], gpus: NodeGpus):
        self._folder = folder
        self._environ = environ
        self._log = log
        self._complain = Complaints(log)
        self._gpus = gpus
        # Which node this is, a rank knows and the launcher does not: None until there is one.
        self._node_rank: int | None = None
        self._outlet: Outlet | None = None
        self._sampling, problems = sampling_from(environ)
        histogram, more = histogram_kind_from(environ)
        interval_ms, of_interval = metric_interval_from(environ)
        for problem in (*problems, *more, *of_interval):
            log(str(problem))
        complaint = temporality_complaint(environ)
        if complaint is not None:
            log(complaint)
        values = settings.load(environ)[0]
        self._denied = values.metrics_deny or ()
        # A thread of the rank is gone before anybody can know how the rank ended.
        launch = values.launch_id if values.relay == "process" else None
        self._last_words = LastWords(Path(settings.state_dir(values, environ)), launch)
        self._started_unix_ns = time.time_ns()
        self._node_metrics = NodeMetrics(environ, histogram, self._started_unix_ns)
        self._metric_interval_ns = interval_ms * 1_000_000
        self._next_metrics_ns: int | None = None
        self._next_summary_ns = 0
        self._summary_bytes = 0
        self._followers: dict[Path, RankFollower] = {}
        self._launchers = Launchers(self._sampling, SpanNames.of(settings.load(environ)[0]), environ)
        self._assemblies: dict[int, Assembly] = {}
        self._dying: list[Dying] = []
        self._summary: Summary | None = None
        self._summary_file: SummaryFile | None = None
        self._ledger = RunLedger(folder, os.uname().nodename, self._started_unix_ns, log)
        self._retired: list[RecordingReader] = []
        self._given_up: dict[Path, RankFollower | None] = {}
        self._finished = False

    def knows(self, reader: RecordingReader) -> bool:
        """Whether this recording has been seen before."""
        known = reader.path in self._followers or reader.path in self._given_up
        return known or self._launchers.knows(reader.path)

    def take(self, sighting: Sighting, now_ns: int) -> None:
        """Take over what one look at one recording gave; over one that cannot be taken, the others are not lost.

        Raises:
            RecordingRefused: nothing of the run can be kept.
            OSError: the same, for now.
        """
        reader = sighting.reader
        if reader.path not in self._given_up:
            try:
                self._take(sighting, now_ns)
            except (RecordingRefused, OSError):
                raise
            except Exception as error:  # noqa: BLE001 - a log can hold what nobody has thought of
                self._give_up(reader, error)
        if sighting.ended and reader.path in self._given_up:
            reader.close()

    def _take(self, sighting: Sighting, now_ns: int) -> None:
        reader = sighting.reader
        if reader.identity.role == Role.AGENT:
            self._launchers.take(sighting, now_ns)
            self._summary = self._summary or read_summary(self._summary_path(), reader.identity.run, self._log)
            return
        follower = self._followers.get(reader.path) or self._follow(reader)
        assembly = self._assembly_of(reader.identity)
        lost_before = follower.summary.marks_lost
        steps = follower.read(sighting)
        self._node_metrics.count(sighting, follower.summary.marks_lost - lost_before, now_ns)
        self._ledger.take(follower, steps, sighting.events, now_ns, more=sighting.more)
        follower.resume(self._ledger.history)
        phase_times_ns = follower.count(steps)
        self._count_energy(follower, steps, now_ns)
        assembly.add_steps(follower, steps, phase_times_ns, now_ns, time.time_ns())
        live = sighting.ended is None and not sighting.more
        assembly.add_segments(follower, follower.over_segments(steps, now_ns, live=live))
        if sighting.more:
            self._ledger.write(now_ns)  # what waits for the next turn is to stay small
        elif sighting.ended == "closed":
            self._dying.append(Dying(follower, now_ns, orderly_end(follower)))
        elif sighting.ended is None:
            follower.note_alive(now_ns)
        else:
            self._dying.append(Dying(follower, now_ns))

    def turn(self, now_ns: int) -> None:
        """Decide, export and write what is due."""
        self._bury(now_ns)
        self._ledger.write(now_ns)  # before a recording that has ended is removed
        self._put_launches(now_ns, leaving=False)
        for assembly in self._assemblies.values():
            self._put(assembly.turn(now_ns))
        self._gpus.settle(now_ns)
        if self._next_metrics_ns is None:
            self._next_metrics_ns = now_ns + self._metric_interval_ns
        metrics_due, summary_due = now_ns >= self._next_metrics_ns, now_ns >= self._next_summary_ns
        if metrics_due:
            self._next_metrics_ns = now_ns + self._metric_interval_ns
            # Together, so that another relay knows what has been told; unless it is too large for that.
            summary_due |= self._metric_interval_ns >= writing_ns(self._summary_bytes)
        if metrics_due or (summary_due and self._retired):
            self._put_metrics(now_ns)  # of hundreds of processes that end in a row, once
        if summary_due:
            written_bytes = self._write_summary()
            self._summary_bytes = written_bytes or self._summary_bytes
            self._next_summary_ns = now_ns + summary_interval_ns(self._summary_bytes)
            if written_bytes is not None:
                self._remove_retired()

    def busy(self) -> bool:
        """Whether the end of a process is still being cleared up, or the energy of its last moments."""
        return bool(self._dying) or self._gpus.awaits_reading

    def finish(self, now_ns: int) -> None:
        """Hand out everything that is left, once; nothing more is to be taken after that."""
        if self._finished:
            return
        self._finished = True
        self._bury(now_ns, wait_ns=0)
        self._put_launches(now_ns, leaving=True)
        for assembly in self._assemblies.values():
            self._put(assembly.finish())
        self._gpus.settle(now_ns)
        self._ledger.close()
        self._put_metrics(now_ns)
        self._write_summary()
        self._remove_retired()
        self._gpus.close()
        if self._summary_file is not None:
            self._summary_file.release()

    def is_delivering(self) -> bool:
        """Whether an endpoint has still to take something."""
        return self._outlet is not None and self._outlet.is_delivering()

    def close(self, now_ns: int, timeout_s: float) -> bool:
        """Finish, and let go of everything; True if all of it was delivered within `timeout_s`."""
        self.finish(now_ns)
        return self._outlet is None or self._outlet.close(timeout_s)

    def untaken(self) -> list[str]:
        """What was not delivered by `close`, in sentences."""
        return [
            f"{place} has not taken {', '.join(signals)} ({reason}); they wait on disk: trainspan replay {self._folder}"
            for place, signals, reason in (self._outlet.untaken() if self._outlet is not None else ())
        ]

    def abandon(self) -> None:
        """Let go of everything as it is; what was taken over is told no further."""
        self._gpus.close()
        self._ledger.close()
        if self._summary_file is not None:
            self._summary_file.release()
        if self._outlet is not None:
            self._outlet.close(0.0)

    def _follow(self, reader: RecordingReader) -> RankFollower:
        if self._node_rank is None:
            self._name_node(reader.identity)
        if self._outlet is None:
            self._outlet = self._open_outlet()
        aggregates, own = self._node_metrics.aggregates_of(reader.identity)
        known = None if self._summary is None else self._summary.known(reader.path.stem, reader.identity)
        began = self._started_unix_ns
        follower = RankFollower(reader, self._environ, aggregates, own=own, known=known, taken_unix_ns=began)
        self._followers[reader.path] = follower
        self._assembly_of(reader.identity).followers.append(follower)
        if self._summary is not None:
            self._summary.ranks[follower.summary.recording] = follower.summary
        return follower

    def _name_node(self, identity: Identity) -> None:
        """The first rank has come: what was written until now of launchers alone goes on under the node's name."""
        launchers, path = self._summary, self._summary_path()
        self._node_rank = identity.node_rank
        self._summary_file = SummaryFile(self._folder, identity.node_rank)
        self._summary = read_summary(self._summary_path(), identity.run, self._log)
        self._summary.merge(self._summary_file.take_left_behind(identity.run))
        if launchers is not None:
            self._summary.merge(launchers)
            path.unlink(missing_ok=True)
        self._next_summary_ns = 0

    def _open_outlet(self) -> Outlet:
        values, _ = settings.load(self._environ)
        return Outlet(self._folder, self._node_rank, self._environ, values.spool_bytes, self._log)

    def _assembly_of(self, identity: Identity) -> Assembly:
        if identity.attempt not in self._assemblies:
            span_names = SpanNames.of(settings.load(self._environ)[0])
            self._assemblies[identity.attempt] = Assembly(identity, self._sampling, span_names)
        return self._assemblies[identity.attempt]

    def _bury(self, now_ns: int, wait_ns: int = WORD_OF_AGENT_NS) -> None:
        """Finish the processes that are gone, once who started them has said how they ended or had time to."""
        still_waiting = []
        for event in self._last_words.read() if self._dying else ():
            self._launchers.hear(event, os.uname().nodename)
        for dying in self._dying:
            if dying.awaits_word(self._launchers, now_ns, wait_ns):
                still_waiting.append(dying)
            else:
                self._bury_one(dying, now_ns)
        self._dying = still_waiting

    def _bury_one(self, dying: Dying, now_ns: int) -> None:
        try:
            self._finish(dying.follower, dying.end(self._launchers), now_ns)
        except (RecordingRefused, OSError):
            raise
        except Exception as error:  # noqa: BLE001 - as in `take`
            self._give_up(dying.follower.reader, error)
            dying.follower.reader.close()

    def _give_up(self, reader: RecordingReader, error: Exception) -> None:
        """Follow a recording no further, and keep its files where no relay will fail over them again."""
        follower = self._followers.pop(reader.path, None)
        self._given_up[reader.path] = follower
        self._launchers.forget(reader.path)
        if follower is not None:
            self._assembly_of(reader.identity).followers.remove(follower)
            self._gpus.end(follower.summary.recording)
            self._ledger.forget(follower)
        reader.set_aside()
        self._log(f"{reader.path} is given up and kept as *{DAMAGED_SUFFIX}; please report this: {raised_by(error)}")

    def _count_energy(self, follower: RankFollower, steps: Sequence[RankStep], now_ns: int) -> None:
        rank = follower.summary.recording
        if follower.uses is not None:
            here = is_here(follower.source.identity.host)
            gpu = self._gpus.use(rank, follower.uses, now_ns, same_host=here)
            if gpu is not None:
                follower.name_gpu(gpu)
        self._gpus.count(rank, steps)

    def _finish(self, follower: RankFollower, end: ProcessEnd, now_ns: int) -> None:
        follower.finish(end)
        self._gpus.count(follower.summary.recording, [follower.unfinished] if follower.unfinished else [])
        self._gpus.end(follower.summary.recording)
        self._ledger.end(follower, end)
        self._assembly_of(follower.source.identity).add_end(follower, now_ns, time.time_ns())
        self._retired.append(follower.reader)

    def _put(self, output: Output) -> None:
        self._node_metrics.health.spans_dropped += output.cut
        self._ledger.wait(output.waits)
        if self._outlet is None:
            return
        if output.spans:
            self._outlet.put_spans(output.spans)
        if output.records:
            self._outlet.put_logs(output.records)

    def _put_launches(self, now_ns: int, *, leaving: bool) -> None:
        for attempt, assembly in self._assemblies.items():
            assembly.launched_unix_ns = self._launchers.began_unix_ns(attempt)
        over = self._launchers.over(now_ns, leaving=leaving)
        if self._outlet is None and over:
            self._outlet = self._open_outlet()  # it is made with the first rank, and there was none
        if self._outlet is not None:
            spans, records = self._launchers.spans(self._assemblies), self._launchers.records(time.time_ns())
            self._put(Output(spans, records, 0, []))
            for left in map(self._launchers.spans_of, over):
                self._put(Output(left.spans, [], left.cut, []))
        self._retired += [launcher.reader for launcher in over]

    def _put_metrics(self, now_ns: int) -> None:
        history = self._ledger.history
        self._charge_energy(now_ns)
        readings = [r for f in self._followers.values() if (r := f.read_metrics(now_ns, history)) is not None]
        speaker = next(reversed(self._followers.values()), None) or self._launchers.newest
        if speaker is None or self._outlet is None:
            return
        # What is counted of a recording that was given up stays: a counter never falls.
        followers = [*self._followers.values(), *(one for one in self._given_up.values() if one is not None)]
        self._node_metrics.look_at(followers, len(self._given_up), self._outlet.health())
        # One relay speaks of the job.
        leads = any(follower.source.identity.rank == 0 for follower in self._followers.values())
        speaks = Speaker(speaker.source.identity, self._node_rank, self._rank_beside())
        time_ns = time.time_ns()
        node = self._node_metrics.node(speaks, time_ns)._replace(
            restarts=history.restarts(self._launchers.reasons()) if leads else {},
            gpus=self._gpus.readings,
            launch_s=self._launchers.time_s(),
            launch_metrics=self._launchers.metrics(),
        )
        shared = self._node_metrics.shared(speaks, time_ns, self._over_attempts(speaks.identity.attempt))
        ranks = self._node_metrics.ranks(readings, time_ns)
        self._outlet.put_metrics(metrics_of(ranks, node, time_ns, self._denied, shared))

    def _over_attempts(self, newest: int) -> list[int]:
        """Attempts before the newest of which no process goes on."""
        return [
            attempt
            for attempt, assembly in self._assemblies.items()
            if attempt != newest and all(follower.end is not None for follower in assembly.followers)
        ]

    def _rank_beside(self) -> int | None:
        """A rank by which a relay beside the node's can be told from it; None for the node's."""
        if self._summary_file is None or not self._summary_file.beside:
            return None
        return next(iter(self._followers.values())).source.identity.rank

    def _charge_energy(self, now_ns: int) -> None:
        self._gpus.look(now_ns)
        charges = self._gpus.charges(now_ns)
        for follower in self._followers.values():
            if follower.summary.recording in charges:
                follower.charge_energy(charges[follower.summary.recording])

    def _remove_retired(self) -> None:
        """Delete the recordings that have ended: what they held is in the journals and the summary by now.

        But for those with steps that wait for other ranks.
        """
        awaited = {path for assembly in self._assemblies.values() for path in assembly.awaited()}
        for reader in self._retired:
            if reader.path not in awaited:
                reader.remove()
                reader.close()
        self._retired = [reader for reader in self._retired if reader.path in awaited]

    def _write_summary(self) -> int | None:
        """How many bytes it has; None: the disk has not taken it."""
        if self._summary is None:
            return 0
        for follower in self._followers.values():
            follower.summary.states_ns = follower.account.states()
            follower.summary.work = follower.throughput.work()
            follower.note_standing()
        for launcher in self._launchers.summaries():
            self._summary.add_launcher(launcher)
        size_bytes = write_summary(self._summary_path(), self._summary, self._complain)
        if self._summary_file is not None and size_bytes is not None:
            self._summary_file.remove_left_behind()
        return size_bytes

    def _summary_path(self) -> Path:
        if self._summary_file is None:
            return self._folder / f"summary.launcher-{os.uname().nodename}.json"
        return self._summary_file.path
