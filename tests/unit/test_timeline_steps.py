"""Marks become steps whose intervals partition them, whatever the marks are."""

from collections.abc import Sequence
from itertools import chain, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainspan.names import AnyPhase, Phase, named_phase
from trainspan.recording.layout import ABORT, ENTER, RESUME, STEP
from trainspan.relay.timeline.records import Interval, RankStep
from trainspan.relay.timeline.steps import RankTimeline
from trainspan.testing.builders import MarkTape, marks_of

WORDS = st.integers(-(1 << 63), (1 << 63) - 1)
LIKELY_MARKS = st.tuples(
    st.integers(0, 40), st.builds(lambda operand, code: operand << 8 | code, st.integers(-2, 5), st.integers(0, 255))
).map(list)
HOSTILE: st.SearchStrategy[list[int]] = st.lists(st.one_of(LIKELY_MARKS, st.lists(WORDS, max_size=3))).map(
    lambda parts: list(chain.from_iterable(parts))
)


def phases_of(step: RankStep) -> list[tuple[AnyPhase, int]]:
    """Phase and ns of each interval."""
    return [(interval.phase, interval.end_ns - interval.start_ns) for interval in step.intervals]


def steps_of(tape: MarkTape) -> list[RankStep]:
    """The steps of a tape in good order."""
    timeline = RankTimeline()
    steps = timeline.feed(tape.words)
    assert timeline.invalid == 0
    return steps


def assert_partition(step: RankStep) -> None:
    """The intervals follow each other from the start to the end of the step."""
    at_ns = step.start_ns
    for interval in step.intervals:
        assert interval.start_ns == at_ns
        assert interval.end_ns >= at_ns
        at_ns = interval.end_ns
    assert at_ns == step.end_ns


def test_a_plain_step_is_cut_at_its_marks() -> None:
    """The whole shape of a step, once, with every number in it."""
    tape = MarkTape(now_ns=100)
    tape.spend(Phase.DATA_WAIT, 5)
    tape.spend(Phase.OTHER, 2)
    tape.spend(Phase.FORWARD, 10)
    tape.spend(Phase.OTHER, 1)
    tape.spend(Phase.BACKWARD, 20)
    tape.spend(Phase.GRAD_CLIP, 3)
    tape.step(7, optimizer_ns=4)

    steps = steps_of(tape)

    assert steps == [
        RankStep(
            number=7,
            start_ns=100,
            end_ns=145,
            intervals=(
                Interval(Phase.DATA_WAIT, 100, 105),
                Interval(Phase.H2D, 105, 107),
                Interval(Phase.FORWARD, 107, 117),
                Interval(Phase.OTHER, 117, 118),
                Interval(Phase.BACKWARD, 118, 138),
                Interval(Phase.GRAD_CLIP, 138, 141),
                Interval(Phase.OPTIMIZER, 141, 145),
            ),
            microbatches=1,
        )
    ]


def test_a_step_starts_where_the_one_before_it_ended() -> None:
    """Time between two steps would otherwise belong to neither."""
    tape = MarkTape(now_ns=0)
    tape.spend(Phase.FORWARD, 5)
    tape.step(0, optimizer_ns=5)
    tape.spend(Phase.OTHER, 30)
    tape.step(1, optimizer_ns=5)

    first, second = steps_of(tape)

    assert (first.end_ns, second.start_ns, second.end_ns) == (10, 10, 45)
    assert phases_of(second) == [(Phase.OTHER, 30), (Phase.OPTIMIZER, 5)]


def test_the_first_step_starts_at_the_first_enter() -> None:
    """What came before it is init, and the account must know where that ends."""
    tape = MarkTape(now_ns=50)
    tape.step(0, optimizer_ns=5)
    timeline = RankTimeline()

    before = timeline.first_step_start_ns
    steps = timeline.feed(tape.words)

    assert before is None
    assert timeline.first_step_start_ns == steps[0].start_ns == 50


