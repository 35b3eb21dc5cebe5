"""What a report says, as an object. Its JSON form (`trainspan report --json`) has exactly these fields.

Seconds end in `_s`, joules in `_j`, shares from 0 to 1 in `_ratio`, rates in 1/s in `_per_s`. `null` is what is not
known. Fields are added, never renamed; a change of meaning makes a new `version`:

    {"schema": "trainspan.report", "version": 1, "run": "...", "ranks": [{"rank": 0, "phases": [...]}, ...], ...}
"""

import dataclasses
from collections import defaultdict
from dataclasses import dataclass
from typing import Any, Final

SCHEMA: Final = "trainspan.report"
VERSION: Final = 1

STILL_S: Final = 10.0
STILL_STEPS: Final = 10
"""A rank stands still when it has given no sign for so long, and for so many of its usual steps."""


@dataclass(frozen=True, slots=True)
class Spread:
    """How a duration varies over steps."""

    p50_s: float
    p95_s: float
    max_s: float


@dataclass(frozen=True, slots=True)
class PhaseReport:
    """One phase of one rank. `spread` is over the `steps` that have the phase; `share_ratio` is of the time of all."""

    phase: str
    steps: int
    spread: Spread
    total_s: float
    share_ratio: float


@dataclass(frozen=True, slots=True)
class RankReport:
    """One process that was a rank. A restarted rank has one for each attempt.

    `ended`: running, closed, exception or died; where and why, as far as it is known, for the last two.
    `elapsed_s` is what `states_s` adds up to. `mfu_ratio` is of its newest steps.
    `energy_j` is that of its GPU while it trained; `energy_per_step_j` what a step of usual length took of it.
    `stands_s`: for how long a rank that runs had given no sign when it was last heard of, and where; null: it does not
    run, or has begun no step. `phases_entered`: how many phases that all ranks train in it has entered in that step.
    `alive_unix_s`: when one that failed last was known to be well, if its end was noticed later.
    """

    rank: int
    attempt: int
    host: str
    pid: int
    steps: int
    steps_per_s: float | None
    elapsed_s: float
    goodput_ratio: float | None
    step: Spread | None
    phases: tuple[PhaseReport, ...]
    states_s: dict[str, float]
    marks_lost: int
    ended: str
    ended_unix_s: float | None
    ended_phase: str | None
    ended_step: int | None
    ended_cause: str | None
    energy_j: float | None
    energy_per_step_j: float | None
    samples: int | None = None
    samples_per_s: float | None = None
    tokens: int | None = None
    tokens_per_s: float | None = None
    flops_per_s: float | None = None
    mfu_ratio: float | None = None
    stands_in_phase: str | None = None
    stands_in_step: int | None = None
    stands_s: float | None = None
    phases_entered: int | None = None
    alive_unix_s: float | None = None

    @property
    def failed(self) -> bool:
        """Whether it ended before its work was done."""
        return self.ended in {"died", "exception", "exited"}

    @property
    def stopped(self) -> bool:
        """Whether its launcher ended it: what brought that about lies elsewhere."""
        return self.ended == "stopped"

    @property
    def well_until_unix_s(self) -> float:
        """When it last was known to be well, or else when it ended."""
        return (self.ended_unix_s if self.alive_unix_s is None else self.alive_unix_s) or 0.0

    @property
    def stands_still(self) -> bool:
        """Whether it has given no sign for far longer than its steps take."""
        usual_s = self.step.p50_s if self.step else 0.0
        return self.stands_s is not None and self.stands_s > max(STILL_S, STILL_STEPS * usual_s)


@dataclass(frozen=True, slots=True)
class LauncherReport:
    """What starts the ranks of a host: torchrun, or whatever else has an agent of torchelastic.

    `attempt`: the newest that it worked for; `came_to_ranks`: whether a rank of its host has begun to train in it.
    `operation`: what it is doing, or did last, for `operation_s`; `outcome`: `open` (it goes on, or the launcher ended
    in it), `done` or `failed`. `workers_ended`: workers of that attempt that have failed, most of them by
    `worker_cause`. `ended`: running, closed, exception or died. `error`: class of the exception that left the
    operation, or the launcher.
    """

    host: str
    pid: int
    attempt: int
    came_to_ranks: bool
    ended: str
    operation: str | None
    operation_s: float
    outcome: str
    error: str | None
    workers_ended: int
    worker_cause: str | None

    @property
    def failed(self) -> bool:
        """Whether it has not done what it is there for."""
        return self.ended in {"died", "exception"} or self.outcome == "failed" or self.workers_ended > 0


