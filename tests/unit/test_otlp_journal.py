"""The file that is run folder, spool and replay at once: what is put stays, once, and within its bound."""

import multiprocessing
import os
import resource
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainspan.errors import RecordingRefused
from trainspan.relay.otlp import cursor
from trainspan.relay.otlp.claims import claim, claim_file, journals_in
from trainspan.relay.otlp.complaints import Complaints
from trainspan.relay.otlp.cursor import Cursor
from trainspan.relay.otlp.journal import TRIM_BYTES, Journal, Line

BOUND = 1 << 20


class Book:
    """A journal and what it complained of."""

    def __init__(self, folder: Path, bound_bytes: int = BOUND, node_rank: int = 0):
        self.said: list[str] = []
        path, claimed = claim(folder, "traces", node_rank)
        self.journal = Journal(path, claimed, bound_bytes, Complaints(self.said.append))

    def deliver(self, count: int) -> list[bytes | None]:
        """The texts of the next lines, as many as `count`, which are delivered then."""
        return [self._deliver_one() for _ in range(count)]

    def _deliver_one(self) -> bytes | None:
        line = self.first()
        self.journal.advance(line, delivered=1)
        return line.text

    def first(self) -> Line:
        """The first line that is not delivered; there is one."""
        line = self.journal.first()
        assert line is not None
        return line

    def undelivered(self) -> list[bytes | None]:
        """The texts of all lines that are not delivered."""
        texts = []
        line = self.journal.first()
        while line is not None:
            texts.append(line.text)
            line = self.journal.after(line)
        return texts


@contextmanager
def book(folder: Path, bound_bytes: int = BOUND) -> Iterator[Book]:
    """An open journal, closed at the end."""
    opened = Book(folder, bound_bytes)
    try:
        yield opened
    finally:
        opened.journal.close()


def test_lines_come_back_in_order(tmp_path: Path) -> None:
    """Cumulative metrics that arrive out of order are refused by Prometheus."""
    with book(tmp_path) as opened:
        for number in range(3):
            opened.journal.append(b"line %d" % number)

        undelivered = opened.undelivered()

    assert undelivered == [b"line 0", b"line 1", b"line 2"]
    assert (tmp_path / "traces.jsonl").read_bytes() == b"line 0\nline 1\nline 2\n"


def test_file_is_private(tmp_path: Path) -> None:
    """Span attributes can name paths and models of a user, on a shared file system."""
    with book(tmp_path) as opened:
        opened.journal.append(b"x")
        opened.deliver(1)

    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}

    assert modes == {"traces.jsonl": 0o600, "traces.jsonl.cursor": 0o600}


@pytest.mark.parametrize(("node_rank", "name"), [(0, "traces.jsonl"), (3, "traces.3.jsonl")])
def test_nodes_have_files_of_their_own(tmp_path: Path, node_rank: int, name: str) -> None:
    """Nodes share the run folder, and a lock that two nodes fight for is one of them without telemetry."""
    opened = Book(tmp_path, node_rank=node_rank)

    opened.journal.close()

    assert [path.name for path in journals_in(tmp_path)] == [name]


def test_delivery_goes_on_where_the_last_process_stopped(tmp_path: Path) -> None:
    """A relay that is restarted must neither repeat what arrived nor forget what did not."""
    with book(tmp_path) as before:
        for number in range(3):
            before.journal.append(b"line %d" % number)
        before.deliver(2)

    with book(tmp_path) as after:
        undelivered = after.undelivered()

    assert undelivered == [b"line 2"]


def test_copied_folder_is_not_delivered_again(tmp_path: Path) -> None:
    """A run folder of an air-gapped cluster is carried to where an endpoint is, and its inodes are not."""
    there = tmp_path / "there"
    there.mkdir()
    with book(tmp_path) as before:
        before.journal.append(b"line 0")
        before.journal.append(b"line 1")
        before.deliver(1)
    for path in tmp_path.glob("traces*"):
        (there / path.name).write_bytes(path.read_bytes())

    with book(there) as after:
        undelivered = after.undelivered()

    assert undelivered == [b"line 1"]


