"""The hot path by itself: what it answers, and what is in the ring afterwards."""

import sys
from collections.abc import Callable
from itertools import pairwise
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.tapes import Tape
from trainspan.names import CUSTOM_FIRST, CUSTOM_LAST, Phase
from trainspan.record import marker as module
from trainspan.record.marker import FOREIGN, NESTED, SAME, Marker, make_marker
from trainspan.recording.layout import OPERAND_SHIFT, SKIPPED

THIS, OTHER_THREAD = 7, 8
HOLDERS = (Phase.OTHER, Phase.OPTIMIZER)
INNER = [phase for phase in Phase if phase not in HOLDERS]
CHECKPOINTS = (Phase.CHECKPOINT_SAVE, Phase.CHECKPOINT_LOAD)
NAMED = range(CUSTOM_FIRST, CUSTOM_LAST + 1)


class Threads:
    """Which thread is calling."""

    def __init__(self) -> None:
        self.now = THIS

    def identity(self) -> int:
        return self.now


def attached(capacity: int = 8) -> tuple[Marker, Tape, Threads]:
    """A marker that records for THIS thread."""
    threads, tape = Threads(), Tape(capacity)
    marker = make_marker(threads.identity)
    marker.attach(tape.words, tape.capacity)
    return marker, tape, threads


def test_phase_is_entered_and_left() -> None:
    """Two marks: from the one to the other the rank is in the phase."""
    marker, tape, _ = attached()

    outer = marker.enter(Phase.FORWARD)
    marker.resume(outer)

    assert outer == Phase.OTHER
    assert tape.written() == ["enter forward", "resume other"]


def test_phase_inside_an_optimizer_returns_to_it() -> None:
    """A closure's forward is no time of the optimizer."""
    marker, tape, _ = attached()

    outer = marker.enter(Phase.OPTIMIZER)
    inner = marker.enter(Phase.BACKWARD)
    marker.resume(inner)
    marker.step(outer)

    assert (outer, inner) == (Phase.OTHER, Phase.OPTIMIZER)
    assert tape.written() == ["enter optimizer", "enter backward", "resume optimizer", "step other 0"]


def test_phase_inside_a_phase_belongs_to_the_outer_one() -> None:
    """A gradient penalty runs a backward inside a forward: phases never overlap."""
    marker, tape, _ = attached()

    marker.enter(Phase.FORWARD)
    inner = marker.enter(Phase.BACKWARD)

    assert inner == NESTED
    assert tape.written() == ["enter forward"]


def test_other_thread_is_answered_and_writes_nothing() -> None:
    """Marks of two threads in one ring would make no step at all; also while this one is in a phase."""
    marker, tape, threads = attached()
    threads.now = OTHER_THREAD

    outside = marker.enter(Phase.DATA_WAIT)
    threads.now = THIS
    marker.enter(Phase.FORWARD)
    threads.now = OTHER_THREAD
    inside = marker.enter(Phase.DATA_WAIT)

    assert (outside, inside) == (FOREIGN, FOREIGN)
    assert tape.written() == ["enter forward"]
    assert not marker.mine()


def test_adopted_thread_is_the_one_that_trains() -> None:
    """Where the loop runs in another thread than the one that made the optimizer."""
    marker, _, threads = attached()
    threads.now = OTHER_THREAD

    marker.adopt_thread()

    assert marker.mine()
    assert marker.owner() == OTHER_THREAD
    assert marker.enter(Phase.FORWARD) == Phase.OTHER


def test_failure_is_an_abort() -> None:
    """The interval that an exception has left is marked as failed."""
    marker, tape, _ = attached()

    marker.abort(marker.enter(Phase.GRAD_CLIP))

    assert tape.written() == ["enter grad_clip", "abort other"]


def test_optimizer_inside_itself_has_no_mark() -> None:
    """The script has marked the phase: its optimizer's step is that one."""
    marker, tape, _ = attached()

    marker.enter(Phase.OPTIMIZER)

    assert marker.enter(Phase.OPTIMIZER) == SAME
    assert tape.written() == ["enter optimizer"]


