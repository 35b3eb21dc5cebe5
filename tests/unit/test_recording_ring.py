"""What the marker writes is what the reader gives, whatever the two do in between."""

import itertools
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests.unit.recordings import (
    CAPACITY,
    FIRST_WORD,
    Processor,
    opened,
    pairs_of,
    record_into,
    step_word,
    stores_of_steps,
)
from trainspan.names import Phase
from trainspan.record.marker import Marker, make_marker
from trainspan.recording import layout
from trainspan.recording.reader import Look, RecordingReader

HOLDERS = (Phase.OTHER, Phase.OPTIMIZER)
LEAVES = tuple(phase for phase in Phase if phase not in HOLDERS)


class Follower:
    """A reader, and where by the rules of the format it stands."""

    def __init__(self, path: Path, capacity: int):
        self.reader = opened(path)
        self.capacity = capacity
        self.passed = 0  # marks given or lost
        self.seen = 0  # marks that were there at its last look

    def check(self, written: list[tuple[int, int]], *, final: bool) -> None:
        """Look, and compare with what must come: all that the last look saw and that is not overwritten."""
        until = len(written) if final else self.seen
        lost = max(0, len(written) - self.capacity + layout.HALF_STORED - self.passed)
        expected = written[self.passed + lost : until]
        self.passed += lost + len(expected)
        self.seen = len(written)

        look = self.reader.look(final=final)

        assert pairs_of(look) == expected
        assert (look.lost, look.pending, self.reader.errors) == (lost, self.seen - self.passed, 0)


class RingMachine(RuleBasedStateMachine):
    """One rank that marks, and readers that come at any time and look at any time."""

    @initialize(capacity=st.sampled_from([CAPACITY, 2 * CAPACITY, 8 * CAPACITY]))
    def begin(self, capacity: int) -> None:
        """Open a recording, with a reader that is there from the start."""
        self.directory = tempfile.TemporaryDirectory()
        self.writer, self.marker = record_into(Path(self.directory.name), capacity)
        self.capacity = capacity
        self.written: list[tuple[int, int]] = []
        self.followers = [Follower(self.writer.path, capacity)]
        self.phase = 0
        self.steps = 0

    def note(self, word: int) -> None:
        """Note the mark just written: its time is read back, its word is what the layout says it must be."""
        position = FIRST_WORD + 2 * (len(self.written) % self.capacity)
        self.written.append((self.writer.words[position], word))

    @precondition(lambda self: self.phase == Phase.OTHER)
    @rule()
    def enter_optimizer(self) -> None:
        """Stay in the optimizer: phases inside it return to it."""
        assert self.marker.enter(Phase.OPTIMIZER) == Phase.OTHER
        self.phase = Phase.OPTIMIZER
        self.note(layout.ENTER | Phase.OPTIMIZER)

    @precondition(lambda self: self.phase == Phase.OPTIMIZER)
    @rule(failed=st.booleans())
    def leave_optimizer(self, failed: bool) -> None:
        """Return from the optimizer, by an exception or not."""
        (self.marker.abort if failed else self.marker.resume)(Phase.OTHER)
        self.phase = Phase.OTHER
        self.note((layout.ABORT if failed else layout.RESUME) | Phase.OTHER)

    @rule(phase=st.sampled_from(LEAVES), failed=st.booleans(), times=st.integers(1, 2000))
    def pass_through(self, phase: Phase, failed: bool, times: int) -> None:
        """Enter and leave a phase that holds no other, many times."""
        leave, kind = (self.marker.abort, layout.ABORT) if failed else (self.marker.resume, layout.RESUME)
        for _ in range(times):
            assert self.marker.enter(phase) == self.phase
            self.note(layout.ENTER | phase)
            leave(self.phase)
            self.note(kind | self.phase)

    @rule(times=st.one_of(st.integers(1, 3), st.integers(1020, 1030), st.integers(1, 20_000)))
    def step(self, times: int) -> None:
        """End many steps: the ring goes round, and round again."""
        for _ in range(times):
            self.marker.step(self.phase)
            self.note(self.steps << layout.OPERAND_SHIFT | layout.STEP | self.phase)
            self.steps += 1

    @precondition(lambda self: len(self.followers) < 3)
    @rule()
    def come_late(self) -> None:
        """Another reader comes, and reads from the oldest mark that is left."""
        self.followers.append(Follower(self.writer.path, self.capacity))

    @rule(which=st.integers(0, 2))
    def look(self, which: int) -> None:
        """One of the readers looks."""
        self.followers[which % len(self.followers)].check(self.written, final=False)

    def teardown(self) -> None:
        """The writer ends; each reader takes what is left, and then there is no more."""
        if not hasattr(self, "writer"):
            return
        self.writer.close(1)
        for follower in self.followers:
            follower.check(self.written, final=True)
            follower.check(self.written, final=True)
            follower.reader.close()
        self.directory.cleanup()


