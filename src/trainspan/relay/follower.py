"""Follows one rank's recording: its marks become steps, and these its account, its distributions and its summary."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from trainspan import names, settings
from trainspan.names import AnyPhase, Phase
from trainspan.recording.reader import RecordingReader
from trainspan.relay.device_times import DeviceTimes
from trainspan.relay.goodput.account import Account
from trainspan.relay.live_history import LiveHistory
from trainspan.relay.otlp.resource import rank_resource
from trainspan.relay.probes.matching import ToldDevice, told_device_of
from trainspan.relay.said import Said
from trainspan.relay.signals.aggregates import StepAggregates
from trainspan.relay.signals.contexts import RankSource
from trainspan.relay.signals.metrics import RankReading
from trainspan.relay.signals.spans import RankPart
from trainspan.relay.tail import Sighting
from trainspan.relay.tally import Tally
from trainspan.relay.timeline.checkpoints import Checkpoint, checkpoint_of
from trainspan.relay.timeline.collectives import Call, Collectives
from trainspan.relay.timeline.compilations import Compilations
from trainspan.relay.timeline.counters import ALLOCATOR, COMPILED, REDUCER, counts_of
from trainspan.relay.timeline.energy import Charge
from trainspan.relay.timeline.launches import cause_of
from trainspan.relay.timeline.progress import Position, Progress
from trainspan.relay.timeline.rank_summary import RankSummary, TellingOfMetrics
from trainspan.relay.timeline.records import Interval, ProcessEnd, RankStep, phase_times_of
from trainspan.relay.timeline.scalars import Scalars
from trainspan.relay.timeline.segments import Segment, Segments
from trainspan.relay.timeline.stalls import Stalls, Standing
from trainspan.relay.timeline.steps import RankTimeline
from trainspan.relay.timeline.throughput import FlopsKnown, Throughput
from trainspan.relay.timeline.told import Told, Value, attributes_of, texts_of, times_of, told_of
from trainspan.relay.timeline.validation import Validations
from trainspan.relay.timeline.waits import Stay, Wait
from trainspan.sampling import sampling_from
from trainspan.settings import load

_SETTLED_NS: Final = 5_000_000_000
_J_PER_KWH: Final = 3.6e6
_CHECKPOINT_STATES: Final = {"save": "checkpoint_save", "load": "checkpoint_load"}


class RankFollower:
    """What is known of one rank's process.

    Attributes:
        source: who it is.
        timeline: its steps as they come.
        account: its wall clock.
        summary: what the report will say of it.
        segments: its stretches of training.
        exception: the event of the uncaught exception that ended it; None if there was none.
        stopped_by: the signal by which who started it has told it that it will end it; None: nobody has.
        torch_import_ns: start and end of its import of torch; None if not known.
        end: how it ended; None while it lives.
        unfinished: the step it ended in; None while it lives, and if it ended in none.
        last_number: number of its last completed step; None before it.
        alive_ns: when it was last seen alive; None before that.
        device: what its device says of its steps.
        allocator: the counters of torch's allocator as last told; empty before that.
        out_of_memory: allocations that failed, as told, until somebody takes them.
        checkpoints: saves and loads that have ended, until somebody takes them.
        checkpoints_told: how many somebody has taken.
        said: what its script says.
        told: other stretches of time the rank has told of, until somebody takes them.
        told_taken: how many somebody has taken.
        facts: what it trains, as attributes; empty before it has said so.
        started_ns: when it said so, until somebody takes it; None before and after that.
        uses: the device it says it uses; None before it says so.
        energy_j: of its GPU while it trained, by phase.
        named_early: what the newest look gave of phases that the user has named, before the first step.
        throughput: samples, tokens and FLOPs of its steps.
        progress: what its framework calls them.
        scalars: what it logs.
        stalls: whether it gives signs; `stalled`: stalls that have begun, until somebody takes them.
        ended_before: how it has ended, if the relay before this one had found out.

    Args:
        reader: of its recording.
        environ: the settings.
        aggregates: that count its steps; `own`: whether they count its steps alone.
        known: what the relay before this one has left of it, which is continued; None: nothing.
        taken_unix_ns: when this relay began.
    """

    def __init__(
        self,
        reader: RecordingReader,
        environ: Mapping[str, str],
        aggregates: StepAggregates,
        *,
        own: bool,
        known: RankSummary | None = None,
        taken_unix_ns: int = 0,
    ):
        identity = reader.identity
        self.reader = reader
        self.source = RankSource(identity, reader.anchor, rank_resource(identity, environ))
        self.timeline = RankTimeline()
        self.summary = known or RankSummary(reader.path.stem, identity, self.source.unix_of(reader.process_start_ns))
        self.ended_before = self.summary.resume(reader.anchor)
        self.account = Account(reader.process_start_ns, self.summary.states_ns, self.summary.steps)
        self._counted_until_ns = self.account.charged_until_ns if known else 0
        self._tally = Tally(aggregates, self.summary.told, reader.anchor, taken_unix_ns)
        self.segments = Segments(reader.process_start_ns)
        self.exception: Mapping[str, Any] | None = None
        self.stopped_by: str | None = None
        self.torch_import_ns: tuple[int, int] | None = None
        self.end: ProcessEnd | None = None
        self.unfinished: RankStep | None = None
        self.last_number: int | None = None
        self.alive_ns: int | None = None
        self.device = DeviceTimes(identity, sampling_from(environ)[0])
        self.allocator: Mapping[str, int] = {}
        self.out_of_memory: list[Mapping[str, Any]] = []
        self.checkpoints: list[Checkpoint] = []
        self.checkpoints_told = 0
        self.told: list[Told] = []
        self.told_taken = 0
        self.facts: Mapping[str, Value] = {}
        self.started_ns: int | None = None
        self._collectives = Collectives()
        self._compiled: Mapping[str, int] = {}
        self._reducer: Mapping[str, int] = {}
        self._validations = Validations()
        self._compilations = Compilations()
        self.uses: ToldDevice | None = None
        self.energy_j: dict[AnyPhase, float] = {}
        self._carbon_g_per_kwh = load(environ)[0].carbon_g_per_kwh
        self.named_early: list[Interval] = []
        self.said = Said()
        self._place: dict[str, str] = {}
        self.throughput = Throughput(_flops_known(environ), self.summary.work, self.summary.steps)
        self.progress = Progress()
        self.scalars = Scalars(identity.world_size)
        self.stalls = Stalls(load(environ)[0].stall_s * 1_000_000_000)
        self.stalled: list[Standing] = []
        self._largest_save_bytes: int | None = None
        self._environ = environ
        self._own_aggregates = aggregates if own else None
        self._last_step_end_ns: int | None = None
        self._resumed = False
        self._reported: tuple[bool, int, float] | None = None

    def read(self, sighting: Sighting) -> list[RankStep]:
        """The steps that what was seen completes."""
        if sighting.marks:
            self._end_stall(sighting.marks[0])
        for event in sighting.events:
            self._take_event(event)
            for taker in (self.throughput, self.progress, self.scalars):
                taker.take(event)
        self.timeline.gap(sighting.lost)
        self.summary.note_marks(len(sighting.marks) // 2, sighting.lost)
        steps = self.timeline.feed(sighting.marks)
        self.named_early, self.timeline.early = self.timeline.early, []
        for phase, start_ns, end_ns, _failed in self.named_early:
            self.account.hold(start_ns, end_ns, phase.wire)
        return steps

    def count(self, steps: list[RankStep]) -> list[dict[AnyPhase, int]]:
        """Count what was read everywhere but in the summary; the `phase_times_of` each step."""
        if self.timeline.started:
            self.account.start(self.timeline.first_step_start_ns)
        else:
            self.account.settle(self.timeline.last_mark_ns)
        phase_times_ns = [phase_times_of(step) for step in steps]
        for step, times_ns in zip(steps, phase_times_ns, strict=True):
            compiling_ns = self._compilations.time_in(step)
            if step.end_ns > self._counted_until_ns:
                self.account.charge(step, times_ns, compiling_ns)
            self._tally.step(step, times_ns, self.stays_of(step))
            self._look_into(step)
        for timed in self.device.pair(steps):
            self._tally.timed_step(timed.step, timed.device.phase_times(timed.step))
        self.throughput.count([step for step in steps if step.end_ns > self._counted_until_ns])
        if steps:
            self.last_number = steps[-1].number
            self._last_step_end_ns = steps[-1].end_ns
        return phase_times_ns

    def stays_of(self, step: RankStep) -> list[Stay]:
        """Its times in the collectives of `step`."""
        if not step.calls:
            return []
        calls = self.calls_of(step)
        return [
            Stay(calls[start_ns], start_ns, end_ns)
            for phase, start_ns, end_ns, _failed in step.intervals
            if phase is Phase.COLLECTIVE and start_ns in calls
        ]

    def count_waits(self, waits: Sequence[Wait]) -> None:
        """Count what it waited for others."""
        self._tally.waits(waits)

    def calls_of(self, step: RankStep) -> dict[int, Call]:
        """The collectives of `step`, by the time at which they began."""
        return {start_ns: self._collectives.call(operand) for start_ns, operand in step.calls}

    def over_segments(self, steps: list[RankStep], now_ns: int, *, live: bool) -> list[Segment]:
        """The stretches of training that `steps` have ended, or while the process lives, the time alone."""
        over: list[Segment] = []
        for step in steps:
            over += self.segments.count(step.number, step.end_ns)
        # Marks arrive a look late: a stretch is over once nothing can come any more that ended in it.
        return over + (self.segments.advance(now_ns - _SETTLED_NS) if live else [])

    def note_alive(self, now_ns: int) -> None:
        """Take over that the process lives, and all it wrote has been taken; it may stand still."""
        self.alive_ns = now_ns
        standing = self.timeline.standing()
        if standing is not None and self.stalls.begin(standing, now_ns, lambda: self.summary.step_s.quantile(0.5)):
            self.stalled.append(standing)

    def note_standing(self) -> None:
        """Tell the summary where the rank stands, while it lives."""
        if self.alive_ns is not None and self.end is None:
            self.summary.note_standing(self.timeline.standing(), self.alive_ns)

    def finish(self, end: ProcessEnd) -> None:
        """Take over how the process ended; everything it wrote has been taken."""
        self.end = end
        self._end_stall(end.at_ns)
        unfinished = self.timeline.end(end.at_ns)
        self.account.close(end, unfinished)
        if unfinished is not None:
            self._tell_validation(unfinished)
        # A loop that came to its end has begun a step it never meant to take: that is no step the process ended in.
        self.unfinished = unfinished if end.failed else None
        self.summary.note_end(end, self.unfinished, self.source.anchor)

    def resume(self, history: LiveHistory) -> None:
        """Charge what its attempt begins with, once that is known; before any of its steps is counted."""
        if not self._resumed and self.timeline.started:
            resumption = history.resumption(self.source.identity.attempt)
            self.account.resume(resumption.gap_ns, resumption.steps_again)
            self._resumed = resumption.known

    def read_metrics(self, now_ns: int, history: LiveHistory) -> RankReading | None:
        """What its metrics are made of; None once its end has been told."""
        total_j = sum(self.energy_j.values())
        # The energy of its last moments becomes known after its end; its last steps may have to wait for other ranks.
        known = self.end is not None, self.summary.steps, total_j
        if self.end is not None and known == self._reported:
            return None
        self._reported = known
        until_ns = max(self._last_step_end_ns or 0, self.reader.process_start_ns)
        self.summary.told = TellingOfMetrics(self.source.unix_of(until_ns), self._tally.events)
        identity = self.source.identity
        said = history.of_rank(identity.rank, identity.attempt, self.source.unix_of(now_ns))
        return RankReading(
            self.source.resource,
            self.source.unix_of(self.reader.process_start_ns),
            self.summary.steps,
            self.last_number,
            self._last_step_end_ns,
            self.account,
            None if self.end else now_ns,
            self._own_aggregates,
            self.allocator,
            said.goodput,
            said.deviation_s,
            self._largest_save_bytes,
            self._tally.skipped,
            self._compiled,
            self._reducer,
            {phase.wire: joules for phase, joules in self.energy_j.items()},
            total_j / _J_PER_KWH * self._carbon_g_per_kwh if total_j and self._carbon_g_per_kwh is not None else None,
            self._tally.own,
            self.throughput.work(),
            Position() if self.last_number is None else self.progress.of(self.last_number),
            self.scalars.logged(),
            {stall.phase.wire: now_ns - stall.since_ns} if (stall := self.stalls.now) else {},
            self._tally.since_unix_ns,
        )

    def part(self, step: RankStep, end: ProcessEnd | None) -> RankPart:
        """Its part of a step, in which it may have ended, for the step's trace."""
        device, position = self.device.of(step.number), self.progress.of(step.number)
        return RankPart(self.source, step, end, device, self.calls_of(step), position)

    def charge_energy(self, charge: Charge) -> None:
        """Take over joules of its GPU that are its own."""
        for phase, joules in charge.joules.items():
            self.energy_j[phase] = self.energy_j.get(phase, 0.0) + joules
        self.summary.note_energy(sum(charge.joules.values()), charge.time_ns)

    def name_gpu(self, gpu: str) -> None:
        """Take over the id of the GPU it uses."""
        self.source = self.source._replace(gpu=gpu)

    def _end_stall(self, at_ns: int) -> None:
        stall = self.stalls.end()
        if stall is not None:
            attributes: dict[str, Value] = {names.PHASE: stall.phase.wire, names.STEP: stall.number}
            self.told.append(Told(names.SPAN_STALL, stall.since_ns, max(at_ns, stall.since_ns), True, attributes, None))

    def _take_event(self, event: Mapping[str, Any]) -> None:
        kind = event["event"]
        self._tally.event()
        self.uses = told_device_of(event) or self.uses
        if kind == "exception":
            self.exception = event
        elif kind == "allocator":
            self.allocator = counts_of(event, ALLOCATOR)
        elif kind == "out_of_memory":
            self.out_of_memory.append(event)
        elif kind == "facts":
            self.facts, self.started_ns = attributes_of(event), event["ts"]
        elif kind == "compiled":
            self._compiled = counts_of(event, COMPILED)
        elif kind == "ddp":
            self._reducer = counts_of(event, REDUCER)
        elif kind == "checkpoint":
            self._take_checkpoint(checkpoint_of(event))
        elif kind == "span":
            self._take_told(told_of(event))
        else:
            self._take_rare(event)

    def _take_rare(self, event: Mapping[str, Any]) -> None:
        kind = event["event"]
        if kind == "place":
            self._add_to_place(texts_of(event))
        elif kind == "import":
            self.torch_import_ns = times_of(event) or self.torch_import_ns
        elif kind == "phase_name":
            self._take_phase_name(event)
        elif kind == "stopped":
            self.stopped_by = cause_of(event)
        elif self.said.take(event):
            if kind == "configured":
                self.throughput.configure(self.said.configured)
                self._add_to_place(self.said.tags)
        else:
            self.device.take(event)
            for calls in self._collectives.take(event):
                self._tally.calls(calls)

    def _take_phase_name(self, event: Mapping[str, Any]) -> None:
        number, name = event.get("number"), event.get("name")
        if type(number) is int and isinstance(name, str):
            self.timeline.name(number, name)

    def _add_to_place(self, attributes: Mapping[str, str]) -> None:
        self._place.update(attributes)
        resource = rank_resource(self.source.identity, self._environ, self._place)
        self.source = self.source._replace(resource=resource)

    def _take_told(self, told: Told | None) -> None:
        if told is None:
            return
        self.told.append(told)
        self._validations.take(told)
        self._compilations.take(told)
        if told.state is not None and not self.timeline.started:
            self.account.hold(told.start_ns, told.end_ns, told.state)

    def _take_checkpoint(self, checkpoint: Checkpoint | None) -> None:
        if checkpoint is None:
            return
        self.checkpoints.append(checkpoint)
        self._tally.checkpoint(checkpoint)
        if checkpoint.size_bytes is not None:
            self._largest_save_bytes = max(self._largest_save_bytes or 0, checkpoint.size_bytes)
        if checkpoint.part != "background" and not self.timeline.started:
            state = _CHECKPOINT_STATES[checkpoint.kind]
            self.account.hold(checkpoint.start_ns, checkpoint.end_ns, state)

    def _look_into(self, step: RankStep) -> None:
        """Count what is not in every step."""
        if step.validations:
            self._tell_validation(step)
        if step.start_ns == self.timeline.first_step_start_ns:
            times_ns = step.start_ns, step.end_ns
            self.told.append(Told(names.SPAN_INIT_FIRST_STEP, *times_ns, True, {names.STEP: step.number}, None))

    def _tell_validation(self, step: RankStep) -> None:
        validation = self._validations.of(step)
        if validation is not None:
            self.told.append(validation)


def _flops_known(environ: Mapping[str, str]) -> FlopsKnown:
    values, _ = settings.load(environ)
    return FlopsKnown(values.flops_per_token, values.flops_per_sample, values.peak_flops)