def test_optimizer_that_was_left_is_entered_anew() -> None:
    """An exception has left it, and nobody has said so until the next one asks."""
    marker, tape, _ = attached()
    marker.guard_optimizer(lambda: bool(marker.abort(Phase.OTHER)))

    marker.enter(Phase.OPTIMIZER)
    outer = marker.enter(Phase.OPTIMIZER)

    assert outer == Phase.OTHER
    assert tape.written() == ["enter optimizer", "abort other", "enter optimizer"]


def seen_by(marker: Marker) -> Callable[..., list[int]]:
    """A function that returns the phase it is called in, after what it is given."""
    return lambda *args, last: [*args, last, marker.now()]


@pytest.mark.parametrize("held_in", HOLDERS)
def test_call_is_marked_around(held_in: Phase) -> None:
    """The same two marks as by hand, in whatever phase it is called that holds others."""
    marker, tape, _ = attached()
    entered = [0]
    if held_in:
        marker.enter(held_in)

    answer = marker.around(seen_by(marker), Phase.FORWARD, (1, 2), {"last": 3}, entered)

    assert answer == [1, 2, 3, Phase.FORWARD]
    assert (marker.now(), entered) == (held_in, [1])
    assert tape.written()[-2:] == ["enter forward", f"resume {held_in.wire}"]


def test_call_that_belongs_to_another_phase_is_only_made() -> None:
    """A gradient penalty; and any thread that does not train."""
    marker, tape, threads = attached()
    entered = [0]
    marker.enter(Phase.FORWARD)

    nested = marker.around(seen_by(marker), Phase.BACKWARD, (), {"last": 3}, entered)
    threads.now = OTHER_THREAD
    foreign = marker.around(seen_by(marker), Phase.BACKWARD, (), {"last": 3}, entered)

    assert nested == foreign == [3, Phase.FORWARD]
    assert entered == [0]
    assert tape.written() == ["enter forward"]


@pytest.mark.parametrize("held_in", HOLDERS)
def test_failure_of_a_call_is_an_abort_and_the_callers(held_in: Phase) -> None:
    """What the script raises reaches it as it is."""
    marker, tape, _ = attached()
    if held_in:
        marker.enter(held_in)

    with pytest.raises(KeyError, match="no"):
        marker.around({}.__getitem__, Phase.FORWARD, ("no",), {})

    assert marker.now() == held_in
    assert tape.written()[-2:] == ["enter forward", f"abort {held_in.wire}"]


def test_thread_that_enters_the_phase_of_training_is_adopted_if_it_may_be() -> None:
    """Where the loop runs in another thread than the one that made the optimizer, its first backward says so."""
    marker, tape, threads = attached()
    threads.now = OTHER_THREAD

    def adopt() -> bool:
        marker.adopt_thread()
        return True

    marker.adopt_in(Phase.BACKWARD, lambda: False)
    refused = marker.around(seen_by(marker), Phase.BACKWARD, (), {"last": 3})
    marker.adopt_in(Phase.BACKWARD, adopt)
    other = marker.around(seen_by(marker), Phase.FORWARD, (), {"last": 3})
    adopted = marker.around(seen_by(marker), Phase.BACKWARD, (), {"last": 3})

    assert refused == other == [3, Phase.OTHER]
    assert adopted == [3, Phase.BACKWARD]
    assert tape.written() == ["enter backward", "resume other"]


def test_skipped_step_is_numbered_as_the_others() -> None:
    """A reader that knows nothing of it must not lose count."""
    marker, tape, _ = attached()

    marker.step(marker.enter(Phase.OPTIMIZER))
    marker.skip(marker.enter(Phase.AMP))
    marker.step(marker.enter(Phase.OPTIMIZER))

    operands = [mark.operand for mark in tape.slots() if mark and mark.kind == "step"]
    assert operands == [0, 1 | SKIPPED, 2]
    assert marker.steps() == 3


