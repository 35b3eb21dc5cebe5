"""Marks of one rank → its steps, each cut into phases that never overlap and add up to it.

How the cut is made:

* A step runs from the end of the step before it to its own STEP mark. The first one starts at the first ENTER mark
  that is neither of a checkpoint nor of a phase the user has named: both can belong to the init. An ENTER of the phase
  the rank is in, which has to be one that holds others, begins it too: the user has said that the loop begins.
* From one mark to the next the rank is in exactly one phase: the one the earlier mark names. That is exclusive time:
  an optimizer that runs a closure is OPTIMIZER only outside the forward and backward in it.
* OTHER directly between the end of a DATA_WAIT and the start of a FORWARD is H2D: in a plain loop the batch goes to
  the device there. All other OTHER stays OTHER, also between a DATA_WAIT that failed and a FORWARD.
* A DATA_WAIT directly followed by VALIDATION, and the OTHER between them, is VALIDATION: it fetched a batch for it.
* VALIDATION of a model that no optimizer trains is FORWARD where no batch was fetched for it alone: none just before
  it, or one that a FORWARD (or BACKWARD) then gets as well. So is a teacher told from an average of the weights.
* A COLLECTIVE that waits for the one launched just before it, by the same call of the library, is one with it.
* An optimizer's step lies in any phase that the user has put around it.
* What a phase holds that the user has named is not its time. What was spent in it before the first step is in `early`.
* What a batch holds counts for the step of the next FORWARD (or BACKWARD, or the step's end); for none if VALIDATION
  comes before it. So batches that are fetched ahead count once, and where they belong.
* Other intervals that touch are never merged: an interval is one stay in a phase, and two stays are two calls. An
  interval of no length is dropped, except the last one of an unfinished step, which says where the process ended.

Whatever the words hold, the intervals of a step partition it. What makes no sense is counted in `invalid`: a code or
phase that is unknown changes nothing, a time that goes backwards counts as the time before it, and a phase entered
inside one that holds none ends that one.
"""

from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

from trainspan.names import CUSTOM_FIRST, CUSTOM_LAST, AnyPhase, NamedPhase, Phase, named_phase
from trainspan.recording.layout import (
    ABORT,
    CODE_MASK,
    ENTER,
    KIND_MASK,
    OPERAND_SHIFT,
    PHASE_MASK,
    RESUME,
    SAME_CALL,
    SAMPLES_MAX,
    SKIPPED,
    STEP,
    TOKENS_SHIFT,
    UNTRAINED,
    WAIT,
)
from trainspan.relay.timeline.records import Interval, RankStep
from trainspan.relay.timeline.stalls import Standing
from trainspan.relay.timeline.untrained import Untrained, name_fetch

_CUSTOM: Final = range(CUSTOM_FIRST, CUSTOM_LAST + 1)
_NUMBERS: Final = (*map(int, Phase), *_CUSTOM)
_PLACES: Final = (int(Phase.OTHER), *_CUSTOM)
"""Where a rank is between the phases: what may last from one step into the next."""
_HOLDERS: Final = (*_PLACES, int(Phase.OPTIMIZER))
_HELD: Final[Mapping[int, tuple[Phase, ...]]] = {Phase.VALIDATION: (Phase.CHECKPOINT_SAVE, Phase.CHECKPOINT_LOAD)}
"""What is held by a phase that does not hold every other one."""
_STEPPING: Final = (*_HOLDERS, Phase.GRAPH_REPLAY, Phase.AMP)
"""Where a step can end: a graph can hold a whole one, and a gradient scaler lets one out."""
_KINDS: Final = (ENTER, RESUME, ABORT, STEP)


def _legal_in(phase: int) -> frozenset[int]:
    """The codes that a writer in good order can write while it is in `phase`."""
    inner = [p for p in _NUMBERS if p not in (Phase.OTHER, phase)] if phase in _HOLDERS else _HELD.get(phase, ())
    inner = [*inner, Phase.OPTIMIZER] if phase != Phase.OPTIMIZER else inner
    places = _NUMBERS if phase == Phase.OPTIMIZER else _HOLDERS
    outer = [p for p in places if p != phase] if phase != Phase.OTHER else []
    outer += [holder for holder, held in _HELD.items() if phase in held]
    again = [ENTER | phase, ABORT | phase] if phase in _PLACES else []
    return frozenset(
        [ENTER | p for p in inner]
        + [kind | p for kind in (RESUME, ABORT) for p in outer]
        + ([STEP | p for p in places] if phase in _STEPPING else [])
        + again
    )