TestRing = RingMachine.TestCase
TestRing.settings = settings(max_examples=60, stateful_step_count=25)


class InterruptedReader(RecordingReader):
    """A reader that the writer runs past while it reads."""

    between: Callable[[], None]

    @classmethod
    def of(cls, path: Path, between: Callable[[], None]) -> "InterruptedReader":
        """A reader of the recording at `path`; `between()` is called before each of its reads."""
        reader = cls.__new__(cls)
        reader.__dict__.update(opened(path).__dict__)
        reader.between = between
        return reader

    def _pread(self, offset: int, size: int) -> bytes:
        self.between()
        return super()._pread(offset, size)


def numbers_of(look: Look) -> list[int]:
    """The step numbers that the marks of a look hold."""
    return [word >> layout.OPERAND_SHIFT for word in look.marks[1::2]]


# Two stores a mark and two a lap: pauses cluster where a lap ends, in front of the reader or behind it.
LAP_STORES = 2 * CAPACITY + 2
NEAR_A_LAP = st.builds(lambda laps, off: max(0, laps * LAP_STORES + off), st.integers(0, 3), st.integers(-5, 5))
PAUSES = st.one_of(st.integers(0, 5), NEAR_A_LAP, st.integers(0, 3 * LAP_STORES))


def follow(directory: str, before_looks: list[int], before_reads: list[int], hold: int) -> None:
    """Follow a rank that stores before each look and in the midst of it, and check what the looks give.

    Args:
        directory: where to record.
        before_looks: stores before each look but the last.
        before_reads: stores before each read of a look, one entry a read; none after the last entry.
        hold: stores before the newest one that the reader does not see yet.
    """
    writer, _marker = record_into(Path(directory))
    processor = Processor(writer.words)
    pauses = iter(before_reads)

    def run_past() -> None:
        count = next(pauses, 0)
        if count:
            processor.store(count, hold)

    reader = InterruptedReader.of(writer.path, run_past)
    passed = 0
    for count in before_looks:
        processor.store(count, hold)
        look = reader.look()
        assert numbers_of(look) == list(range(passed + look.lost, passed + look.lost + len(look.marks) // 2))
        passed += look.lost + len(look.marks) // 2
        processor.settle()
    pauses = iter(())
    look = reader.look(final=True)
    assert numbers_of(look) == list(range(passed + look.lost, processor.complete))
    assert reader.errors == 0
    reader.close()
    writer.close(1)


LOOKS = st.lists(PAUSES, min_size=1, max_size=8)
READS = st.lists(PAUSES | st.just(0), max_size=25)


@settings(max_examples=100)
@given(before_looks=LOOKS, before_reads=READS)
def test_writer_that_runs_past_a_look_is_counted(before_looks: list[int], before_reads: list[int]) -> None:
    """A look takes time, and the writer does not wait: a mark of a later lap must not pass for one of an earlier."""
    with tempfile.TemporaryDirectory() as directory:
        follow(directory, before_looks, before_reads, hold=0)


@settings(max_examples=100)
@given(before_looks=LOOKS, before_reads=READS)
def test_store_that_others_overtake_misleads_nobody(before_looks: list[int], before_reads: list[int]) -> None:
    """ARM shows stores in any order: the lap count before the lap's last mark, the last mark's word after its time."""
    with tempfile.TemporaryDirectory() as directory:
        follow(directory, before_looks, before_reads, hold=1)


@pytest.mark.parametrize("stopped_at", range(-3, 4))
@pytest.mark.parametrize("laps", [1, 2, 5])
def test_writer_that_stops_where_a_lap_ends_is_numbered_right(tmp_path: Path, laps: int, stopped_at: int) -> None:
    """A full ring and one just begun anew look the same, and a writer can stop between the two for long."""
    follow(str(tmp_path), [laps * LAP_STORES + stopped_at, 0, 0, 1, 1, 1, 1, 1, 1, LAP_STORES], [], hold=0)


def test_writer_that_outruns_every_try_is_waited_for(tmp_path: Path) -> None:
    """A reader that starves on a busy machine must neither guess nor spin: it says nothing, and the next look does."""
    writer, _marker = record_into(tmp_path)
    processor = Processor(writer.words)
    hurry = [LAP_STORES]
    reader = InterruptedReader.of(writer.path, lambda: processor.store(hurry[0]))

    starved = reader.look()
    hurry[0] = 0
    reader.look()
    rested = reader.look()

    assert (starved.marks, starved.lost) == ([], 0)
    assert len(rested.marks) // 2 + rested.lost > 0
    assert reader.errors == 0
    reader.close()
    writer.close(1)


class StoreLog:
    """Stands in for the ring, of which it takes columns too; keeps every store, in order, by its place in the ring."""

    def __init__(self, stores: list[tuple[int, int]] | None = None, places: range = range(1 << 40)) -> None:
        self.stores = [] if stores is None else stores
        self._places = places

    def __setitem__(self, index: int, value: int) -> None:
        self.stores.append((self._places[index], value))

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return StoreLog(self.stores, self._places[index])
        return next(value for stored, value in reversed(self.stores) if stored == self._places[index])


def test_marker_stores_word_then_time_then_lap() -> None:
    """The time publishes the mark, and the lap count the lap: what they publish must be there before them."""
    log: Any = StoreLog()
    marker = make_marker(threading.get_ident)
    marker.attach(log, CAPACITY)

    for _ in range(CAPACITY // 2 + 1):
        marker.enter(Phase.FORWARD)
        marker.resume(Phase.OTHER)
    for _ in range(CAPACITY):
        marker.step(Phase.OTHER)

    expected = list(itertools.islice(stores_of_steps(CAPACITY), len(log.stores)))
    times = {index: value for index, value in log.stores[: 2 * CAPACITY] if value > 1 << 32}
    assert [index for index, _value in log.stores] == [store.at for store in expected]
    assert len(log.stores) == 2 * LAP_STORES + 4
    assert [value for index, value in log.stores if index == layout.WORD_LAPS] == [1, 2]
    assert log.stores[2 * CAPACITY] == (layout.WORD_LAP_ENDS + 1, max(times.values()))


class Watched(NamedTuple):
    """A recording that this process writes, with its reader."""

    words: memoryview
    reader: RecordingReader
    marker: Marker

    def step(self, times: int) -> None:
        """End `times` steps."""
        for _ in range(times):
            self.marker.step(Phase.OTHER)


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    """A recording of the smallest size, nothing in it."""
    writer, marker = record_into(tmp_path)
    reader = opened(writer.path)
    yield Watched(writer.words, reader, marker)
    reader.close()
    writer.close(1)


@pytest.mark.parametrize("before", [0, 1, CAPACITY - 2, CAPACITY - 1, CAPACITY, CAPACITY + 7, 3 * CAPACITY - 1])
def test_half_stored_mark_is_not_given(watched: Watched, before: int) -> None:
    """A rank killed between the two stores of a mark has not made it: its word with an older time would be a lie."""
    watched.step(before)
    watched.words[FIRST_WORD + 2 * (before % CAPACITY) + 1] = layout.ABORT | Phase.BACKWARD

    looks = [watched.reader.look(), watched.reader.look(), watched.reader.look(final=True)]

    given = [number for look in looks for number in numbers_of(look)]
    lost = sum(look.lost for look in looks)
    assert lost == max(0, before - CAPACITY + layout.HALF_STORED)
    assert given == list(range(lost, before))
    assert watched.reader.errors == 0


def test_mark_is_given_once_it_is_whole(watched: Watched) -> None:
    """The time publishes the mark, and the look after the one that saw it may give it."""
    watched.step(1)
    watched.words[FIRST_WORD + 3] = step_word(1)
    watched.reader.look()
    torn = watched.reader.look()

    watched.words[FIRST_WORD + 2] = watched.words[FIRST_WORD] + 1
    published = watched.reader.look()
    settled = watched.reader.look()

    assert [numbers_of(look) for look in (torn, published, settled)] == [[0], [], [1]]
    assert [look.pending for look in (torn, published, settled)] == [0, 1, 0]


def test_what_the_last_look_saw_is_given_and_no_more(watched: Watched) -> None:
    """Whatever the processor reorders has long settled by the next look; what came since may not have."""
    watched.step(3)
    first = watched.reader.look()
    watched.step(4)
    second = watched.reader.look()

    third = watched.reader.look(final=True)

    assert [numbers_of(look) for look in (first, second, third)] == [[], [0, 1, 2], [3, 4, 5, 6]]
    assert [look.pending for look in (first, second, third)] == [3, 4, 0]


@pytest.mark.parametrize("final", [False, True])
def test_long_look_is_given_in_parts(tmp_path: Path, final: bool) -> None:
    """A relay that comes late to a big ring must not hold all of it in memory, which is the ranks'."""
    writer, marker = record_into(tmp_path, 4 * CAPACITY)
    reader = opened(writer.path)
    for _ in range(2500):
        marker.step(0)
    if not final:
        reader.look()
        marker.step(0)  # not due yet

    looks = [reader.look(final=final, most=1000)]
    while looks[-1].more:
        looks.append(reader.look(final=final, most=1000))

    assert [len(look.marks) // 2 for look in looks] == [1000, 1000, 500]
    assert [word for look in looks for word in look.marks[1::2]] == [step_word(number) for number in range(2500)]
    assert looks[-1].pending == (0 if final else 1)
    reader.close()
    writer.close(1)
