"""A run's history: every fact told about it, and the clocks of its ranks and of the job read from them.

The history is a function of the set of facts: their order and how often each is told change nothing. What makes that
so, part by part: claims on a track and the ends of lives are maxima, steps are kept sorted and once, and all else is
derived when asked and forgotten when a fact lands behind it.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

from trainspan.relay.goodput.checkpoints import Checkpoints, checkpoints_of
from trainspan.relay.goodput.clock import Clock, Period, Resume, periods_of
from trainspan.relay.goodput.facts import Fact
from trainspan.relay.goodput.job import Job
from trainspan.relay.goodput.life import NEVER, Life
from trainspan.relay.goodput.states import Palette

JOB = -1
"""The job among the ranks."""

Answer = TypeVar("Answer")


class Disruption(NamedTuple):
    """One attempt that followed another.

    `failed_ns`: the last sign of life of the attempt before. `first_step_ns`: None while no step was begun.
    `resumed_step`: the first step, as a number of the run; None while unknown. `known_by` says from what.
    `lost_steps`: steps of earlier attempts that were done again because of this one.
    `planned`: every rank of the attempt before closed in good order, so it is no failure.
    """

    attempt: int
    failed_ns: int
    begun_ns: int
    first_step_ns: int | None
    resumed_step: int | None
    known_by: str
    lost_steps: int
    planned: bool
    world_size_before: int
    world_size: int


class RunHistory:
    """All facts of one run. `add` is O(1) for the newest fact of a rank; see `queries` for what can be asked.

    Attributes:
        palette: of all tracks.
        newest: number of the newest attempt; -1 before there is one.
    """

    def __init__(self) -> None:
        self.palette = Palette()
        self._life: dict[tuple[int, int], Life] = {}
        self._lives: dict[int, dict[int, Life]] = {}
        self._jobs: dict[int, Job] = {}
        self._ranks: set[int] = set()
        self.newest = -1
        self._shape = 0  # grows with every fact that may change anything but the newest lives
        self._resumes: tuple[int, list[Resume]] = (-1, [])
        self._clocks: dict[int, tuple[int, Clock]] = {}
        self._disruptions: tuple[tuple[int, bool], list[Disruption]] = ((-1, False), [])
        self._over: tuple[int, dict[str, Any]] = (-1, {})

    def add(self, fact: Fact) -> None:
        """Take one fact in.

        Raises:
            ValueError: an activity's state is not one that can be claimed.
        """
        life = self._life.get(fact[:2]) or self._begin(fact.attempt, fact.rank)
        shape = life.shape
        life.take(fact)
        if fact.attempt != self.newest or life.shape != shape:
            self._shape += 1

    def add_all(self, facts: Iterable[Fact]) -> None:
        """Take many facts in."""
        for fact in facts:
            self.add(fact)

    def _begin(self, attempt: int, rank: int) -> Life:
        """The life of a rank that has not been heard of in this attempt."""
        if attempt > self.newest:
            for older in self.lives_in(self.newest):
                older.leave()
            self.newest = attempt
        life = self._life[attempt, rank] = Life(attempt, rank, self.palette)
        self._lives.setdefault(attempt, {})[rank] = life
        self._ranks.add(rank)
        self._shape += 1
        return life

    @property
    def attempts(self) -> list[int]:
        """Numbers of the attempts, in order."""
        return sorted(self._lives)

    @property
    def ranks(self) -> list[int]:
        """All ranks that ever took part."""
        return sorted(self._ranks)

    @property
    def nodes(self) -> list[str]:
        """All nodes that ranks ran on."""
        return self.once("nodes", lambda: sorted({life.node for life in self._life.values()}))

    @property
    def last_sign_ns(self) -> int | None:
        """The last sign of life in the run, or None when nothing is known."""
        if not self._lives:
            return None
        over_ns = self.once("last sign", lambda: max(map(self._last_sign_in, self.attempts[:-1]), default=-NEVER))
        return max(over_ns, self._last_sign_in(self.newest))

    def _last_sign_in(self, attempt: int) -> int:
        return max(life.alive_ns for life in self._lives[attempt].values())

    def lives_in(self, attempt: int) -> list[Life]:
        """The lives of an attempt's ranks, by rank."""
        lives = self._lives.get(attempt, {})
        return [lives[rank] for rank in sorted(lives)]

    def clock(self, rank: int, now_ns: int | None = None) -> Clock:
        """The clock of a rank, or of the `JOB`. Valid until the next `add` or `clock`.

        Args:
            rank: a rank of the run, or `JOB`.
            now_ns: until when a life that has not ended runs; None: until its last sign of life.
        """
        lives: Sequence[Life | None]
        shape, clock = self._clocks.get(rank, (-1, None))
        if clock is not None and shape == self._shape:
            if rank == JOB:
                self._job_life(self.newest)
        else:
            if rank == JOB:
                lives = [self._job_life(attempt) for attempt in self.attempts]
            else:
                lives = [self._lives[attempt].get(rank) for attempt in self.attempts]
            clock = Clock(periods_of(lives, self.resumes()))
            self._clocks[rank] = self._shape, clock
        clock.advance(now_ns)
        return clock

    def _job_life(self, attempt: int) -> Life:
        ranks = self.lives_in(attempt)
        if len(ranks) == 1:
            return ranks[0]
        if attempt not in self._jobs:
            self._jobs[attempt] = Job(attempt, self.palette)
        self._jobs[attempt].refresh(ranks, is_newest=attempt == self.newest)
        return self._jobs[attempt].life

    def resumes(self) -> list[Resume]:
        """Where each attempt took the run up, in order of attempts."""
        if self._resumes[0] != self._shape:
            resumes: list[Resume] = []
            checkpoints = Checkpoints()
            for attempt in self.attempts:
                lives = self.lives_in(attempt)
                resume = _resume_of(lives, checkpoints, is_first=not resumes)
                lowest = min((life.steps.lowest for life in lives if len(life.steps)), default=None)
                resumes.append(resume._replace(lowest=None if lowest is None else lowest + resume.base))
                checkpoints.take(lives, resumes[-1])
            self._resumes = self._shape, resumes
        return self._resumes[1]

    def disruptions(self, now_ns: int | None = None) -> list[Disruption]:
        """Every attempt after the first, in order."""
        if not self._lives:
            return []
        periods = self.clock(JOB, now_ns).periods
        state = self._shape, len(periods[-1].life.steps) > 0
        if self._disruptions[0] != state:
            self._disruptions = state, self._all_disruptions(periods)
        return self._disruptions[1]

    def _all_disruptions(self, periods: list[Period]) -> list[Disruption]:
        disruptions, reached, resumes = [], 0, self.resumes()
        for place, (attempt, period, resume) in enumerate(zip(self.attempts, periods, resumes, strict=True)):
            steps = period.life.steps
            if place:
                before = self.lives_in(self.attempts[place - 1])
                disruptions.append(
                    Disruption(
                        attempt=attempt,
                        failed_ns=period.gap_ns,
                        begun_ns=period.frame.begin_ns,
                        first_step_ns=steps.starts[0] if len(steps) else None,
                        resumed_step=resume.step,
                        known_by=resume.known_by,
                        lost_steps=max(reached - resume.step, 0) if resume.step is not None else 0,
                        planned=all(life.ended_ns is not None and life.orderly for life in before),
                        world_size_before=periods[place - 1].life.world_size,
                        world_size=period.life.world_size,
                    )
                )
            if len(steps):
                reached = period.base + steps.numbers[-1] + steps.count_of(len(steps) - 1)
            elif resume.step is not None:
                reached = resume.step
        return disruptions

    def saves(self) -> list[tuple[int, int, int]]:
        """(attempt, first step that is not in it, when the last rank had written it) of every checkpoint, in order."""
        over = self.once("saves", lambda: self._saves_in(self.attempts[:-1]))
        return [*over, *self._saves_in([self.newest])]

    def _saves_in(self, attempts: Iterable[int]) -> list[tuple[int, int, int]]:
        return [save for attempt in attempts for save in checkpoints_of(self.lives_in(attempt))]

    def once(self, what: str, ask: Callable[[], Answer]) -> Answer:
        """`ask()`, about attempts that are over: asked once, until a fact lands in one of them or another begins.

        Args:
            what: is asked; one name for one question.
            ask: the question; of the newest attempt it may depend on how it began and where it took the run up, and on
                nothing that it does.
        """
        if self._over[0] != self._shape:
            self._over = self._shape, {}
        known = self._over[1]
        if what not in known:
            known[what] = ask()
        answer: Answer = known[what]
        return answer

    def thin(self, now_ns: int) -> None:
        """Bound the memory: keep less detail of what lies back, as `life.DETAIL_NS` and `life.PIECES` have it.

        Sums stay exact. Edges of windows and steps done again that lie back become approximate, by at most one piece.
        Facts that arrive later about such time are taken in, but the job's view of it is then made from what is left.
        """
        if self._jobs:
            self.clock(JOB)
        for lives in self._lives.values():
            for life in lives.values():
                life.thin(now_ns)
        for job in self._jobs.values():
            job.thin(now_ns)
        self._shape += 1