@dataclass(frozen=True, slots=True)
class Unusual:
    """The ranks that lost most of a slow step to the same phase; `excess_s` is the most beyond its usual time."""

    phase: str
    excess_s: float
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SlowStep:
    """One of the slowest steps, over all ranks. `trace_id` is null when the step was not sampled."""

    attempt: int
    step: int
    duration_s: float
    usual_s: float | None
    unusual: tuple[Unusual, ...]
    trace_id: str | None


@dataclass(frozen=True, slots=True)
class Standstill:
    """Ranks that stand in the same phase of the same step; `longest_s`: for how long the first of them has.

    `phases_entered`: by the one of them that is most behind.
    """

    phase: str
    step: int
    phases_entered: int
    longest_s: float
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RunReport:
    """A run. `state`: running, finished or failed. `states_s` and `goodput_ratio` are over all ranks and attempts.

    `silent_s`: for how long nothing has been heard of a running run.
    `energy_j`: of the ranks for which it is known; `energy_per_step_j`: of all ranks of the last attempt, if it is.
    `samples_per_s`, `tokens_per_s` and `flops_per_s` are of all ranks of the last attempt that is known here together,
    `mfu_ratio` is the mean of theirs.
    `ranks_missing`: ranks of the last attempt of which there is no summary here.
    `launchers`: in the order in which they began. A run can have nothing else: then no rank has begun to train, and
    `attempts`, `hosts` and `elapsed_s` are theirs.
    """

    run: str
    folder: str
    state: str
    silent_s: float | None
    attempts: tuple[int, ...]
    world_size: int
    hosts: int
    elapsed_s: float
    steps: int
    steps_per_s: float | None
    goodput_ratio: float | None
    states_s: dict[str, float]
    energy_j: float | None
    energy_per_step_j: float | None
    ranks: tuple[RankReport, ...]
    ranks_missing: tuple[int, ...]
    slowest_steps: tuple[SlowStep, ...]
    samples_per_s: float | None = None
    tokens_per_s: float | None = None
    flops_per_s: float | None = None
    mfu_ratio: float | None = None
    launchers: tuple[LauncherReport, ...] = ()

    @property
    def last_attempt(self) -> tuple[RankReport, ...]:
        """The ranks of the last attempt."""
        return tuple(rank for rank in self.ranks if rank.attempt == self.attempts[-1])

    @property
    def standstills(self) -> tuple[Standstill, ...]:
        """The ranks that give no sign, the likely cause of the others first.

        That is who is behind, by the step and by the phases entered in it; of those, who stood first. When they came to
        stand says less: a rank that is slow, and then stops, does so after the others have begun to wait for it.
        """
        standing: dict[tuple[int, str], list[RankReport]] = defaultdict(list)
        for rank in self.last_attempt:
            if rank.stands_still and rank.stands_in_phase is not None and rank.stands_in_step is not None:
                standing[rank.stands_in_step, rank.stands_in_phase].append(rank)
        found = [
            Standstill(
                phase,
                step,
                min(rank.phases_entered or 0 for rank in ranks),
                max(rank.stands_s or 0.0 for rank in ranks),
                tuple(rank.rank for rank in ranks),
            )
            for (step, phase), ranks in standing.items()
        ]
        return tuple(sorted(found, key=lambda one: (one.step, one.phases_entered, -one.longest_s)))

    @property
    def failures(self) -> tuple[RankReport, ...]:
        """The ranks that ended before their work was done: by attempt, in each the likely cause of the others first.

        That is the one that was known to be well for the shortest time: a death is noticed later than the exceptions
        which come of it. A launcher ends the others with SIGTERM, within the same look of the relay, so those come
        last.
        """
        failed = (rank for rank in self.ranks if rank.failed)
        return tuple(sorted(failed, key=lambda r: (r.attempt, r.ended_cause == "SIGTERM", r.well_until_unix_s, r.rank)))


def to_json(report: RunReport) -> dict[str, Any]:
    """The report as a JSON object."""
    return {"schema": SCHEMA, "version": VERSION, **dataclasses.asdict(report)}