@pytest.mark.parametrize("torn", [b"half", b"\0" * 300_000, b'{"resourceSpans":[{"res'])
def test_torn_tail_is_cut_off_and_counted(tmp_path: Path, torn: bytes) -> None:
    """A host that crashed leaves half a line; the next line must not be glued to it."""
    (tmp_path / "traces.jsonl").write_bytes(b"whole\n" + torn)

    with book(tmp_path) as opened:
        opened.journal.append(b"next")
        undelivered = opened.undelivered()

    assert undelivered == [b"whole", b"next"]
    assert opened.journal.dropped == 1
    assert len(opened.said) == 1


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"null",
        b'{"offset_bytes": "x"}',
        b'{"offset_bytes": 9999, "lines": 1, "first_line_crc": 0}',
        b"[" * 9999,
        b'{"offset_bytes": 1e999, "lines": 1, "first_line_crc": 0}',
    ],
)
def test_hostile_cursor_counts_as_none(tmp_path: Path, content: bytes) -> None:
    """To deliver twice is better than to lose, or to stop in the middle of a line."""
    (tmp_path / "traces.jsonl").write_bytes(b"first\nsecond\n")
    (tmp_path / "traces.jsonl.cursor").write_bytes(content)

    with book(tmp_path) as opened:
        undelivered = opened.undelivered()

    assert undelivered == [b"first", b"second"]


def test_cursor_of_the_file_before_a_cut_counts_as_none(tmp_path: Path) -> None:
    """A process that dies between the cut and the new cursor leaves the old one, which points anywhere."""
    with book(tmp_path) as before:
        before.journal.append(b"old one")
        before.deliver(1)
    (tmp_path / "traces.jsonl").write_bytes(b"new one\nnew two\n")

    with book(tmp_path) as after:
        undelivered = after.undelivered()

    assert undelivered == [b"new one", b"new two"]


def test_oldest_lines_go_when_it_is_full(tmp_path: Path) -> None:
    """An outage of a night must not fill a disk, and the newest is what somebody will look at in the morning."""
    with book(tmp_path, bound_bytes=1000) as opened:
        for number in range(30):
            opened.journal.append(b"%099d" % number)
        undelivered = opened.undelivered()

    kept = [int(text or b"") for text in undelivered]
    assert kept == list(range(30 - len(kept), 30))
    assert len(kept) + opened.journal.dropped == 30
    assert 700 <= (tmp_path / "traces.jsonl").stat().st_size <= 1000
    assert len(opened.said) == 1


def test_delivered_front_goes_first(tmp_path: Path) -> None:
    """Nothing may be lost for room that delivered lines take up."""
    with book(tmp_path, bound_bytes=1000) as opened:
        for number in range(10):
            opened.journal.append(b"%099d" % number)
        opened.deliver(6)

        opened.journal.append(b"%099d" % 10)
        undelivered = opened.undelivered()

    assert [int(text or b"") for text in undelivered] == [6, 7, 8, 9, 10]
    assert opened.journal.dropped == 0


def test_line_cut_off_while_it_is_sent_moves_nothing(tmp_path: Path) -> None:
    """The sender holds a line while the bound drops it: its answer must not skip what is there now."""
    with book(tmp_path, bound_bytes=1000) as opened:
        for number in range(10):
            opened.journal.append(b"%099d" % number)
        in_flight = opened.first()
        opened.journal.append(b"%099d" % 10)

        opened.journal.advance(in_flight, delivered=1)
        undelivered = opened.undelivered()

    assert [int(text or b"") for text in undelivered] == [3, 4, 5, 6, 7, 8, 9, 10]


def test_line_larger_than_the_bound_is_dropped(tmp_path: Path) -> None:
    """It must not take all others with it."""
    with book(tmp_path, bound_bytes=1000) as opened:
        opened.journal.append(b"small")
        kept = opened.journal.append(b"x" * 1000)
        undelivered = opened.undelivered()

    assert not kept
    assert undelivered == [b"small"]
    assert opened.journal.dropped == 1


def test_delivered_journal_begins_anew(tmp_path: Path) -> None:
    """A run of weeks with a working endpoint must not keep everything twice."""
    with book(tmp_path, bound_bytes=10 * TRIM_BYTES) as opened:
        opened.journal.append(b"x" * TRIM_BYTES)
        opened.deliver(1)
        opened.journal.trim()
        opened.journal.append(b"next")
        undelivered = opened.undelivered()

    assert undelivered == [b"next"]
    assert (tmp_path / "traces.jsonl").read_bytes() == b"next\n"


def test_file_of_a_live_process_is_left_alone(tmp_path: Path) -> None:
    """Two relays of one node (a restart while the old one still drains) must not write into one file."""
    with book(tmp_path) as here, multiprocessing.get_context("spawn").Pool(1) as elsewhere:
        here.journal.append(b"ours")
        name = elsewhere.apply(_write_elsewhere, (tmp_path,))

    assert name == f"traces.{_host()}-{name.rpartition('-')[2].removesuffix('.jsonl')}.jsonl"
    assert (tmp_path / "traces.jsonl").read_bytes() == b"ours\n"
    assert (tmp_path / name).read_bytes() == b"theirs\n"


def _write_elsewhere(folder: Path) -> str:
    with book(folder) as opened:
        opened.journal.append(b"theirs")
        return opened.journal.path.name