_LEGAL: Final = {phase: _legal_in(phase) for phase in _NUMBERS}
_OTHER: Final = Phase.OTHER
_FORWARD: Final = Phase.FORWARD
_DATA_WAIT: Final = Phase.DATA_WAIT
_VALIDATION: Final = Phase.VALIDATION
_H2D: Final = Phase.H2D
_COLLECTIVE: Final = Phase.COLLECTIVE
_ANY: Final = frozenset(kind | phase for kind in _KINDS for phase in _NUMBERS)
_UNTRAINED_CALL: Final = UNTRAINED << OPERAND_SHIFT | ENTER | Phase.VALIDATION

# What a mark asks for beside the change of phase.
_NOTHING: Final = 0
_COUNT: Final = 1
_RELABEL: Final = 2
_CLOSE: Final = 3
_CALL: Final = 4
_VALIDATE: Final = 5
_TASKS: Final = {
    ENTER | Phase.BACKWARD: _COUNT,
    ENTER | Phase.FORWARD: _RELABEL,
    ENTER | Phase.VALIDATION: _VALIDATE,
    ENTER | Phase.COLLECTIVE: _CALL,
    **{STEP | phase: _CLOSE for phase in _NUMBERS},
}
_Meaning: TypeAlias = tuple[AnyPhase, frozenset[int], int]


def _meaning_of(code: int, phase: AnyPhase) -> _Meaning:
    return phase, _LEGAL[code & PHASE_MASK], _TASKS.get(code, _NOTHING)


_UNNAMED: Final = named_phase(NamedPhase.REST)
_MEANING: Final = {
    code: _meaning_of(code, _UNNAMED if code & PHASE_MASK in _CUSTOM else Phase(code & PHASE_MASK)) for code in _ANY
}

_BEFORE_STEPS: Final = frozenset(
    ENTER | phase for phase in (Phase.CHECKPOINT_SAVE, Phase.CHECKPOINT_LOAD, Phase.COLLECTIVE, *_CUSTOM)
)
"""Marks that begin no step."""

_BETWEEN: Final = (Phase.OTHER, Phase.OPTIMIZER)

_SHARED: Final = frozenset(
    (Phase.DATA_WAIT, Phase.FORWARD, Phase.BACKWARD, Phase.GRAD_CLIP, Phase.OPTIMIZER, Phase.COLLECTIVE, Phase.AMP)
)
"""Phases that the ranks of a job enter alike. One alone may validate, save, or do what a user has named."""

_BEFORE_ALL_TIME: Final = -(1 << 63)