def test_other_before_a_forward_is_h2d_only_right_behind_a_data_wait() -> None:
    """The gap method must not name a loss computation or a closure's own code a copy to the device."""
    tape = MarkTape()
    tape.spend(Phase.DATA_WAIT, 5)
    tape.spend(Phase.OTHER, 1)
    tape.spend(Phase.FORWARD, 5)
    tape.spend(Phase.OTHER, 2)
    tape.spend(Phase.FORWARD, 5)
    tape.spend(Phase.DATA_WAIT, 5)
    tape.spend(Phase.FORWARD, 5)
    tape.spend(Phase.DATA_WAIT, 5)
    tape.spend(Phase.OTHER, 3)
    tape.spend(Phase.BACKWARD, 5)
    tape.step(0)

    step = steps_of(tape)[0]

    assert [ns for phase, ns in phases_of(step) if phase is Phase.H2D] == [1]
    assert [ns for phase, ns in phases_of(step) if phase is Phase.OTHER] == [2, 3]


def test_other_behind_a_failed_data_wait_stays_other() -> None:
    """A loader that raised gave no batch, so there was nothing to copy."""
    tape = MarkTape()
    tape.spend(Phase.DATA_WAIT, 5, failed=True)
    tape.spend(Phase.OTHER, 2)
    tape.spend(Phase.FORWARD, 5)
    tape.step(0, optimizer_ns=1)

    step = steps_of(tape)[0]

    assert phases_of(step) == [(Phase.DATA_WAIT, 5), (Phase.OTHER, 2), (Phase.FORWARD, 5), (Phase.OPTIMIZER, 1)]


def test_fetching_a_batch_to_validate_is_validation() -> None:
    """An evaluation's loader would otherwise show up as the training's starvation."""
    tape = MarkTape()
    tape.spend(Phase.DATA_WAIT, 5)
    tape.spend(Phase.OTHER, 1)
    tape.spend(Phase.VALIDATION, 9)
    tape.spend(Phase.OTHER, 2)
    tape.spend(Phase.DATA_WAIT, 4, failed=True)
    tape.spend(Phase.VALIDATION, 8)
    tape.spend(Phase.DATA_WAIT, 3)
    tape.spend(Phase.FORWARD, 3)
    tape.step(0, optimizer_ns=1)

    step = steps_of(tape)[0]

    assert phases_of(step) == [
        (Phase.VALIDATION, 5),
        (Phase.VALIDATION, 1),
        (Phase.VALIDATION, 9),
        (Phase.OTHER, 2),
        (Phase.VALIDATION, 4),
        (Phase.VALIDATION, 8),
        (Phase.DATA_WAIT, 3),
        (Phase.FORWARD, 3),
        (Phase.OPTIMIZER, 1),
    ]
    assert [interval.failed for interval in step.intervals].index(True) == 4


def test_an_optimizer_that_runs_a_closure_has_only_its_own_time() -> None:
    """Lightning and LBFGS run forward and backward inside the optimizer's step; counted twice, they exceed the step."""
    tape = MarkTape(now_ns=0)
    with tape.inside(Phase.OPTIMIZER):
        tape.spend(Phase.OTHER, 1)
        tape.spend(Phase.FORWARD, 10)
        tape.spend(Phase.BACKWARD, 20)
        tape.spend(Phase.OTHER, 4)
    tape.step(0, optimizer_ns=0)

    step = steps_of(tape)[0]

    assert phases_of(step) == [
        (Phase.OPTIMIZER, 1),
        (Phase.FORWARD, 10),
        (Phase.BACKWARD, 20),
        (Phase.OPTIMIZER, 4),
    ]


def test_a_replayed_graph_can_end_a_step() -> None:
    """It holds forward, backward and optimizer, and no hook of theirs is called."""
    tape = MarkTape(now_ns=100)
    tape.spend(Phase.DATA_WAIT, 5)
    tape.mark(ENTER, Phase.GRAPH_REPLAY)
    tape.now_ns += 8
    tape.mark(STEP, Phase.OTHER, 0)

    [step] = steps_of(tape)

    assert phases_of(step) == [(Phase.DATA_WAIT, 5), (Phase.GRAPH_REPLAY, 8)]


def test_microbatches_are_the_backward_passes_of_the_step() -> None:
    """With gradient accumulation one step holds several; each step counts its own."""
    tape = MarkTape()
    for _ in range(3):
        tape.spend(Phase.BACKWARD, 5)
    tape.step(0)
    tape.spend(Phase.BACKWARD, 5)
    tape.step(1)
    tape.step(2)

    steps = steps_of(tape)

    assert [step.microbatches for step in steps] == [3, 1, 0]