def _resume_of(lives: list[Life], checkpoints: Checkpoints, *, is_first: bool) -> Resume:
    """Where these lives, of one attempt, took the run up.

    Known, best first, from: the number of their first step, when steps carry numbers of the run; the step of the last
    checkpoint loaded before it, or that of the save with the same name; the last save before, once steps are made;
    nothing saved at all.

    Args:
        lives: of all ranks of the attempt.
        checkpoints: of the attempts before.
        is_first: no attempt came before.
    """
    stepped = [life.steps for life in lives if len(life.steps)]
    loaded = _loaded_step(lives, checkpoints)
    if any(life.counts_in_run for life in lives):
        if stepped:
            return Resume(0, min(steps.numbers[0] for steps in stepped), "step number")
        return Resume(0, loaded, "" if loaded is None else "load")
    if loaded is not None:
        return Resume(loaded, loaded, "load")
    if is_first or not stepped:
        return Resume(0, None, "")
    step = checkpoints.newest_step
    return Resume(0, 0, "nothing saved") if step is None else Resume(step, step, "last save")


def _loaded_step(lives: list[Life], checkpoints: Checkpoints) -> int | None:
    """The step of the last checkpoint that was loaded before the first step and whose step is known."""
    first_ns = min((life.steps.starts[0] for life in lives if len(life.steps)), default=None)
    loads = [load for life in lives for load in life.loads.values() if first_ns is None or load.at_ns <= first_ns]
    told = ((load.at_ns, checkpoints.step_of(load.name) if load.step is None else load.step) for load in loads)
    return max(((at_ns, step) for at_ns, step in told if step is not None), default=(0, None))[1]