def test_operand_comes_with_the_phase_and_stays_out_of_it() -> None:
    """Who is told of a failure is told of the phase."""
    marker, tape, _ = attached()
    left: list[int] = []
    marker.on_abort(left.append)

    outer = marker.enter(5 << OPERAND_SHIFT | Phase.COLLECTIVE)
    inner = marker.enter(Phase.FORWARD)
    marker.abort(outer)

    assert (outer, inner) == (Phase.OTHER, NESTED)
    assert [mark.operand for mark in tape.slots() if mark] == [5, 0]
    assert left == [Phase.COLLECTIVE]


def test_steps_are_numbered_from_zero() -> None:
    """The number is how a reader that came late knows which step it sees."""
    marker, tape, _ = attached()

    for _ in range(3):
        marker.step(marker.enter(Phase.OPTIMIZER))

    assert [mark.operand for mark in tape.slots() if mark and mark.kind == "step"] == [0, 1, 2]
    assert marker.steps() == 3


def test_optimizer_that_is_gone_is_left_by_what_comes_next() -> None:
    """Torch calls no hook when a step fails: the next phase must not seem to be inside of it."""
    marker, tape, _ = attached()

    def runs() -> bool:
        marker.abort(Phase.OTHER)
        return False

    marker.guard_optimizer(runs)
    marker.enter(Phase.OPTIMIZER)

    outer = marker.enter(Phase.DATA_WAIT)

    assert outer == Phase.OTHER
    assert tape.written() == ["enter optimizer", "abort other", "enter data_wait"]


def test_nothing_is_recorded_before_a_ring_is_attached() -> None:
    """A process that never trains has no ring."""
    threads = Threads()
    marker = make_marker(threads.identity)

    assert marker.enter(Phase.FORWARD) == FOREIGN
    assert not marker.mine()


def test_detached_marker_writes_where_nobody_reads() -> None:
    """A forked child returns through the phases of its parent, whose ring is still mapped; as often as it likes."""
    marker, tape, _ = attached()
    outer = marker.enter(Phase.BACKWARD)
    marker.detach()

    for _ in range(100):
        marker.resume(outer)
        marker.abort(outer)
        marker.step(outer)

    assert tape.written() == ["enter backward"]
    assert tape.laps == 0
    assert marker.enter(Phase.FORWARD) == FOREIGN


def test_second_ring_begins_anew() -> None:
    """A forked rank records itself, from its own step 0."""
    marker, first, _ = attached()
    marker.step(marker.enter(Phase.OPTIMIZER))
    marker.enter(Phase.FORWARD)
    second = Tape(8)

    marker.attach(second.words, second.capacity)
    marker.step(marker.enter(Phase.OPTIMIZER))

    assert second.written() == ["enter optimizer", "step other 0"]
    assert len(first.written()) == 3


def test_step_fills_the_last_slot() -> None:
    """Each way of writing a mark turns over by itself."""
    marker, tape, _ = attached(capacity=2)

    marker.step(marker.enter(Phase.OPTIMIZER))
    marker.abort(marker.enter(Phase.FORWARD))

    assert tape.laps == 2
    assert tape.written() == ["enter forward", "abort other"]


CALLS = st.lists(st.sampled_from([(phase, end) for phase in Phase if phase for end in ("resume", "abort", "step")]))


@given(calls=CALLS, capacity=st.sampled_from([2, 4, 8, 64]))
def test_ring_holds_the_newest_marks_in_order(calls: list[tuple[Phase, str]], capacity: int) -> None:
    """Whatever is written, in a ring of whatever size: laps are counted, times never fall, nothing is out of place."""
    marker, tape, _ = attached(capacity)
    expected = []
    for phase, end in calls:
        outer = marker.enter(phase)
        getattr(marker, end)(outer)
        expected += [("enter", phase), (end, Phase.OTHER)]

    laps, position = divmod(len(expected), capacity)
    slots = tape.slots()
    ordered = [mark for mark in (*slots[position:], *slots[:position]) if mark is not None]
    assert tape.laps == laps
    assert [(mark.kind, mark.phase) for mark in ordered] == expected[-capacity:]
    assert [mark.time_ns for mark in ordered] == sorted(mark.time_ns for mark in ordered)


