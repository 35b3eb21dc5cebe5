"""Samples, tokens and FLOPs: from the marks of batches to the totals of a rank."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainspan.names import Phase
from trainspan.recording.layout import ENTER, RESUME, TOKENS_SHIFT
from trainspan.relay.timeline.progress import REMEMBERED, Position, Progress
from trainspan.relay.timeline.records import RankStep
from trainspan.relay.timeline.scalars import LEAST_NAMES, MOST_NAMES, Logged, Scalars
from trainspan.relay.timeline.steps import RankTimeline
from trainspan.relay.timeline.throughput import RECENT_STEPS, FlopsKnown, Throughput, Work
from trainspan.testing.builders import MarkTape, rank_step

S = 1_000_000_000
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
FIELDS = ("step", "samples", "tokens", "flops", "global_step", "at_step", "epoch", "values", "counters", "dropped")


def fetch(tape: MarkTape, samples: int, tokens: int = 0) -> None:
    """A batch arrives."""
    tape.mark(ENTER, Phase.DATA_WAIT)
    tape.now_ns += 5
    tape.mark(RESUME, Phase.OTHER, tokens << TOKENS_SHIFT | samples)


def worked(tape: MarkTape) -> list[tuple[int | None, int | None]]:
    """(samples, tokens) of each step on the tape."""
    timeline = RankTimeline()
    steps = timeline.feed(tape.words)
    assert timeline.invalid == 0
    return [(step.samples, step.tokens) for step in steps]


def test_batches_of_a_step_add_up() -> None:
    """Accumulation: one step, several batches; a step whose batches say nothing has no number."""
    tape = MarkTape(now_ns=100)
    for _ in range(3):
        fetch(tape, 8, 1024)
        tape.spend(Phase.FORWARD, 10)
        tape.spend(Phase.BACKWARD, 20)
    tape.step(0)
    tape.spend(Phase.DATA_WAIT, 5)
    tape.spend(Phase.FORWARD, 10)
    tape.step(1)

    assert worked(tape) == [(24, 3072), (None, None)]


def test_batches_of_a_validation_train_nothing() -> None:
    """Also where a loader fetches one ahead, as Accelerate's does, within the step and across the end of a step."""
    tape = MarkTape(now_ns=100)
    fetch(tape, 8)
    fetch(tape, 8)
    tape.spend(Phase.FORWARD, 10)
    tape.step(0)
    fetch(tape, 100)
    fetch(tape, 100)
    tape.spend(Phase.VALIDATION, 10)
    tape.spend(Phase.VALIDATION, 10)
    fetch(tape, 8)
    tape.spend(Phase.FORWARD, 10)
    tape.step(1)

    assert worked(tape) == [(16, None), (8, None)]


def test_step_without_a_forward_has_its_batches() -> None:
    """A step that is compiled whole, or replayed, shows nothing of its forward."""
    tape = MarkTape(now_ns=100)
    fetch(tape, 8)
    tape.step(0)
    fetch(tape, 4)
    tape.spend(Phase.BACKWARD, 3)
    tape.step(1)

    assert worked(tape) == [(8, None), (4, None)]


def test_batches_before_a_lap_are_forgotten() -> None:
    """Their step is not known any more."""
    tape = MarkTape(now_ns=100)
    fetch(tape, 8)
    timeline = RankTimeline()
    timeline.feed(tape.words)
    timeline.gap(10)
    later = MarkTape(now_ns=1000)
    later.step(4)
    fetch(later, 2)
    later.step(5)

    steps = timeline.feed(later.words)

    assert [(step.number, step.samples) for step in steps] == [(5, 2)]


def steps_of(count: int, samples: int | None = 8, tokens: int | None = 1024, first: int = 0) -> list[RankStep]:
    """Steps of one second each."""
    made = [rank_step(number, [(Phase.FORWARD, S)]) for number in range(first, first + count)]
    return [step._replace(samples=samples, tokens=tokens) for step in made]


