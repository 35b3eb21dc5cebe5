"""The job is what its ranks make of it, instant by instant and step by step, however it is computed."""

from collections.abc import Sequence

from hypothesis import assume, given
from hypothesis import strategies as st

from tests.unit.goodput_facts import S, begun, history_of
from trainspan.relay.goodput.facts import Fact, Step, StepRun
from trainspan.relay.goodput.history import JOB
from trainspan.relay.goodput.job import strongest
from trainspan.relay.goodput.states import (
    CHECKPOINT_SAVE,
    CUSTOM,
    DATA_WAIT,
    PRODUCTIVE,
    STRAGGLER_WAIT,
    UNCOVERED,
    Palette,
)
from trainspan.relay.goodput.track import Segment

WEAKEST_FIRST = (STRAGGLER_WAIT, PRODUCTIVE, UNCOVERED, DATA_WAIT, CUSTOM, CHECKPOINT_SAVE)
"""As the definition of the job has it: work outranks who waits for it, and everything else outranks work."""


@st.composite
def lines(draw: st.DrawFn) -> list[list[Segment]]:
    """What some ranks do, each without a gap."""
    made = []
    for _ in range(draw(st.integers(0, 4))):
        at, line = draw(st.integers(0, 6)), []
        for length, code in draw(st.lists(st.tuples(st.integers(1, 5), st.sampled_from(WEAKEST_FIRST)), max_size=6)):
            line.append((at, at + length, code))
            at += length
        made.append(line)
    return made


@given(lines())
def test_the_job_does_at_every_instant_what_its_slowest_rank_does(ranks: list[list[Segment]]) -> None:
    """Where nobody is there the job is not, either."""
    expected: dict[int, int] = {}
    for start, end, code in (segment for line in ranks for segment in line):
        for instant in range(start, end):
            expected[instant] = max(expected.get(instant, STRAGGLER_WAIT), code, key=WEAKEST_FIRST.index)

    found = list(strongest([iter(line) for line in ranks], Palette()))

    assert {instant: code for start, end, code in found for instant in range(start, end)} == expected
    assert [start for start, _, _ in found] == sorted({start for start, _, _ in found})


@st.composite
def jobs(draw: st.DrawFn) -> list[list[Step]]:
    """What some ranks have made of the same steps: one may lack some, or be told of several as one."""
    numbers = list(range(draw(st.integers(1, 90))))
    if draw(st.booleans()):
        numbers += range(draw(st.integers(0, numbers[-1])), numbers[-1] + 20)  # the loop goes back
    odd = draw(st.integers(0, 3))
    ranks = []
    for rank in range(draw(st.integers(2, 4))):
        first = draw(st.integers(0, len(numbers)))
        lacks = range(first, first + draw(st.integers(0, 6))) if rank == odd else ()
        recompiled = draw(st.sets(st.sampled_from(numbers), max_size=2))
        late_ns = draw(st.lists(st.integers(0, 9), min_size=8, max_size=8))
        edges = [place * S + late_ns[place % 8] for place in range(len(numbers) + 1)]
        made = [
            Step(0, rank, number, edges[place], edges[place + 1], recompiled=number in recompiled)
            for place, number in enumerate(numbers)
            if place not in lacks
        ]
        assume(made)  # who makes no step has no part in the job's
        ranks.append(made)
    return ranks


def of_the_job(ranks: Sequence[Sequence[Step]]) -> list[tuple[int, int, int, bool]]:
    """(number, start, end, recompiled) of each step that all ranks have made, in each pass of the loop."""
    passes = []
    for made in ranks:
        by_key, round_, before = {}, 0, -1
        for step in made:
            round_ += step.number <= before
            before = step.number
            by_key[round_, step.number] = step
        passes.append(by_key)
    common = sorted(set.intersection(*(set(by_key) for by_key in passes)))
    found = [[by_key[key] for by_key in passes] for key in common]
    return [
        (same[0].number, max(s.start_ns for s in same), max(s.end_ns for s in same), any(s.recompiled for s in same))
        for same in found
    ]


@given(jobs(), st.booleans())
def test_the_job_has_made_a_step_when_the_last_rank_has(ranks: list[list[Step]], as_columns: bool) -> None:
    """It begins when the last of them begins it; a step that one of them has not made is none of the job's."""
    facts: list[Fact] = [begun(0, rank=rank) for rank in range(len(ranks))]
    facts += [StepRun.of(made) for made in ranks] if as_columns else [step for made in ranks for step in made]

    steps = history_of(facts).clock(JOB).periods[-1].life.steps

    marked = [start_ns in steps.marks for start_ns in steps.starts]
    assert list(zip(steps.numbers, steps.starts, steps.ends, marked, strict=True)) == of_the_job(ranks)


def test_ranks_in_different_passes_of_the_loop_make_no_step_of_the_job() -> None:
    """Their numbers are alike from here on, and still these are not the same steps: one has not gone back."""
    alike = range(61)  # of which the first keeps them from being taken as alike too early

    def made(rank: int, *others: int) -> list[Step]:
        numbers = [*alike, *others]
        return [Step(0, rank, n, place * S, (place + 1) * S, recompiled=place == 0) for place, n in enumerate(numbers)]

    ranks = [made(0, 109, 104, 105, 106), made(1, 110, 105, 106), made(2, 102, 103, 104, 105, 106)]
    facts: list[Fact] = [begun(0, rank=rank) for rank in range(3)]

    steps = history_of([*facts, *(step for rank in ranks for step in rank)]).clock(JOB).periods[-1].life.steps

    assert list(steps.numbers) == list(alike) == [number for number, *_ in of_the_job(ranks)]
