"""What is kept of one recorded process for `trainspan report`: its steps, phases, slowest steps, account and end."""

from collections.abc import Mapping
from heapq import heappush, heapreplace
from typing import Any, Final, Literal, NamedTuple, get_args

from trainspan.clock import Anchor
from trainspan.identity import Identity, trace_id_of
from trainspan.names import AnyPhase, NamedPhase, Phase, named_phase, place_of
from trainspan.relay.timeline.fields import field, optional, read_at
from trainspan.relay.timeline.records import EndReason, ProcessEnd, RankStep, phase_of_end
from trainspan.relay.timeline.sketch import Sketch
from trainspan.relay.timeline.stalls import Standing
from trainspan.relay.timeline.throughput import Work

SLOWEST: Final = 10
"""Steps remembered one by one, per process."""

_NS: Final = 1e-9
_PHASE_OF_WIRE: Final = {phase.wire: phase for phase in Phase}
_HOW: Final = ("running", *get_args(EndReason))
_COUNTS: Final = ("steps", "microbatches", "marks_lost")
_NUMBERS_OR_NONE: Final = ("last_step", "first_start_unix_ns", "last_end_unix_ns")


class SlowStep(NamedTuple):
    """One of the slowest steps. Ordered by duration.

    `phase_times_ns`: (phase on the wire, exclusive ns) of each phase it has.
    `sampled`: why the step has a trace; None if it has none.
    """

    duration_ns: int
    number: int
    start_unix_ns: int
    phase_times_ns: tuple[tuple[str, int], ...]
    sampled: str | None

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        return {**self._asdict(), "phase_times_ns": dict(self.phase_times_ns)}

    @classmethod
    def from_json(cls, written: Any) -> "SlowStep":
        """The step that was written; ValueError says what is wrong with it."""
        times = field(written, "phase_times_ns", dict)
        return cls(
            duration_ns=field(written, "duration_ns", int),
            number=field(written, "number", int),
            start_unix_ns=field(written, "start_unix_ns", int),
            phase_times_ns=tuple((phase_of_wire(wire).wire, field(times, wire, int)) for wire in times),
            sampled=optional(written, "sampled", str),
        )


class Ending(NamedTuple):
    """How a process stands, or ended.

    `phase` and `step` tell where it stands, or ended before its work was done. `still_ns`: for how long it had stood
    there when that was written; None once it has ended. `entered`: as in `Standing`. `alive_unix_ns`: when it last was
    known to be well, if its end was noticed later; as in `ProcessEnd`.
    """

    how: Literal["running"] | EndReason
    at_unix_ns: int | None = None
    phase: str | None = None
    step: int | None = None
    cause: str | None = None
    still_ns: int | None = None
    entered: int | None = None
    alive_unix_ns: int | None = None

    @classmethod
    def from_json(cls, written: Any) -> "Ending":
        """The ending that was written; ValueError says what is wrong with it."""
        how = field(written, "how", str)
        if how not in _HOW:
            raise ValueError(f"how is {how[:80]!r}, not one of {', '.join(_HOW)}")
        at_unix_ns, step = (optional(written, name, int) for name in ("at_unix_ns", "step"))
        phase, cause = (optional(written, name, str) for name in ("phase", "cause"))
        # Earlier versions wrote none of these.
        still_ns, entered, alive_unix_ns = (
            optional(written, name, int) if name in written else None
            for name in ("still_ns", "entered", "alive_unix_ns")
        )
        return cls(how, at_unix_ns, phase, step, cause, still_ns, entered, alive_unix_ns)

    def process_end(self, anchor: Anchor) -> ProcessEnd | None:
        """The end as it was told; None while the process runs."""
        if self.how == "running" or self.at_unix_ns is None:
            return None
        alive_ns = None if self.alive_unix_ns is None else anchor.monotonic_of(self.alive_unix_ns)
        return ProcessEnd(anchor.monotonic_of(self.at_unix_ns), self.how, self.cause, alive_ns)


class TellingOfMetrics(NamedTuple):
    """What the metrics have told of a process: steps that ended until then, and so many events of its log."""

    until_unix_ns: int
    events: int