def test_abort_marks_the_interval_that_was_left() -> None:
    """Only the phase the exception came through is an error, not what the rank did next."""
    tape = MarkTape(now_ns=0)
    tape.spend(Phase.FORWARD, 5, failed=True)
    tape.spend(Phase.FORWARD, 6)
    tape.step(0, optimizer_ns=1)

    step = steps_of(tape)[0]

    assert step.intervals == (
        Interval(Phase.FORWARD, 0, 5, failed=True),
        Interval(Phase.FORWARD, 5, 11),
        Interval(Phase.OPTIMIZER, 11, 12),
    )


def test_two_stays_in_one_phase_are_not_merged() -> None:
    """Two forwards that touch are two calls; one span of them would hide that."""
    tape = MarkTape(now_ns=0)
    tape.spend(Phase.FORWARD, 5)
    tape.spend(Phase.FORWARD, 6)
    tape.step(0, optimizer_ns=0)

    step = steps_of(tape)[0]

    assert phases_of(step) == [(Phase.FORWARD, 5), (Phase.FORWARD, 6)]


def test_a_lap_tears_out_one_step_and_the_next_mark_of_a_step_starts_anew() -> None:
    """A step with a hole in it would have wrong phases; its time is kept to be charged as unaccounted."""
    before = marks_of(2, start_ns=0)
    after = marks_of(3, first=50, start_ns=10_000_000_000)
    timeline = RankTimeline()

    steps = timeline.feed(before)
    torn_ns = steps[-1].end_ns
    timeline.feed(after[:2])  # the step that the lap tears has begun
    timeline.gap(999)
    phase_after_gap = timeline.phase_now
    steps += timeline.feed(after[2:])

    assert phase_after_gap is None
    assert [step.number for step in steps] == [0, 1, 51, 52]
    assert timeline.laps == 1
    assert timeline.lost_ns == steps[2].start_ns - torn_ns
    assert timeline.invalid == 0
    for step in steps:
        assert_partition(step)


def test_a_second_lap_before_the_next_step_loses_one_stretch_of_time() -> None:
    """Two laps in a row must not charge the same time twice, nor forget where the first began."""
    timeline = RankTimeline()
    steps = timeline.feed(marks_of(1, start_ns=0))
    later = marks_of(2, first=9, start_ns=1_000_000_000)

    timeline.gap(10)
    timeline.feed(later[:4])
    timeline.gap(10)
    steps += timeline.feed(later[4:])

    assert [step.number for step in steps] == [0, 10]
    assert timeline.laps == 2
    assert timeline.lost_ns == steps[1].start_ns - steps[0].end_ns


def test_a_lap_before_the_first_mark_hides_when_training_began() -> None:
    """Init would otherwise seem to last until the relay had caught up."""
    timeline = RankTimeline()

    timeline.gap(5)
    steps = timeline.feed(marks_of(3))

    assert [step.number for step in steps] == [1, 2]
    assert timeline.started
    assert timeline.first_step_start_ns is None
    assert timeline.lost_ns == 0
    assert timeline.init_end_ns(1 << 60) is None


def test_no_lost_marks_are_no_lap() -> None:
    """The tail may report zero with every look."""
    words = marks_of(2)
    timeline = RankTimeline()

    steps = timeline.feed(words[:8])
    timeline.gap(0)
    steps += timeline.feed(words[8:])

    assert [step.number for step in steps] == [0, 1]
    assert timeline.laps == 0


def test_the_unfinished_step_ends_when_the_end_was_noticed() -> None:
    """A rank killed in backward must show that step, with backward as its last phase."""
    tape = MarkTape(now_ns=0)
    tape.step(4, optimizer_ns=10)
    tape.spend(Phase.FORWARD, 5)
    tape.mark(ENTER, Phase.BACKWARD)
    timeline = RankTimeline()
    timeline.feed(tape.words)

    unfinished = timeline.end(40)

    assert unfinished == RankStep(
        number=5,
        start_ns=10,
        end_ns=40,
        intervals=(Interval(Phase.FORWARD, 10, 15), Interval(Phase.BACKWARD, 15, 40)),
        microbatches=1,
        complete=False,
    )
    assert (timeline.phase_now, timeline.last_mark_ns) == (Phase.BACKWARD, 15)


@pytest.mark.parametrize("at_ns", [0, 15])
def test_the_last_interval_of_an_unfinished_step_is_kept_without_length(at_ns: int) -> None:
    """It says where the process died, also when the death was noticed at the last mark, or the clock says before it."""
    tape = MarkTape(now_ns=10)
    tape.spend(Phase.FORWARD, 5)
    tape.mark(ENTER, Phase.BACKWARD)
    timeline = RankTimeline()
    timeline.feed(tape.words)

    unfinished = timeline.end(at_ns)

    assert unfinished is not None
    assert unfinished.intervals[-1] == Interval(Phase.BACKWARD, 15, 15)
    assert_partition(unfinished)