@pytest.mark.parametrize(
    ("known", "flops"),
    [
        (FlopsKnown(), None),
        (FlopsKnown(per_token=6.0), 6.0 * 4096),
        (FlopsKnown(per_sample=100.0), 100.0 * 32),
        (FlopsKnown(per_token=6.0, per_sample=100.0), 6.0 * 4096),
    ],
)
def test_flops_follow_from_what_is_known(known: FlopsKnown, flops: float | None) -> None:
    """Tokens say more than samples, which differ in length."""
    throughput = Throughput(known)

    throughput.count(steps_of(4))

    assert throughput.work() == Work(32, 4096, flops, None)


def test_flops_that_torch_counted_hold_for_every_sample() -> None:
    """It counts one step; the others may have had larger batches, and those before it count too."""
    throughput = Throughput(FlopsKnown())
    throughput.count(steps_of(3, samples=8, tokens=None))

    throughput.take({"event": "flops", "step": 2, "flops": 800})
    throughput.count(steps_of(1, samples=16, tokens=None, first=3))

    assert throughput.work() == Work(40, None, 4000.0, None)


def test_flops_of_a_step_hold_for_steps_where_samples_are_not_known() -> None:
    """The event may come before its step has been read."""
    throughput = Throughput(FlopsKnown())

    throughput.take({"event": "flops", "step": 2, "flops": 800})
    throughput.count(steps_of(5, samples=None, tokens=None))

    assert throughput.work() == Work(None, None, 4000.0, None)


def test_mfu_is_of_the_newest_steps() -> None:
    """6 FLOPs for each of 1024 tokens a second are 0.06 of a peak of 102400; a slow beginning is forgotten."""
    throughput = Throughput(FlopsKnown(per_token=6.0, peak_per_s=102_400.0))
    assert throughput.mfu is None

    throughput.count(steps_of(100, tokens=1))
    slow = throughput.mfu
    for first in range(100, 100 + 2 * RECENT_STEPS, 128):
        throughput.count(steps_of(128, first=first))

    assert slow == pytest.approx(6 / 102_400)
    assert throughput.mfu == pytest.approx(0.06)


def test_mfu_counts_the_steps_of_the_first_look() -> None:
    """However many of them the relay finds when it begins; `trainspan goodput` counts them, too."""
    throughput = Throughput(FlopsKnown(per_token=6.0, peak_per_s=102_400.0))

    throughput.count(steps_of(1, tokens=3 * 1024))
    throughput.count(steps_of(1, first=1))

    assert throughput.mfu == pytest.approx(0.12)


def test_what_the_user_counts_stands() -> None:
    """Only the user knows of padding and of packing; a total that shrinks is none."""
    throughput = Throughput(FlopsKnown(per_token=2.0))
    throughput.count(steps_of(4))

    throughput.take({"event": "work", "tokens": 900})
    throughput.take({"event": "work", "tokens": 800})

    assert throughput.work() == Work(32, 900, 1800.0, None)


@pytest.mark.parametrize(("samples", "flops"), [(8, 40 * 100.0), (None, 5 * 800.0)])
def test_work_goes_on_where_it_was_left(samples: int | None, flops: float) -> None:
    """Another relay takes over, and the step in which torch counted is not in the ring any more."""
    first = Throughput(FlopsKnown(peak_per_s=8000.0))
    first.take({"event": "flops", "step": 2, "flops": 800})
    first.count(steps_of(4, samples=samples, tokens=None))

    second = Throughput(FlopsKnown(peak_per_s=8000.0), first.work(), 4)
    second.take({"event": "flops", "step": 2, "flops": 800})
    before = second.work()
    second.count(steps_of(1, samples=samples, tokens=None, first=4))

    assert before == first.work()._replace(mfu=None)
    assert second.work() == Work(samples and samples * 5, None, flops, first.mfu)


def test_flops_that_the_script_tells_stand() -> None:
    """It knows its model; who has set a variable may have another one in mind."""
    throughput = Throughput(FlopsKnown(per_token=2.0, peak_per_s=8192.0))
    throughput.count(steps_of(2))

    throughput.configure({"training.flops_per_token": 4, "training.flops_per_sample": "many"})
    throughput.count(steps_of(2, first=2))

    assert throughput.work() == Work(32, 4096, 4.0 * 4096, 0.5)