class RankTimeline:
    """The steps of one rank, as its marks come in.

    Attributes:
        invalid: marks that made no sense.
        laps: how often marks were lost.
        lost_ns: time of the steps that laps have torn out.
        last_mark_ns: time of the newest mark; None before the first.
        first_step_start_ns: when the first step began; None before that, and for ever if a lap has hidden it (see
            `started`).
        phase_now: what the rank is doing since `last_mark_ns`; None before the first mark and after a lap.
        early: what was spent before the first step in phases that the user has named, until somebody takes it.
    """

    def __init__(self) -> None:
        self.invalid = 0
        self.laps = 0
        self.lost_ns = 0
        self.last_mark_ns: int | None = None
        self.first_step_start_ns: int | None = None
        self.phase_now: AnyPhase | None = None
        self.early: list[Interval] = []
        self._meaning: Mapping[int, _Meaning] = _MEANING
        self._legal = _LEGAL[Phase.OTHER]  # in `phase_now`
        self._start_ns: int | None = None  # of the step being built; None while looking for where one starts
        self._since_ns = _BEFORE_ALL_TIME  # start of the interval being built: the time of the newest mark
        self._intervals: list[Interval] = []
        self._microbatches = 0
        self._validations = 0
        self._calls: list[tuple[int, int]] = []
        self._number = 0  # of the step being built
        self._fetched: list[int] = []  # what the batches hold that are waiting for what becomes of them
        self._held: list[int] = []  # what those of the step being built hold
        self._untrained = Untrained()
        self._torn_ns: int | None = None  # where the step that a lap has torn began

    @property
    def started(self) -> bool:
        """Whether the first step has begun, known or hidden by a lap."""
        return self.first_step_start_ns is not None or self.laps > 0

    def init_end_ns(self, end_ns: int) -> int | None:
        """When a process that ended at `end_ns` was through with its init; None if a lap has hidden it."""
        return self.first_step_start_ns if self.started else end_ns

    def name(self, number: int, name: str) -> None:
        """Take over what the user calls the phase that has `number` in the marks; others than these keep their name."""
        if number not in _CUSTOM:
            return
        phase = named_phase(name)
        codes = [kind | number for kind in _KINDS]
        self._meaning = {**self._meaning, **{code: _meaning_of(code, phase) for code in codes}}

    def feed(self, marks: Sequence[int]) -> list[RankStep]:
        """The steps that `marks` complete.

        Args:
            marks: [time_ns, word, time_ns, word, …] as the ring holds them, following what was fed before.

        Cost: 0.5 µs a mark, the relay's largest.
        """
        if len(marks) % 2:
            self.invalid += 1
        if self._start_ns is None:
            marks = marks[self._find_start(marks) :]
        if self._start_ns is None or self.phase_now is None:
            return []
        return self._cut(marks, self._start_ns, self.phase_now)

    def gap(self, lost: int) -> None:
        """Note that `lost` marks are missing before the next ones: start anew at the next STEP mark."""
        if lost <= 0:
            return
        self.laps += 1
        if self._start_ns is not None:
            self._torn_ns = self._start_ns
        self._start_ns = None
        self.phase_now = None
        self._intervals = []
        self._calls = []
        self._microbatches = self._validations = 0
        self._fetched = []
        self._held = []
        self._untrained.end()

    def end(self, at_ns: int) -> RankStep | None:
        """The step that is unfinished if the process ends at `at_ns`; None before the first and after a lap.

        Its last interval names the phase the process ended in, even if it has no length. Changes nothing.
        """
        if self._start_ns is None or self.phase_now is None:
            return None
        at_ns = max(at_ns, self._since_ns)
        last = Interval(self.phase_now, self._since_ns, at_ns)
        intervals = (*self._intervals, last)
        samples, tokens = _work_in(self._held)
        return RankStep(
            self._number,
            self._start_ns,
            at_ns,
            intervals,
            self._microbatches,
            complete=False,
            calls=tuple(self._calls),
            validations=self._validations,
            samples=samples,
            tokens=tokens,
        )

    def standing(self) -> Standing | None:
        """Where the rank is since its newest mark; None before the first step and after a lap."""
        if self._start_ns is None or self.phase_now is None:
            return None
        phases = (*(interval.phase for interval in self._intervals), self.phase_now)
        return Standing(self._number, self.phase_now, self._since_ns, sum(phase in _SHARED for phase in phases))

    def _find_start(self, marks: Sequence[int]) -> int:
        """Index behind the mark with which a step begins, which is begun; the number of words if there is none."""
        starts = (STEP,) if self.laps else (ENTER, STEP)
        for index in range(0, len(marks) - 1, 2):
            code = marks[index + 1] & CODE_MASK
            meaning = self._meaning.get(code)
            if meaning is None or marks[index] < self._since_ns:
                self.invalid += 1
            if meaning is None:
                continue
            before, since_ns = self.phase_now, self._since_ns
            self._since_ns = self.last_mark_ns = max(marks[index], self._since_ns)
            self.phase_now, self._legal = meaning[:2]
            if isinstance(before, NamedPhase) and not self.laps:
                self.early.append(Interval(before, since_ns, self._since_ns))
            if code & KIND_MASK in starts and (code not in _BEFORE_STEPS or before is self.phase_now):
                self._begin(marks[index + 1])
                return index + 2
        return len(marks)

    def _begin(self, word: int) -> None:
        """Begin a step at the newest mark, `word`."""
        self._start_ns = self._since_ns
        if word & KIND_MASK == STEP:
            self._number = max(word >> OPERAND_SHIFT & ~SKIPPED, -1) + 1
        self._microbatches = int(word & CODE_MASK == ENTER | Phase.BACKWARD)
        self._validations = int(word & CODE_MASK == ENTER | Phase.VALIDATION and word != _UNTRAINED_CALL)
        if word == _UNTRAINED_CALL:
            self.phase_now = _FORWARD
        if not self.laps:
            self.first_step_start_ns = self._start_ns
        if self._torn_ns is not None:
            self.lost_ns += self._start_ns - self._torn_ns

    def _cut(  # noqa: PLR0912, PLR0915 - one loop, see below
        self, marks: Sequence[int], start_ns: int, phase: AnyPhase
    ) -> list[RankStep]:
        """The steps that `marks` complete, while the one begun at `start_ns` is being built and the rank is in `phase`.

        One loop over local names, and intervals made past their constructor: it would double the cost.
        """
        steps: list[RankStep] = []
        new = tuple.__new__
        intervals, microbatches, number = self._intervals, self._microbatches, self._number
        calls, validations = self._calls, self._validations
        fetched, held, untrained = self._fetched, self._held, self._untrained
        since_ns, invalid, legal, meaning = self._since_ns, 0, self._legal, self._meaning
        pairs = iter(marks)
        for time_ns, word in zip(pairs, pairs, strict=False):
            code = word & CODE_MASK
            if code not in legal:
                invalid += 1
                if code not in _ANY:
                    continue
            if time_ns > since_ns:
                intervals.append(new(Interval, (phase, since_ns, time_ns, ABORT <= code < STEP)))
                since_ns = time_ns
            elif time_ns < since_ns:
                invalid += 1
            phase, legal, task = meaning[code]
            if task == _NOTHING:
                if word > CODE_MASK and RESUME <= code < ABORT:
                    validations += _resumed(intervals, fetched, word >> OPERAND_SHIFT)
                continue
            if task == _VALIDATE:
                if word == _UNTRAINED_CALL:
                    phase = untrained.called(intervals, since_ns, fetched)
                else:
                    name_fetch(intervals)
                    untrained.end()
                validations += phase is _VALIDATION
            elif untrained.calls_ns and task != _CALL:
                validations -= untrained.trained(intervals, held) if task != _CLOSE else 0
                untrained.end()
            if fetched and task != _CALL:
                held += fetched if phase is not _VALIDATION else ()
                fetched.clear()
            if task == _COUNT:
                microbatches += 1
            elif task == _RELABEL:
                _name_copy(intervals)
            elif task == _CALL:
                since_ns = _call(intervals, calls, since_ns, word >> OPERAND_SHIFT)
            elif task == _CLOSE:
                if word >= 0:
                    number = word >> OPERAND_SHIFT & ~SKIPPED
                else:
                    invalid += 1
                skipped = word >= 0 and word >> OPERAND_SHIFT & SKIPPED > 0
                samples, tokens = _work_in(held)
                steps.append(
                    RankStep(
                        number,
                        start_ns,
                        since_ns,
                        tuple(intervals),
                        microbatches,
                        calls=tuple(calls),
                        validations=validations,
                        skipped=skipped,
                        samples=samples,
                        tokens=tokens,
                    )
                )
                intervals, microbatches, number, start_ns = [], 0, number + 1, since_ns
                calls, validations = [], 0
                held.clear()
        self._intervals, self._microbatches, self._number, self._start_ns = intervals, microbatches, number, start_ns
        self._calls, self._validations = calls, validations
        self.phase_now, self._legal, self._since_ns, self.last_mark_ns = phase, legal, since_ns, since_ns
        self.invalid += invalid
        return steps