@given(phases=st.lists(st.sampled_from(list(Phase)), max_size=12))
def test_only_holders_hold_a_phase(phases: list[Phase]) -> None:
    """However calls are nested: what enters is inside of other, of the optimizer or of what a user has named."""
    marker, tape, _ = attached(64)
    open_phases = []
    for phase in phases:
        outer = marker.enter(phase) if phase else NESTED
        if outer >= 0:
            open_phases.append(outer)
    for outer in reversed(open_phases):
        marker.resume(outer)

    entered = [mark.phase for mark in tape.slots() if mark and mark.kind == "enter"]
    nested = [(outer, inner) for outer, inner in pairwise(entered) if outer in INNER]
    assert all(outer is Phase.VALIDATION and inner in CHECKPOINTS for outer, inner in nested)


def test_each_mark_is_told_to_a_watcher_with_its_time() -> None:
    """Device events stand for the same boundaries as the marks, also where the ring begins anew between them."""
    marker, tape, _ = attached(capacity=4)
    told: list[int] = []

    marker.resume(marker.enter(Phase.FORWARD))
    marker.watch(told.append)
    marker.step(marker.enter(Phase.OPTIMIZER))
    marker.abort(marker.enter(Phase.BACKWARD))
    times_ns = [mark.time_ns for mark in tape.slots() if mark]
    marker.watch(None)
    marker.resume(marker.enter(Phase.FORWARD))

    assert told == [*times_ns[2:], *times_ns[:2]]
    assert tape.laps == 2


def test_detached_marker_is_watched_by_nobody() -> None:
    """A forked child must not record events of its parent's device."""
    marker, _, _ = attached()
    told: list[int] = []
    marker.watch(told.append)
    outer = marker.enter(Phase.FORWARD)

    marker.detach()
    marker.resume(outer)

    assert len(told) == 1


def test_named_phase_holds_any_other() -> None:
    """What a user names is around what the hooks see: a rollout holds forwards, and they are no time of it."""
    marker, tape, _ = attached(16)

    outer = marker.enter(NAMED[0])
    for inner in (Phase.DATA_WAIT, NAMED[1], Phase.OPTIMIZER):
        marker.resume(marker.enter(inner))
    marker.resume(outer)

    assert outer == Phase.OTHER
    assert tape.written() == [
        "enter custom.32",
        *("enter data_wait", "resume custom.32", "enter custom.33", "resume custom.32"),
        *("enter optimizer", "resume custom.32", "resume other"),
    ]


def test_validation_holds_a_checkpoint_and_nothing_else() -> None:
    """The best model is saved while it is validated; its forward is validation all the same."""
    marker, tape, _ = attached()

    marker.enter(Phase.VALIDATION)
    nested = [marker.enter(phase) for phase in (Phase.FORWARD, Phase.DATA_WAIT, NAMED[0])]
    marker.resume(marker.enter(Phase.CHECKPOINT_SAVE))

    assert nested == [NESTED] * 3
    assert tape.written() == ["enter validation", "enter checkpoint_save", "resume validation"]


def test_optimizer_steps_in_a_phase_that_says_so() -> None:
    """Who puts `backward` around the whole of it would lose every step."""
    marker, tape, _ = attached(16)
    outer = marker.enter(Phase.BACKWARD)
    before = marker.enter(Phase.OPTIMIZER)

    marker.let_step_in(Phase.BACKWARD)
    nested = marker.enter(Phase.FORWARD)
    marker.step(marker.enter(Phase.OPTIMIZER))
    marker.resume(outer)

    assert (before, nested) == (NESTED, NESTED)
    assert tape.written() == ["enter backward", "enter optimizer", "step backward 0", "resume other"]


