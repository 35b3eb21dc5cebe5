"""Calls of a model that no optimizer trains: what becomes of the batch tells what they were."""

import pytest

from trainspan.names import AnyPhase, Phase
from trainspan.recording.layout import ENTER, RESUME, UNTRAINED
from trainspan.relay.timeline.records import RankStep
from trainspan.relay.timeline.steps import RankTimeline
from trainspan.testing.builders import MarkTape

NS = 10


class Loop:
    """Marks of a loop of training, each phase of 10 ns with 1 ns of the script's own behind it."""

    def __init__(self) -> None:
        self.tape = MarkTape(now_ns=100)
        self.steps = 0

    def fetch(self, samples: int | None = 8) -> None:
        """A batch arrives; None: there is none any more."""
        self._spend(Phase.DATA_WAIT, told=samples or 0)

    def untrained(self) -> None:
        """A call of the model that no optimizer trains."""
        self._spend(Phase.VALIDATION, UNTRAINED)

    def call(self, *phases: Phase) -> None:
        """One call in each of these phases."""
        for phase in phases:
            self._spend(phase)

    def step(self) -> None:
        """The optimizer ends the step."""
        self.tape.step(self.steps, NS)
        self.steps += 1

    def _spend(self, phase: Phase, operand: int = 0, *, told: int = 0) -> None:
        self.tape.mark(ENTER, phase, operand)
        self.tape.now_ns += NS
        self.tape.mark(RESUME, Phase.OTHER, told)
        self.tape.now_ns += 1

    def cut(self, size: int = 1 << 20) -> list[RankStep]:
        """The steps, the marks fed `size` at a time."""
        timeline = RankTimeline()
        words = self.tape.words
        steps = [step for at in range(0, len(words), 2 * size) for step in timeline.feed(words[at : at + 2 * size])]
        assert timeline.invalid == 0
        return steps


def phases_of(step: RankStep) -> list[AnyPhase]:
    """The phases in order, without the script's own."""
    return [interval.phase for interval in step.intervals if interval.phase is not Phase.OTHER]


TRAINED = [Phase.DATA_WAIT, Phase.H2D, Phase.FORWARD]


@pytest.mark.parametrize("size", [1, 1 << 20])
def test_teacher_is_part_of_the_forward(size: int) -> None:
    """Distillation: the same batch goes through the teacher first, then through the student."""
    loop = Loop()
    for _ in range(2):
        loop.fetch()
        loop.untrained()
        loop.untrained()
        loop.call(Phase.FORWARD, Phase.BACKWARD)
        loop.step()

    steps = loop.cut(size)

    whole = [*TRAINED, Phase.FORWARD, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER]
    assert [phases_of(step) for step in steps] == [whole] * 2
    assert [(step.validations, step.samples, step.microbatches) for step in steps] == [(0, 8, 1)] * 2


def test_teacher_of_a_step_that_shows_no_forward_is_part_of_it() -> None:
    """The student may be compiled whole."""
    loop = Loop()
    loop.fetch()
    loop.untrained()
    loop.call(Phase.BACKWARD)
    loop.step()

    [step] = loop.cut()

    assert phases_of(step) == [*TRAINED, Phase.BACKWARD, Phase.OPTIMIZER]
    assert (step.validations, step.samples) == (0, 8)


def test_reference_after_the_forward_is_part_of_it() -> None:
    """Preference optimization: first the policy, then what it must not leave."""
    loop = Loop()
    loop.fetch()
    loop.call(Phase.FORWARD)
    loop.untrained()
    loop.call(Phase.BACKWARD)
    loop.step()

    [step] = loop.cut()

    assert phases_of(step) == [*TRAINED, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER]
    assert (step.validations, step.samples) == (0, 8)


def test_call_without_a_batch_of_its_own_is_forward() -> None:
    """A script that makes its batches itself: nothing tells of them, and a teacher is what there is most."""
    loop = Loop()
    loop.untrained()
    loop.call(Phase.FORWARD, Phase.BACKWARD)
    loop.step()

    [step] = loop.cut()

    assert phases_of(step) == [Phase.FORWARD, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER]
    assert step.validations == 0


@pytest.mark.parametrize("at_the_end", [False, True])
def test_average_of_the_weights_is_validated(*, at_the_end: bool) -> None:
    """It gets batches of its own, of which nothing is trained."""
    loop = Loop()
    if at_the_end:
        loop.call(Phase.FORWARD, Phase.BACKWARD)
    for _ in range(2):
        loop.fetch(100)
        loop.untrained()
    if not at_the_end:
        loop.fetch(None)
        loop.fetch(8)
        loop.call(Phase.FORWARD, Phase.BACKWARD)
    loop.step()

    [step] = loop.cut()

    assert [phase for phase in phases_of(step) if phase is Phase.VALIDATION] == [Phase.VALIDATION] * 6
    assert (step.validations, step.samples) == (2, None if at_the_end else 8)


def test_teacher_is_told_from_the_validation_beside_it() -> None:
    """The student is validated with batches of its own, and then goes on with its teacher."""
    loop = Loop()
    loop.fetch(100)
    loop.call(Phase.VALIDATION)
    loop.fetch(8)
    loop.untrained()
    loop.call(Phase.FORWARD, Phase.BACKWARD)
    loop.step()

    [step] = loop.cut()

    validation = [Phase.VALIDATION] * 3
    assert phases_of(step) == [*validation, *TRAINED, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER]
    assert (step.validations, step.samples) == (1, 8)


def test_collective_between_teacher_and_student_changes_nothing() -> None:
    """Ranks may agree on something before they go on."""
    loop = Loop()
    loop.fetch()
    loop.untrained()
    loop.call(Phase.COLLECTIVE, Phase.FORWARD, Phase.BACKWARD)
    loop.step()

    [step] = loop.cut()

    assert phases_of(step) == [*TRAINED, Phase.COLLECTIVE, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER]


def test_marks_that_are_lost_take_the_batch_with_them() -> None:
    """What was fetched before a lap is not trained on after it."""
    loop = Loop()
    loop.fetch()
    loop.untrained()
    timeline = RankTimeline()
    timeline.feed(loop.tape.words)
    timeline.gap(10)
    later = Loop()
    later.tape.now_ns = 10_000
    later.step()
    later.call(Phase.FORWARD)
    later.step()

    [step] = timeline.feed(later.tape.words)

    assert (step.validations, step.samples) == (0, None)