def test_looking_at_the_unfinished_step_changes_nothing() -> None:
    """The relay may ask while the rank still runs."""
    words = marks_of(2)
    timeline = RankTimeline()

    steps = timeline.feed(words[:10])
    timeline.end(words[10])
    steps += timeline.feed(words[10:])

    assert steps == RankTimeline().feed(words)


def test_nothing_is_unfinished_before_the_first_step_and_behind_a_lap() -> None:
    """Where a step began is unknown then; a guess would put false time into a span."""
    timeline = RankTimeline()

    before = timeline.end(10)
    timeline.feed(marks_of(1))
    timeline.gap(3)
    behind = timeline.end(10)

    assert before is None
    assert behind is None


@pytest.mark.parametrize(
    ("words", "invalid"),
    [
        pytest.param([20, ENTER | 31], 1, id="unknown phase"),
        pytest.param([20, RESUME | 30], 1, id="unknown phase resumed"),
        pytest.param([5, ENTER | Phase.FORWARD], 1, id="time goes back"),
        pytest.param([20, ENTER | Phase.FORWARD, 21, ENTER | Phase.BACKWARD], 1, id="entered inside a leaf"),
        pytest.param([20, RESUME | Phase.OTHER], 1, id="resumed without enter"),
        pytest.param([20, ENTER | Phase.FORWARD, 21, RESUME | Phase.BACKWARD], 1, id="back in a leaf"),
        pytest.param([20, ENTER | Phase.FORWARD, 21, ENTER | Phase.OTHER], 1, id="entered what is no phase"),
        pytest.param([20, -1 << 8 | STEP | Phase.OTHER], 1, id="negative step number"),
        pytest.param([20, ENTER | Phase.FORWARD, 30], 1, id="half a mark"),
        pytest.param([20, ENTER | Phase.FORWARD, 30, ABORT | Phase.OTHER], 0, id="nothing wrong"),
    ],
)
def test_what_makes_no_sense_is_counted(words: Sequence[int], invalid: int) -> None:
    """Each kind of nonsense is seen, once, and the step around it still adds up."""
    timeline = RankTimeline()
    timeline.feed([9, ENTER | Phase.DATA_WAIT, 10, RESUME | Phase.OTHER])

    steps = timeline.feed(words)
    unfinished = timeline.end(100)

    assert timeline.invalid == invalid
    assert unfinished is not None
    for step in (*steps, unfinished):
        assert_partition(step)


def test_a_step_with_an_impossible_number_follows_the_one_before_it() -> None:
    """One damaged word must not make ids that no other rank computes for all steps behind it."""
    words = marks_of(3)
    last_of_second = len(words) // 3 * 2 - 1
    words[last_of_second] |= -1 << 63
    timeline = RankTimeline()

    steps = timeline.feed(words)

    assert [step.number for step in steps] == [0, 1, 2]
    assert timeline.invalid == 1


@given(st.lists(st.tuples(HOSTILE, st.integers(0, 3)), max_size=6), WORDS)
def test_any_words_give_steps_that_their_intervals_partition(looks: list[tuple[list[int], int]], end_ns: int) -> None:
    """The ring is memory that a rank can scribble over; time must add up whatever it holds."""
    timeline = RankTimeline()
    steps = []

    for words, lost in looks:
        timeline.gap(lost)
        steps += timeline.feed(words)
    unfinished = timeline.end(end_ns)

    at_ns = None
    for step in [*steps, unfinished] if unfinished is not None else steps:
        assert_partition(step)
        assert step.number >= 0
        assert at_ns is None or step.start_ns >= at_ns
        at_ns = step.end_ns
    assert timeline.lost_ns >= 0