def _host() -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in os.uname().nodename)[:64]


def test_lock_survives_a_cut(tmp_path: Path) -> None:
    """The copy that replaces a full file is another file; without a lock of its own it belongs to nobody."""
    with book(tmp_path, bound_bytes=1000) as opened, multiprocessing.get_context("spawn").Pool(1) as elsewhere:
        for number in range(30):
            opened.journal.append(b"%099d" % number)

        held = elsewhere.apply(_is_held, (tmp_path / "traces.jsonl",))

    assert held


def _is_held(path: Path) -> bool:
    return claim_file(path, unlocked=False) is None


def test_same_process_cannot_claim_twice(tmp_path: Path) -> None:
    """The kernel would grant it, and free the lock of both when one is closed."""
    with book(tmp_path) as opened:
        again = claim_file(opened.journal.path, unlocked=False)

    assert again is None


def test_link_is_not_followed(tmp_path: Path) -> None:
    """A link in a folder that others can write to would make us write into a file of theirs to choose."""
    (tmp_path / "elsewhere").write_bytes(b"")
    (tmp_path / "traces.jsonl").symlink_to(tmp_path / "elsewhere")

    with pytest.raises(RecordingRefused, match=r"traces\.jsonl"):
        Book(tmp_path)


@contextmanager
def file_size_limit(size_bytes: int) -> Iterator[None]:
    """The kernel takes no more than `size_bytes` into any file: what a full disk does to a write."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_full_disk_is_counted_and_leaves_no_half_line(tmp_path: Path) -> None:
    """The relay goes on, says it once, and what it writes when there is room again can be read."""
    with book(tmp_path) as opened:
        opened.journal.append(b"x" * 299)
        with file_size_limit(500):
            kept = [opened.journal.append(b"y" * 299), opened.journal.append(b"y" * 299)]
        opened.journal.append(b"later")
        undelivered = opened.undelivered()

    assert kept == [False, False]
    assert undelivered == [b"x" * 299, b"later"]
    assert opened.journal.dropped == 2
    assert len(opened.said) == 1


def test_closed_journal_takes_nothing(tmp_path: Path) -> None:
    """A sender that hangs in a silent server comes back after the file belongs to somebody else."""
    opened = Book(tmp_path)
    opened.journal.append(b"sent")
    line = opened.first()
    opened.journal.close()

    # It has the number that the journal's descriptor had.
    with (tmp_path / "of somebody else").open("wb"):
        kept = opened.journal.append(b"late")
        opened.journal.advance(line, delivered=1)

    assert opened.journal.first() is None
    assert not kept
    assert (tmp_path / "of somebody else").stat().st_size == 0
    assert not cursor.path_of(opened.journal.path).exists()


steps = st.lists(
    st.tuples(st.sampled_from(["append", "deliver", "trim", "reopen"]), st.integers(0, 400)), min_size=1, max_size=60
)


@given(steps=steps)
def test_nothing_is_lost_twice_or_out_of_order(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]]
) -> None:
    """Whatever the order of puts, deliveries, cuts and restarts: each line is delivered once, dropped or there."""
    folder = tmp_path_factory.mktemp("journal")
    opened = Book(folder, bound_bytes=2000)
    put, dropped = 0, 0
    delivered: list[int] = []

    for what, size in steps:
        if what == "append":
            opened.journal.append(b"%d " % put + b"." * size)
            put += 1
        elif what == "deliver" and opened.journal.first() is not None:
            delivered += [_number(text) for text in opened.deliver(1)]
        elif what == "trim":
            opened.journal.trim()
        elif what == "reopen":
            dropped += opened.journal.dropped
            opened.journal.close()
            opened = Book(folder, bound_bytes=2000)
    waiting = [_number(text) for text in opened.undelivered()]
    dropped += opened.journal.dropped
    opened.journal.close()

    assert delivered + waiting == sorted(set(delivered + waiting))
    assert len(delivered) + len(waiting) + dropped == put
    assert (folder / "traces.jsonl").stat().st_size <= 2000


def _number(text: bytes | None) -> int:
    assert text is not None
    return int(text.split()[0])


def test_cursor_that_does_not_fit_leaves_the_one_before(tmp_path: Path) -> None:
    """Half a cursor is none: the next relay would deliver everything again, from the beginning of the file."""
    path = cursor.path_of(tmp_path / "traces.jsonl")
    before = Cursor(100, 7, 0x89ABCDEF)
    cursor.save(path, before)

    with file_size_limit(20), pytest.raises(OSError, match="20 of"):
        cursor.save(path, Cursor(200, 9, 0x89ABCDEF))

    assert cursor.load(path) == before
