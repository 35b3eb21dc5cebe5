"""Marks, steps and identities for tests, without a training process.

tape = MarkTape()
tape.spend(Phase.DATA_WAIT, 5)      # the rank is 5 ns in DATA_WAIT, then back where it was
tape.spend(Phase.OTHER, 2)
tape.step(0, optimizer_ns=3)        # the lead optimizer's step takes 3 ns and completes step 0
RankTimeline().feed(tape.words)
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from trainspan.identity import Identity
from trainspan.names import Phase
from trainspan.recording.layout import ABORT, ENTER, OPERAND_SHIFT, RESUME, STEP
from trainspan.relay.timeline.records import Interval, RankStep
from trainspan.role import Role

PLAIN_STEP: Final = (
    (Phase.DATA_WAIT, 2_000_000),
    (Phase.OTHER, 1_000_000),
    (Phase.FORWARD, 20_000_000),
    (Phase.OTHER, 500_000),
    (Phase.BACKWARD, 40_000_000),
    (Phase.GRAD_CLIP, 1_500_000),
)
"""Phases, in ns, of a step of a plain loop, without its optimizer."""


class MarkTape:
    """Marks as a rank in good order writes them.

    Attributes:
        now_ns: monotonic time of the next mark.
        words: [time_ns, word, time_ns, word, …] so far.
    """

    def __init__(self, now_ns: int = 1_000_000_000):
        self.now_ns = now_ns
        self.words: list[int] = []
        self._phase = Phase.OTHER

    def spend(self, phase: Phase, ns: int, *, failed: bool = False) -> None:
        """Spend `ns` in `phase`, then be back where the rank was; OTHER is the rank's own code where it is.

        Args:
            phase: to enter.
            ns: to spend.
            failed: whether an exception leaves the phase.
        """
        if phase is Phase.OTHER:
            self.now_ns += ns
            return
        with self.inside(phase, failed=failed):
            self.now_ns += ns

    @contextmanager
    def inside(self, phase: Phase, *, failed: bool = False, back_to: int | None = None) -> Iterator[None]:
        """What is spent in the block is spent inside `phase`: the closure of an optimizer.

        Args:
            phase: to enter.
            failed: whether an exception leaves the phase.
            back_to: the number of the phase it returns to; None: the one it was entered in.
        """
        outer = self._phase if back_to is None else back_to
        self.mark(ENTER, phase)
        yield
        self.mark(ABORT if failed else RESUME, outer)

    def step(self, number: int, optimizer_ns: int = 5_000_000) -> None:
        """Let the lead optimizer's step take `optimizer_ns` and complete step `number`."""
        self.mark(ENTER, Phase.OPTIMIZER)
        self.now_ns += optimizer_ns
        self.mark(STEP, Phase.OTHER, number)

    def mark(self, kind: int, phase: int, operand: int = 0) -> None:
        """Write one mark, whatever it means."""
        self.words += [self.now_ns, operand << OPERAND_SHIFT | kind | phase]
        if phase < len(Phase):
            self._phase = Phase(phase)


def marks_of(
    steps: int,
    *,
    first: int = 0,
    start_ns: int = 1_000_000_000,
    phases: Iterable[tuple[Phase, int]] = PLAIN_STEP,
    optimizer_ns: int = 5_000_000,
) -> list[int]:
    """The marks of `steps` equal steps.

    Args:
        steps: how many.
        first: number of the first one.
        start_ns: monotonic time of the first mark.
        phases: what happens in each step before its optimizer, with ns.
        optimizer_ns: what the optimizer takes.
    """
    tape = MarkTape(start_ns)
    parts = tuple(phases)
    for number in range(first, first + steps):
        for phase, ns in parts:
            tape.spend(phase, ns)
        tape.step(number, optimizer_ns)
    return tape.words


def rank_step(
    number: int = 0,
    phases: Iterable[tuple[Phase, int]] = (*PLAIN_STEP, (Phase.OPTIMIZER, 5_000_000)),
    *,
    start_ns: int = 1_000_000_000,
    failed: Iterable[int] = (),
    complete: bool = True,
) -> RankStep:
    """A step with these phases, one after the other.

    Args:
        number: of the step.
        phases: its intervals: phase and ns.
        start_ns: monotonic time at which it starts.
        failed: places of the intervals that an exception left.
        complete: False for the step in which the process ended.
    """
    left_by_exception = frozenset(failed)
    intervals = []
    at_ns = start_ns
    for place, (phase, ns) in enumerate(phases):
        intervals.append(Interval(phase, at_ns, at_ns + ns, place in left_by_exception))
        at_ns += ns
    backwards = sum(interval.phase is Phase.BACKWARD for interval in intervals)
    return RankStep(number, start_ns, at_ns, tuple(intervals), backwards, complete)


def identity_of(
    rank: int = 0, *, world_size: int = 2, ranks_per_node: int = 8, run: str = "run-1", attempt: int = 0
) -> Identity:
    """The identity of `rank` in a job of `world_size` ranks."""
    node = rank // ranks_per_node
    return Identity(
        role=Role.RANK,
        run=run,
        attempt=attempt,
        rank=rank,
        local_rank=rank % ranks_per_node,
        node_rank=node,
        world_size=world_size,
        local_world_size=min(ranks_per_node, world_size),
        host=f"node{node}",
        pid=1000 + rank,
        launcher="torchrun",
    )
