"""What the relay sees of the local ranks, as facts in the run's ledger: what `trainspan goodput` answers from.

    a process is seen          Begun, and `init` from its start until its first step
    a step is completed        Step; its checkpoint phases as activities of their own
    a save succeeded           Saved: it holds every step below the one that was next when the call began
    a checkpoint was loaded    Loaded: its name tells which save it is
    a stretch of init is told  an activity, if it has a state; so is a phase that the user has named, and a compilation,
                               wherever it lies
    a rank waited for another  an activity, if it was long
    nothing, for a while       Alive
    a process has ended        the unfinished step, and Ended

A relay that starts anew reads the recordings again and tells the same facts again, which changes nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from trainspan.errors import RecordingRefused
from trainspan.names import Phase
from trainspan.recording import places
from trainspan.relay.follower import RankFollower
from trainspan.relay.goodput.facts import Activity, Alive, Begun, Ended, Fact, Loaded, Saved, step_of
from trainspan.relay.goodput.ledger import LedgerWriter
from trainspan.relay.live_history import LiveHistory
from trainspan.relay.recall import files_to_read
from trainspan.relay.timeline.records import ProcessEnd, RankStep
from trainspan.relay.timeline.told import told_of
from trainspan.relay.timeline.waits import Wait

LEDGER: Final = "ledger"
"""Folder of the ledger in the run folder."""

SILENCE_NS: Final = 10_000_000_000
"""A rank that lives and tells nothing for so long is said to be alive."""

SYNC_INTERVAL_NS: Final = 5_000_000_000
"""What a power cut may take; what a SIGKILL takes is nothing."""

REFUSED_NS: Final = 10_000_000_000
"""How long a disk that has refused is left alone: to write all that waits takes half a second of a processor."""

MOST_WAITING: Final = 100_000
"""Facts kept while the disk does not take them: about 30 MB."""

_STATES: Final = {Phase.CHECKPOINT_SAVE: "checkpoint_save", Phase.CHECKPOINT_LOAD: "checkpoint_load"}
_STATE_OF_KIND: Final = {"save": "checkpoint_save", "load": "checkpoint_load"}
_NAME_CHARACTERS: Final = 64


class RankFacts:
    """Tells of one process."""

    def __init__(self, follower: RankFollower, now_ns: int):
        self._follower = follower
        self._key = follower.source.identity.attempt, follower.source.identity.rank
        self._unix_of = follower.source.anchor.unix_of
        self._begun_ns = follower.reader.process_start_ns
        self._told_init = False
        self._looks = 0
        self._told_ns = now_ns

    def begun(self) -> list[Fact]:
        """The process has been seen; what it does until its first step is `init`, as far as is known."""
        identity, at_ns = self._follower.source.identity, self._unix_of(self._begun_ns)
        return [
            Begun(*self._key, at_ns, identity.host, identity.world_size),
            Activity(*self._key, "init", at_ns, None),
        ]

    def seen(
        self, steps: Sequence[RankStep], events: Sequence[Mapping[str, Any]], now_ns: int, *, more: bool = False
    ) -> list[Fact]:
        """What one look at the recording gave, or with `more` the first part of it."""
        facts = [fact for event in events if event.get("event") == "checkpoint" for fact in self._checkpoint(event)]
        facts += [fact for event in events if event.get("event") == "span" for fact in self._told(event)]
        facts += [self._activity(early.phase.wire, *early[1:3]) for early in self._follower.named_early]
        start_ns = self._follower.timeline.first_step_start_ns
        if start_ns is not None:
            facts += self._init_until(start_ns)
        for step in steps:
            facts += self._step(step)
        self._looks += not more
        if facts:
            self._told_ns = now_ns
        elif now_ns - self._told_ns >= SILENCE_NS:
            self._told_ns = now_ns
            facts.append(Alive(*self._key, self._unix_of(now_ns)))
        return facts

    def ended(self, end: ProcessEnd) -> list[Fact]:
        """The process is gone; everything it wrote has been told."""
        at_ns = self._end_ns(end)
        follower = self._follower
        unfinished = follower.timeline.end(at_ns)
        facts = self._step(unfinished) if unfinished is not None else []
        if not follower.timeline.started:
            facts += self._init_until(at_ns)
        return [*facts, Ended(*self._key, self._unix_of(at_ns), not end.failed)]

    def _end_ns(self, end: ProcessEnd) -> int:
        """When the process ended; who was dead when first looked at, may have been so for days."""
        timeline = self._follower.timeline
        if end.reason not in ("died", "stopped") or self._looks > 1:
            return end.at_ns
        return max(timeline.last_mark_ns or 0, self._begun_ns)

    def _init_until(self, until_ns: int) -> list[Fact]:
        if self._told_init:
            return []
        self._told_init = True
        return [Activity(*self._key, "init", self._unix_of(self._begun_ns), self._unix_of(until_ns))]

    def _step(self, step: RankStep) -> list[Fact]:
        facts: list[Fact] = [step_of(step, *self._key, self._follower.source.anchor)]
        for phase, start_ns, end_ns, _failed in step.intervals:
            if phase in _STATES and start_ns < end_ns:
                facts.append(Activity(*self._key, _STATES[phase], self._unix_of(start_ns), self._unix_of(end_ns)))
        return facts

    def _told(self, event: Mapping[str, Any]) -> list[Fact]:
        told = told_of(event)
        if told is None or told.state is None:
            return []
        # What the compiler takes is told wherever it lies; everything else within steps the marks tell.
        if told.state != "compile" and not self._is_before_steps(told.end_ns):
            return []
        return [self._activity(told.state, told.start_ns, told.end_ns)]

    def _checkpoint(self, event: Mapping[str, Any]) -> list[Fact]:
        """The facts in an event, which is read with distrust."""
        kind, name, step = event.get("kind"), event.get("file"), event.get("step")
        start_ns, end_ns = event.get("start_ns"), event.get("end_ns")
        if not (isinstance(kind, str) and kind in _STATE_OF_KIND and isinstance(name, str)):
            return []
        if not (isinstance(step, int) and isinstance(start_ns, int) and isinstance(end_ns, int)):
            return []
        if not 0 <= step < 1 << 62 or not 0 <= start_ns <= end_ns < 1 << 62:
            return []
        facts: list[Fact] = []
        # Within steps the marks tell; before the first there may have been nobody to mark.
        if event.get("blocking") is True and self._is_before_steps(end_ns):
            facts.append(self._activity(_STATE_OF_KIND[kind], start_ns, end_ns))
        if event.get("ok") is True and event.get("staging") is not True:
            at_ns = self._unix_of(end_ns)
            if kind == "load":
                facts.append(Loaded(*self._key, at_ns, _count_of(event.get("run_step")), name[:_NAME_CHARACTERS]))
            else:
                facts.append(Saved(*self._key, at_ns, step, name[:_NAME_CHARACTERS], _count_of(event.get("bytes"))))
        return facts

    def _is_before_steps(self, end_ns: int) -> bool:
        first_ns = self._follower.timeline.first_step_start_ns
        return first_ns is None or end_ns <= first_ns

    def _activity(self, state: str, start_ns: int, end_ns: int) -> Activity:
        times = self._unix_of(max(start_ns, self._begun_ns)), self._unix_of(max(end_ns, self._begun_ns))
        return Activity(*self._key, state, *times)


def _count_of(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value < 1 << 62 else None


class RunLedger:
    """The facts of this node's ranks on their way into the ledger.

    Args:
        folder: the run folder.
        node: this host.
        began_unix_ns: when this relay began; part of the file's name.
        log: told once what keeps the ledger from being written.

    Attributes:
        history: the same facts, to be asked at once.
        dropped: facts that never reached the disk.
    """

    def __init__(self, folder: Path, node: str, began_unix_ns: int, log: Callable[[str], None]):
        self._folder = folder / LEDGER
        self._node = node
        self._began_unix_ns = began_unix_ns
        self._log = log
        self._writer: LedgerWriter | None = None
        self._ranks: dict[Path, RankFacts] = {}
        self._waiting: list[Fact] = []
        self._synced_ns = 0
        self._unsynced = False
        self._failed = False
        self._retry_ns = 0
        summary = folder / "summary.json"  # of the node that has rank 0
        self.history = LiveHistory(lambda: files_to_read(self._folder, node, summary, log))
        self.dropped = 0

    def take(
        self,
        follower: RankFollower,
        steps: Sequence[RankStep],
        events: Sequence[Any],
        now_ns: int,
        *,
        more: bool = False,
    ) -> None:
        """Take over what one look at a recording gave, or with `more` the first part of it."""
        facts = self._ranks.get(follower.reader.path)
        if facts is None:
            facts = self._ranks[follower.reader.path] = RankFacts(follower, now_ns)
            self._tell(facts.begun())
        self._tell(facts.seen(steps, events, now_ns, more=more))

    def wait(self, waits: Sequence[tuple[RankFollower, Wait]]) -> None:
        """Take over who waited for a slower rank."""
        facts: list[Fact] = []
        for follower, wait in waits:
            identity, unix_of = follower.source.identity, follower.source.unix_of
            times_ns = unix_of(wait.start_ns), unix_of(wait.end_ns)
            facts.append(Activity(identity.attempt, identity.rank, "straggler_wait", *times_ns))
        self._tell(facts)

    def end(self, follower: RankFollower, end: ProcessEnd) -> None:
        """Take over the end of a process."""
        facts = self._ranks.pop(follower.reader.path, None)
        if facts is not None:
            self._tell(facts.ended(end))

    def forget(self, follower: RankFollower) -> None:
        """Expect nothing more of a process; nothing is said of its end."""
        self._ranks.pop(follower.reader.path, None)

    def write(self, now_ns: int) -> None:
        """Put what was taken over into the file; what the disk refuses is tried again later."""
        if now_ns < self._retry_ns:
            return
        try:
            if self._waiting:
                self._open().append(self._waiting)
                self._waiting.clear()
                self._unsynced = True
            if self._unsynced and self._writer and now_ns - self._synced_ns >= SYNC_INTERVAL_NS:
                self._synced_ns, self._unsynced = now_ns, False
                self._writer.sync()
        except (OSError, RecordingRefused) as error:
            self._retry_ns = now_ns + REFUSED_NS
            self._refused(error)

    def close(self) -> None:
        """Write what is left and finish the file."""
        self._retry_ns = 0
        self.write(self._synced_ns + SYNC_INTERVAL_NS)
        if self._writer is not None:
            writer, self._writer = self._writer, None
            try:
                writer.close()
            except OSError as error:
                self._refused(error)

    def _tell(self, facts: list[Fact]) -> None:
        self.history.add(facts)
        self._waiting += facts

    def _open(self) -> LedgerWriter:
        if self._writer is None:
            self._writer = LedgerWriter(places.make_private(self._folder), self._node, self._began_unix_ns)
        return self._writer

    def _refused(self, error: Exception) -> None:
        beyond = max(len(self._waiting) - MOST_WAITING, 0)
        del self._waiting[:beyond]
        self.dropped += beyond
        if not self._failed:
            self._failed = True
            self._log(f"{self._folder} cannot be written ({error}); `trainspan goodput` will not see the newest steps")