@given(HOSTILE, st.lists(st.integers(0, 200), max_size=5))
def test_how_the_marks_are_cut_into_looks_does_not_matter(words: list[int], cuts: list[int]) -> None:
    """Looks happen whenever the relay wakes up; the steps must not depend on that."""
    words = words[: len(words) // 2 * 2]
    places = [0, *sorted(2 * cut for cut in cuts), len(words)]
    whole, pieces = RankTimeline(), RankTimeline()

    at_once = whole.feed(words)
    piecewise = [step for low, high in pairwise(places) for step in pieces.feed(words[low:high])]

    assert piecewise == at_once
    assert (pieces.invalid, pieces.phase_now, pieces.last_mark_ns) == (
        whole.invalid,
        whole.phase_now,
        whole.last_mark_ns,
    )


def test_named_phase_is_cut_around_what_it_holds_and_over_steps() -> None:
    """Its time is what is left of it: a rollout's forwards are forwards, and its second half is in the second step."""
    tape, named = MarkTape(), named_phase("rollout")
    tape.spend(Phase.FORWARD, 1)
    tape.mark(ENTER, 32)
    tape.now_ns += 10
    with tape.inside(Phase.FORWARD, back_to=32):
        tape.now_ns += 20
    tape.now_ns += 5
    tape.mark(STEP, 32, 0)
    tape.now_ns += 7
    tape.mark(RESUME, Phase.OTHER)
    tape.step(1, 3)
    timeline = RankTimeline()
    timeline.name(32, "rollout")

    first, second = timeline.feed(tape.words)

    assert phases_of(first) == [(Phase.FORWARD, 1), (named, 10), (Phase.FORWARD, 20), (named, 5)]
    assert phases_of(second) == [(named, 7), (Phase.OPTIMIZER, 3)]
    assert timeline.invalid == 0


def test_named_phase_before_the_first_step_is_told_apart_from_it() -> None:
    """Text is tokenized before the loop begins: that is no step, and no init without a name either."""
    tape, named = MarkTape(), named_phase("tokenize")
    begun_ns = tape.now_ns
    tape.mark(ENTER, 40)
    tape.now_ns += 100
    with tape.inside(Phase.CHECKPOINT_LOAD, back_to=40):
        tape.now_ns += 10
    tape.now_ns += 1
    tape.mark(RESUME, Phase.OTHER)
    tape.now_ns += 50
    tape.spend(Phase.FORWARD, 5)
    timeline = RankTimeline()
    timeline.name(40, "tokenize")

    timeline.feed(tape.words)

    assert timeline.early == [
        Interval(named, begun_ns, begun_ns + 100),
        Interval(named, begun_ns + 110, begun_ns + 111),
    ]
    assert timeline.first_step_start_ns == begun_ns + 161
    assert timeline.invalid == 0


@pytest.mark.parametrize("place", [Phase.OTHER, 32])
def test_loop_begins_where_the_user_says_so(place: int) -> None:
    """A loop without torch has no other mark to begin its first step with."""
    timeline = RankTimeline()
    marks = [1, RESUME | Phase.OTHER] if place == Phase.OTHER else [1, ENTER | place]

    steps = timeline.feed([*marks, 5, ENTER | place, 9, STEP | place])

    assert [(step.start_ns, step.end_ns) for step in steps] == [(5, 9)]


def test_phase_without_a_name_is_other() -> None:
    """An event that was dropped must not make a phase that no backend knows."""
    timeline = RankTimeline()
    timeline.name(Phase.FORWARD, "mine")

    (step,) = timeline.feed([1, ENTER | Phase.FORWARD, 2, RESUME, 3, ENTER | 50, 4, RESUME, 5, STEP])

    assert [interval.phase.wire for interval in step.intervals] == ["forward", "other", "custom.other", "other"]


LEAVES = [phase for phase in Phase if phase not in (Phase.OTHER, Phase.OPTIMIZER, Phase.H2D)]
IN_ORDER = st.lists(st.tuples(st.sampled_from([Phase.OTHER, *LEAVES]), st.integers(1, 50), st.booleans()))


@given(st.lists(IN_ORDER, min_size=1, max_size=4))
def test_a_writer_in_good_order_is_never_called_invalid(loop: list[list[tuple[Phase, int, bool]]]) -> None:
    """`invalid` is an alarm; a false one would be read as a damaged recording."""
    tape = MarkTape()
    for number, phases in enumerate(loop):
        for phase, ns, failed in phases:
            tape.spend(phase, ns, failed=failed)
        with tape.inside(Phase.OPTIMIZER):
            for phase, ns, failed in phases:
                tape.spend(phase, ns, failed=failed)
        tape.step(number)
    timeline = RankTimeline()

    steps = timeline.feed(tape.words)

    assert timeline.invalid == 0
    assert [step.number for step in steps] == list(range(len(loop)))
    assert steps[-1].end_ns == tape.now_ns