class RankSummary:
    """One recorded process.

    Attributes:
        recording: name of its recording, without suffix: unique among all processes of all runs.
        identity: who it is.
        process_start_unix_ns: when it began.
        steps: completed steps; `microbatches`: backward passes in them.
        last_step: number of the last one; None before it.
        first_start_unix_ns: start of the first step counted here; `last_end_unix_ns`: end of the last one.
        step_s: sketch of their durations, in seconds.
        phase_s: by phase, sketch of its exclusive seconds per step, over the steps that have it.
        states_ns: the account of its wall clock; `elapsed_ns` is what it adds up to.
        work: what its steps worked through, as far as that is known.
        marks_lost: marks overwritten before anybody read them; steps are missing when there are any.
        marks_read: marks of the recording that have been read or lost, from its beginning.
        told: what the metrics have told of it by now; None: nothing.
        ending: how it stands, or ended.
        energy_j: of its GPU while it trained, for `energy_s` of that time; None: not known.
    """

    def __init__(self, recording: str, identity: Identity, process_start_unix_ns: int):
        self.recording = recording
        self.identity = identity
        self.process_start_unix_ns = process_start_unix_ns
        self.steps = 0
        self.microbatches = 0
        self.last_step: int | None = None
        self.first_start_unix_ns: int | None = None
        self.last_end_unix_ns: int | None = None
        self.step_s = Sketch()
        self.phase_s: dict[AnyPhase, Sketch] = {}
        self.states_ns: dict[str, int] = {}
        self.work = Work()
        self.marks_lost = 0
        self.marks_read = 0
        self.told: TellingOfMetrics | None = None
        self.ending = Ending("running")
        self.energy_j: float | None = None
        self.energy_s: float | None = None
        self._slowest: list[SlowStep] = []
        self._at_mark = 0  # of the reading that goes on now
        self._counted_until_unix_ns: int | None = None

    def resume(self, anchor: Anchor) -> ProcessEnd | None:
        """Go on from here, now that the recording, with this anchor, is read once more from where it begins by now.

        Which steps are counted is told by their time and not by their number, which may be the user's own.

        Returns:
            How the process has ended, if that had been found out.
        """
        ended, self.ending = self.ending.process_end(anchor), Ending("running")
        self._at_mark = 0
        self._counted_until_unix_ns = self.last_end_unix_ns
        return ended

    def note_marks(self, given: int, lost: int) -> None:
        """Take over that a look gave so many marks, and that the recording had `lost` others before them."""
        unread_from = max(self._at_mark, self.marks_read)
        self.marks_lost += max(self._at_mark + lost - unread_from, 0)
        self._at_mark += lost + given
        self.marks_read = max(self.marks_read, self._at_mark)

    def add(
        self, step: RankStep, phase_times_ns: Mapping[AnyPhase, int], anchor: Anchor, sampled: str | None = None
    ) -> None:
        """Count a completed step, unless it was counted before `resume`.

        Args:
            step: the step.
            phase_times_ns: its `phase_times_of`.
            anchor: of the recording.
            sampled: why the step has a trace; None if it has none.

        Cost: 5.5 µs for a plain step.
        """
        end_unix_ns = anchor.unix_of(step.end_ns)
        if self._counted_until_unix_ns is not None and end_unix_ns <= self._counted_until_unix_ns:
            return
        duration_ns = step.end_ns - step.start_ns
        self.steps += 1
        self.microbatches += step.microbatches
        self.last_step = step.number
        self.last_end_unix_ns = end_unix_ns
        if self.first_start_unix_ns is None:
            self.first_start_unix_ns = anchor.unix_of(step.start_ns)
        self.step_s.add(duration_ns * _NS)
        for phase, time_ns in phase_times_ns.items():
            if phase not in self.phase_s:
                self.phase_s[phase] = Sketch()
            self.phase_s[phase].add(time_ns * _NS)
        if len(self._slowest) < SLOWEST or duration_ns > self._slowest[0].duration_ns:
            start_unix_ns = anchor.unix_of(step.start_ns)
            times_ns = tuple((phase.wire, time_ns) for phase, time_ns in phase_times_ns.items())
            self._remember(SlowStep(duration_ns, step.number, start_unix_ns, times_ns, sampled))

    def note_sampled(self, number: int, reason: str) -> None:
        """Take over that step `number` got a trace after all."""
        self._slowest = [s._replace(sampled=reason) if s.number == number else s for s in self._slowest]

    def note_end(self, end: ProcessEnd, unfinished: RankStep | None, anchor: Anchor) -> None:
        """Take over how the process ended, and in which unfinished step."""
        ending = Ending(end.reason, anchor.unix_of(end.at_ns), cause=end.cause)
        if end.failed and end.alive_ns is not None:
            ending = ending._replace(alive_unix_ns=anchor.unix_of(end.alive_ns))
        if end.failed and unfinished is not None:
            ending = ending._replace(phase=phase_of_end(unfinished).wire, step=unfinished.number)
        self.ending = ending

    def note_standing(self, standing: Standing | None, now_ns: int) -> None:
        """Take over where a process that lives stands at `now_ns`; None: it is not known, or not any more."""
        if standing is None:
            self.ending = Ending("running")
            return
        still_ns = max(now_ns - standing.since_ns, 0)
        self.ending = Ending(
            "running",
            phase=standing.phase.wire,
            step=standing.number,
            still_ns=still_ns,
            entered=standing.entered,
        )

    def note_energy(self, joules: float, time_ns: int) -> None:
        """Take over energy of its GPU, drawn while it trained for `time_ns`."""
        self.energy_j = (self.energy_j or 0.0) + joules
        self.energy_s = (self.energy_s or 0.0) + time_ns * _NS

    @property
    def slowest(self) -> list[SlowStep]:
        """The slowest steps, the slowest first."""
        return sorted(self._slowest, reverse=True)

    @property
    def elapsed_ns(self) -> int:
        """What the states add up to."""
        return sum(self.states_ns.values()) - self.states_ns.get("restart", 0)

    def trace_id_of(self, number: int) -> str:
        """The id, in hexadecimal, of the trace that step `number` has if it was sampled."""
        return f"{trace_id_of(self.identity.run, self.identity.attempt, 'step', number):032x}"

    def to_json(self) -> dict[str, Any]:
        """A JSON object that `from_json` reads; `trace_id` follows from the rest, it is there for other programs."""
        slowest = [{**step.to_json(), "trace_id": self.trace_id_of(step.number)} for step in self.slowest]
        return {
            "recording": self.recording,
            "identity": self.identity._asdict(),
            "process_start_unix_ns": self.process_start_unix_ns,
            **{name: getattr(self, name) for name in (*_COUNTS, *_NUMBERS_OR_NONE)},
            "step_s": self.step_s.to_json(),
            "phase_s": {phase.wire: self.phase_s[phase].to_json() for phase in sorted(self.phase_s, key=place_of)},
            "states_ns": self.states_ns,
            "work": self.work._asdict(),
            "marks_read": self.marks_read,
            "told": None if self.told is None else self.told._asdict(),
            "slowest": slowest,
            "ending": self.ending._asdict(),
            "energy_j": self.energy_j,
            "energy_s": self.energy_s,
        }

    @classmethod
    def from_json(cls, written: Any) -> "RankSummary":
        """The summary that was written; ValueError says what is wrong with it."""
        identity = read_at("identity", _identity_from_json, field(written, "identity", dict))
        rank = cls(field(written, "recording", str), identity, field(written, "process_start_unix_ns", int))
        for name in _COUNTS:
            setattr(rank, name, field(written, name, int))
        for name in _NUMBERS_OR_NONE:
            setattr(rank, name, optional(written, name, int))
        rank.step_s = read_at("step_s", Sketch.from_json, field(written, "step_s", dict))
        rank.phase_s = read_at("phase_s", _phases_from_json, field(written, "phase_s", dict))
        states_ns = field(written, "states_ns", dict)
        rank.states_ns = {state: field(states_ns, state, int) for state in states_ns}
        if "work" in written:  # earlier versions wrote none
            rank.work = read_at("work", _work_from_json, written["work"])
        if "marks_read" in written:  # nor this
            rank.marks_read = field(written, "marks_read", int)
            rank.told = read_at("told", _telling_from_json, written.get("told"))
        for index, step in enumerate(field(written, "slowest", list)):
            rank._remember(read_at(f"slowest[{index}]", SlowStep.from_json, step))
        for name in ("energy_j", "energy_s"):
            if name in written:  # summaries from before it was measured have none
                setattr(rank, name, optional(written, name, float))
        rank.ending = read_at("ending", Ending.from_json, field(written, "ending", dict))
        return rank

    def _remember(self, step: SlowStep) -> None:
        """Keep `step` if it is one of the slowest."""
        if len(self._slowest) < SLOWEST:
            heappush(self._slowest, step)
        elif step.duration_ns > self._slowest[0].duration_ns:
            heapreplace(self._slowest, step)


def _identity_from_json(written: Any) -> Identity:
    return Identity(**{name: field(written, name, kind) for name, kind in Identity.__annotations__.items()})


def phase_of_wire(wire: str) -> AnyPhase:
    """The phase of that name on the wire; ValueError says that there is none."""
    phase = _PHASE_OF_WIRE.get(wire)
    if phase is not None:
        return phase
    if not wire.startswith(NamedPhase.PREFIX):
        raise ValueError(f"no such phase: {wire[:80]}")
    return named_phase(wire.removeprefix(NamedPhase.PREFIX))


def _work_from_json(written: Any) -> Work:
    samples, tokens = (optional(written, name, int) for name in ("samples", "tokens"))
    flops, mfu = (optional(written, name, float) for name in ("flops", "mfu"))
    return Work(samples, tokens, flops, mfu)


def _telling_from_json(written: Any) -> TellingOfMetrics | None:
    if written is None:
        return None
    return TellingOfMetrics(*(field(written, name, int) for name in TellingOfMetrics._fields))


def _phases_from_json(written: Mapping[str, Any]) -> dict[AnyPhase, Sketch]:
    return {phase_of_wire(wire): read_at(wire, Sketch.from_json, sketch) for wire, sketch in written.items()}
