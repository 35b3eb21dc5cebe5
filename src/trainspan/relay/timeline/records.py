"""What travels from the timeline to everybody behind it. All times are monotonic ns of the rank's host."""

from typing import Literal, NamedTuple

from trainspan.names import AnyPhase, Phase


class Interval(NamedTuple):
    """A stretch of one step in which the rank was in one phase. `failed`: it was left by an exception."""

    phase: AnyPhase
    start_ns: int
    end_ns: int
    failed: bool = False


class RankStep(NamedTuple):
    """One step of one rank. `intervals` are in order, without gap or overlap, from `start_ns` to `end_ns`.

    `number`: the step's number in the attempt, from 0.
    `microbatches`: backward passes in it.
    `complete`: False for the step in which the process ended; its last interval then ends when the end was noticed.
    `calls`: where a COLLECTIVE begins, and the operand of its mark, for each one.
    `validations`: forward passes of validation in it.
    `skipped`: the optimizer was asked to step, and a gradient scaler let it not.
    `samples`, `tokens`: in the batches it was made from; None: no batch told.
    """

    number: int
    start_ns: int
    end_ns: int
    intervals: tuple[Interval, ...]
    microbatches: int
    complete: bool = True
    calls: tuple[tuple[int, int], ...] = ()
    validations: int = 0
    skipped: bool = False
    samples: int | None = None
    tokens: int | None = None


def phase_times_of(step: RankStep) -> dict[AnyPhase, int]:
    """Exclusive ns of each phase that `step` has. They add up to its duration.

    Computed once a step and handed to whoever counts it.

    Cost: 1 µs for a plain step.
    """
    times_ns: dict[AnyPhase, int] = {}
    for phase, start_ns, end_ns, _failed in step.intervals:
        times_ns[phase] = times_ns.get(phase, 0) + end_ns - start_ns
    return times_ns


EndReason = Literal["closed", "exception", "exited", "died", "stopped"]


class ProcessEnd(NamedTuple):
    """How a recorded process ended.

    `at_ns`: when it closed its recording, or when it was noticed that it is gone.
    `reason`: `closed` in good order; `exception` closed after an uncaught exception; `exited` closed, with an exit code
    other than 0; `died` without a word; `stopped` likewise, by its launcher, which gave up its attempt.
    `cause`: the exception's type, or what the launcher has told: `SIGKILL`, `exit code 3`.
    `alive_ns`: when it last was known to be well: a death is noticed a look late, an exception ends the process only
    after its way out. None: until `at_ns`.
    """

    at_ns: int
    reason: EndReason
    cause: str | None = None
    alive_ns: int | None = None

    @property
    def failed(self) -> bool:
        """Whether it ended before its work was done."""
        return self.reason != "closed"

    @property
    def rank_as_cause(self) -> tuple[bool, int]:
        """Of several ends, the least is likely what brought about the others: SIGTERM is how launchers end the rest."""
        return (
            self.reason == "stopped" or self.cause == "SIGTERM",
            self.at_ns if self.alive_ns is None else self.alive_ns,
        )

    def sentence(self, step: RankStep | None) -> str:
        """The end in words: `process ended by SIGKILL in backward of step 41`; without a step, it was in init."""
        by = f" by {self.cause}" if self.cause else ""
        by += " of its launcher" if self.reason == "stopped" else ""
        where = f"{phase_of_end(step).wire} of step {step.number}" if step else "init"
        return f"process ended{by} in {where}"


def place_of_end(step: RankStep) -> int:
    """Which interval of `step`, an unfinished one, the process ended in.

    That is the last one. But after an exception the rank is in none of its phases, runs its way out of the program, and
    may be killed before it is out: if the last interval is OTHER and directly follows one that an exception left, the
    innermost of those counts.
    """
    place = len(step.intervals) - 1
    if step.intervals[place].phase is Phase.OTHER:
        while place > 0 and step.intervals[place - 1].failed:
            place -= 1
    return place


def phase_of_end(step: RankStep) -> AnyPhase:
    """The phase of `step`, an unfinished one, that the process ended in."""
    return step.intervals[place_of_end(step)].phase