def test_held_step_is_completed_by_its_holder_alone() -> None:
    """Where the script says what a step is, the optimizer's step is a part of it."""
    marker, tape, _ = attached()
    marker.hold_step(True)

    by_optimizer = marker.step(marker.enter(Phase.OPTIMIZER))
    marker.complete()
    marker.hold_step(False)
    after = marker.step(marker.enter(Phase.OPTIMIZER))

    assert (by_optimizer, after, marker.steps()) == (False, True, 2)
    assert tape.written() == [
        *("enter optimizer", "resume other", "step other 0"),
        *("enter optimizer", "step other 1"),
    ]


def test_named_phase_lasts_over_the_end_of_a_step() -> None:
    """A phase that straddles a step is in both."""
    marker, tape, _ = attached()
    outer = marker.enter(NAMED[0])

    marker.step(marker.enter(Phase.OPTIMIZER))
    now = marker.now()
    marker.resume(outer)

    assert now == NAMED[0]
    assert tape.written() == ["enter custom.32", "enter optimizer", "step custom.32 0", "resume other"]


@pytest.mark.parametrize("failed", [False, True])
@pytest.mark.parametrize("capacity", [2, 8])
def test_who_asks_is_told_once_when_the_phase_has_been_left(capacity: int, *, failed: bool) -> None:
    """What ends with a backward can be marked right behind it; at the end of the ring, too."""
    marker, tape, _ = attached(capacity)
    left: list[tuple[bool, int]] = []

    def told(how: bool) -> None:
        left.append((how, marker.now()))
        marker.complete()

    outer = marker.enter(Phase.BACKWARD)
    marker.on_leave(told)
    (marker.abort if failed else marker.resume)(outer)
    marker.resume(marker.enter(Phase.FORWARD))

    assert left == [(failed, Phase.OTHER)]
    assert marker.steps() == 1
    if capacity > 2:
        assert tape.written()[1:3] == ["abort other" if failed else "resume other", "step other 0"]


def test_watcher_goes_on_beside_who_waits_for_the_end_of_a_phase() -> None:
    """Both have each mark looked at, and neither may end the other's looking."""
    marker, _, _ = attached()
    times: list[int] = []
    left: list[bool] = []
    marker.watch(times.append)

    outer = marker.enter(Phase.BACKWARD)
    marker.on_leave(left.append)
    marker.resume(outer)
    marker.resume(marker.enter(Phase.FORWARD))

    assert (len(times), left) == (4, [False])


def test_who_waits_is_forgotten_with_the_recording() -> None:
    """A forked child leaves a phase that is none of its own."""
    marker, _, _ = attached()
    left: list[bool] = []
    marker.enter(Phase.BACKWARD)
    marker.on_leave(left.append)

    marker.detach()
    marker.resume(Phase.OTHER)

    assert left == []


def signalled(place: int, call: Callable[[], object], handler: Callable[[], object]) -> bool:
    """Make `call`, and `handler` where Python looks for a signal for the `place`th time; False: it never does."""
    passed = 0

    def look(frame: FrameType, event: str, _: Any) -> None:
        nonlocal passed
        if event in ("call", "c_return") and frame.f_code.co_filename == module.__file__:
            passed += 1
            if passed == place:
                handler()

    sys.setprofile(look)
    try:
        call()
    finally:
        sys.setprofile(None)
    return passed >= place


@pytest.mark.parametrize("capacity", [2, 4, 8])
def test_handler_of_a_signal_may_mark_wherever_it_comes(capacity: int) -> None:
    """It saves a checkpoint, in the middle of a mark and where the ring ends: all its marks are there, and all ours."""
    places = 0
    while saved_at(places + 1, capacity):
        places += 1

    assert places > 2


def saved_at(place: int, capacity: int) -> bool:
    """Have a handler save at a place of a forward, and look at what is recorded; False: there is no such place."""
    marker, tape, _ = attached(capacity)
    marked = [0]
    answers: list[str] = []

    came = signalled(
        place,
        lambda: marker.around(str, Phase.FORWARD, (), {}),
        lambda: answers.append(marker.around(lambda: "saved", Phase.CHECKPOINT_SAVE, (), {}, marked)),
    )

    assert answers == ["saved"] * came
    assert marker.now() == Phase.OTHER
    assert tape.laps == (2 + 2 * marked[0]) // capacity
    return came