def _call(intervals: list[Interval], calls: list[tuple[int, int]], at_ns: int, operand: int) -> int:
    """When the collective that is entered at `at_ns` began: earlier, if it was launched by the same call."""
    if operand & SAME_CALL and calls and calls[-1][1] == operand & ~(WAIT | SAME_CALL):
        start_ns = calls[-1][0]
        gap = 1 if intervals and intervals[-1][0] in _BETWEEN else 0
        launch = intervals[-1 - gap] if len(intervals) > gap else None
        if launch and launch[:2] == (_COLLECTIVE, start_ns) and not launch[3]:
            del intervals[-1 - gap :]
            return start_ns
    calls.append((at_ns, operand))
    return at_ns


def _resumed(intervals: list[Interval], fetched: list[int], operand: int) -> int:
    """Forward passes that the end of a phase tells of, beside the one that its beginning has; or a batch is fetched."""
    if intervals and intervals[-1][0] is _VALIDATION:
        return (operand & SAMPLES_MAX) - 1
    fetched.append(operand)
    return 0


def _work_in(held: list[int]) -> tuple[int | None, int | None]:
    """(samples, tokens) of batches; None: none of them told."""
    if not held:
        return None, None
    samples = sum([operand & SAMPLES_MAX for operand in held])
    tokens = sum([operand >> TOKENS_SHIFT for operand in held])
    return samples or None, tokens or None


def _name_copy(intervals: list[Interval]) -> None:
    """Name what lies between the fetching of a batch and a forward, which begins now."""
    if len(intervals) > 1 and intervals[-1][0] is _OTHER and intervals[-2][0] is _DATA_WAIT and not intervals[-2][3]:
        _other, start_ns, end_ns, failed = intervals[-1]
        intervals[-1] = Interval(_H2D, start_ns, end_ns, failed)