def test_position_goes_on_from_where_it_was_told() -> None:
    """The rank tells it once; every step after it has its own."""
    progress = Progress()
    assert progress.of(3) == Position()

    progress.take({"event": "progress", "step": 0, "global_step": 1001, "epoch": 4})
    progress.take({"event": "progress", "step": 10, "global_step": 1011, "epoch": 5})
    progress.take({"event": "progress", "step": 12, "epoch": 6})
    progress.take({"event": "scalars", "step": 15, "at_step": 14, "global_step": 7})
    progress.take({"event": "scalars", "step": 16})

    found = [progress.of(number) for number in (0, 9, 10, 11, 12, 15)]
    by_framework = [Position(1001, 4), Position(1010, 4), Position(1011, 5), Position(1012, 5), Position(None, 6)]
    assert found == [*by_framework, Position(8, 6)]


def test_script_that_counts_says_nothing_of_epochs() -> None:
    """Steps between two numbers of the script follow each other; its framework's epoch stays."""
    progress = Progress()

    progress.take({"event": "progress", "step": 0, "global_step": 1, "epoch": 3})
    progress.take({"event": "progress", "step": 2, "global_step": 102})

    assert progress.of(5) == Position(105, 3)


def test_positions_are_bounded() -> None:
    """A framework that jumps at every step must not fill the relay."""
    progress = Progress()

    for step in range(3 * REMEMBERED):
        progress.take({"event": "progress", "step": step, "global_step": 5 * step, "epoch": 0})
        progress.take({"event": "progress", "step": step, "global_step": 5 * step, "epoch": 0})

    assert progress.of(0) == Position()
    assert progress.of(3 * REMEMBERED - 1) == Position(5 * (3 * REMEMBERED - 1), 0)


def test_last_value_of_each_name_stands() -> None:
    """What the rank did not take is counted with what is refused here."""
    scalars = Scalars(world_size=1)
    assert scalars.logged() == Logged()

    scalars.take({"event": "scalars", "values": {"loss": 2, "lr": 0.1}, "counters": {"skipped": 1}})
    odd = {"loss": float("inf"), "bad": "x", "beyond": 10**400, "lr": 0.2}
    scalars.take({"event": "scalars", "values": odd, "counters": {}, "dropped": 4})

    assert scalars.logged() == Logged({"loss": float("inf"), "lr": 0.2}, {"skipped": 1.0}, 6)


@pytest.mark.parametrize(("world_size", "names"), [(1, MOST_NAMES), (128, 64), (100_000, LEAST_NAMES)])
def test_many_ranks_have_few_names(world_size: int, names: int) -> None:
    """A series a name and rank: a job's are bounded whatever its scripts log."""
    scalars = Scalars(world_size)

    for number in range(200):
        scalars.take({"event": "scalars", "values": {f"name{number}": 1.0}})

    logged = scalars.logged()
    assert (len(logged.values), logged.dropped) == (names, 200 - names)


@given(st.sampled_from(["work", "flops", "progress", "scalars"]), st.dictionaries(st.sampled_from(FIELDS), JSON))
def test_nothing_in_a_log_is_believed_unseen(event: str, fields: dict[str, Any]) -> None:
    """Whatever stands there is told as it should be, or not at all."""
    throughput, progress, scalars = Throughput(FlopsKnown(1.0, 1.0, 1.0)), Progress(), Scalars(1)

    for taker in (throughput, progress, scalars):
        taker.take({**fields, "event": event})
    throughput.count(steps_of(2))

    work, logged = throughput.work(), scalars.logged()
    assert all(isinstance(value, int) and 0 <= value < 1 << 63 for value in (work.samples, work.tokens))
    assert all(isinstance(value, float) for value in (*logged.values.values(), *logged.counters.values()))
    assert all(value is None or value >= 0 for value in progress.of(1 << 40))
