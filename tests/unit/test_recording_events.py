"""The event log: each line comes once, and what is no event of ours is counted."""

import itertools
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit import recording_programs as programs
from tests.unit.recording_programs import Program
from tests.unit.recordings import CAPACITY, opened, record_into
from trainspan.recording import layout
from trainspan.recording.reader import RecordingReader
from trainspan.recording.writer import RecordingWriter

SOUND = b'{"ts":1,"event":"sound"}\n'


class Watched(NamedTuple):
    """A recording that this process writes, with its reader and the path of its event log."""

    writer: RecordingWriter
    reader: RecordingReader
    log: Path

    def append(self, text: bytes) -> None:
        """Append `text` as somebody else would, past the writer."""
        with self.log.open("ab") as log:
            log.write(text)


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    """A recording without an event."""
    writer, _marker = record_into(tmp_path)
    reader = opened(writer.path)
    yield Watched(writer, reader, writer.path.with_suffix(layout.EVENTS_SUFFIX))
    reader.close()
    writer.close(1)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
EVENTS = st.builds(
    lambda fields, ts, name: {**fields, "ts": ts, "event": name},
    st.dictionaries(st.text(), JSON, max_size=3),
    st.integers(0, (1 << 63) - 1),
    st.text(),
)


@given(batches=st.lists(st.lists(EVENTS, max_size=4), max_size=5))
def test_each_event_comes_once_and_as_it_was(batches: list[list[dict[str, Any]]]) -> None:
    """A checkpoint counted twice, or a name that lost its umlaut, is a wrong fact."""
    with tempfile.TemporaryDirectory() as directory:
        writer, _marker = record_into(Path(directory))
        reader = opened(writer.path)
        seen = []

        for batch in batches:
            kept = [writer.append_event(event) for event in batch]
            assert all(kept)
            seen.append(reader.events())

        assert seen == batches
        assert (reader.events(), reader.errors, reader.events_dropped()) == ([], 0, 0)
        reader.close()
        writer.close(1)


def test_torn_line_waits_for_its_end(watched: Watched) -> None:
    """A line is there when its end is: half of an exception's message is no fact yet."""
    line = json.dumps({"ts": 1, "event": "exception", "type": "ValueError"}).encode() + b"\n"
    seen = []

    for piece in (line[:1], line[1:30], line[30:-1], line[-1:]):
        watched.append(piece)
        seen.append(len(watched.reader.events()))

    assert seen == [0, 0, 0, 1]
    assert watched.reader.errors == 0


HOSTILE = {
    "empty": b"\n",
    "not JSON": b"step 4 took 3 s\n",
    "cut in the middle": b'{"ts":1,"event":"x\n',
    "not a dict": b"[1,2,3]\n",
    "null": b"null\n",
    "a bare number": b"1e999\n",
    "no name": b'{"ts":1}\n',
    "no time": b'{"event":"x"}\n',
    "name of the wrong type": b'{"ts":1,"event":["x"]}\n',
    "time of the wrong type": b'{"ts":"now","event":"x"}\n',
    "time that is true": b'{"ts":true,"event":"x"}\n',
    "time that is no whole number": b'{"ts":1.5,"event":"x"}\n',
    "time before all time": b'{"ts":-1,"event":"x"}\n',
    "time after all time": b'{"ts":9223372036854775808,"event":"x"}\n',
    "time of 5000 digits": b'{"event":"x","ts":' + b"9" * 5000 + b"}\n",
    "half a character": b'{"ts":1,"event":"\\ud800"}\n',
    "half a character deep inside": b'{"ts":1,"event":"x","a":[{"b":"\\udfff"}]}\n',
    "no UTF-8": b'{"ts":1,"event":"\xff\xfe"}\n',
    "NUL bytes": b"\0" * 4096 + b"\n",
    "deep nesting, closed": b'{"ts":1,"event":"x","a":' + b"[" * 100_000 + b"]" * 100_000 + b"}\n",
    "deep nesting, open": b'{"a":' * 100_000 + b"\n",
    "longer than a line may be": b'{"ts":1,"event":"' + b"x" * layout.EVENT_MAX_BYTES + b'"}\n',
}


@pytest.mark.parametrize("line", HOSTILE.values(), ids=HOSTILE)
def test_line_that_is_no_event_is_counted(watched: Watched, line: bytes) -> None:
    """One bad line must cost itself: not the relay, not the lines around it."""
    watched.append(SOUND + line + SOUND)

    events = watched.reader.events()

    assert [event["event"] for event in events] == ["sound", "sound"]
    assert watched.reader.errors == 1


def test_line_without_an_end_is_not_waited_for_forever(watched: Watched) -> None:
    """Something that is no event log would be read again at every look, and what comes after it never."""
    watched.append(b"x" * (layout.EVENTS_MAX_BYTES + 100))
    first = watched.reader.events()
    errors = watched.reader.errors
    watched.append(b"\n" + SOUND)

    second = watched.reader.events()

    assert (first, errors) == ([], 1)
    assert [event["event"] for event in second] == ["sound"]


def test_log_that_shrinks_is_counted_and_followed_on(watched: Watched) -> None:
    """Somebody empties the log to make room: what was read stays read, and what comes is new."""
    watched.append(SOUND * 3)
    before = watched.reader.events()
    os.truncate(watched.log, 0)
    shrunk = watched.reader.events()
    watched.append(SOUND)

    after = watched.reader.events()

    assert [len(events) for events in (before, shrunk, after)] == [3, 0, 1]
    assert watched.reader.errors == 1


def _directory(path: Path) -> None:
    path.mkdir()


def _symlink(path: Path) -> None:
    target = path.with_name("secret")
    target.write_bytes(SOUND)
    path.symlink_to(target)


@pytest.mark.parametrize("plant", [os.mkfifo, _directory, _symlink], ids=["fifo", "directory", "symlink"])
def test_something_else_under_the_log_s_name_is_not_read(watched: Watched, plant: Any) -> None:
    """A FIFO would hold the relay up for good, and a link would read a file that is none of ours."""
    watched.log.unlink()
    plant(watched.log)

    events = watched.reader.events()

    assert (events, watched.reader.errors) == ([], 1)


@pytest.mark.skipif(
    os.geteuid() != 0, reason="only root gives files away; shows that a log of another user is not read"
)
def test_log_of_another_user_is_not_read(watched: Watched) -> None:
    """Who can plant a log can tell lies about a run."""
    watched.append(SOUND)
    os.chown(watched.log, 12345, -1)

    events = watched.reader.events()

    assert (events, watched.reader.errors) == ([], 1)


def test_log_that_is_gone_holds_no_event(watched: Watched) -> None:
    """Whoever cleans up takes both files, in any order."""
    watched.log.unlink()

    events = watched.reader.events()

    assert (events, watched.reader.errors) == ([], 0)


def test_bound_of_the_log_is_kept_and_counted(watched: Watched) -> None:
    """A training loop that reports an exception in every step must not fill the host's memory."""
    event = {"ts": 1, "event": "x" * (layout.EVENT_MAX_BYTES - 100)}
    times = layout.EVENTS_MAX_BYTES // len(json.dumps(event)) + 3

    kept = [watched.writer.append_event(event) for _ in range(times)]

    assert watched.log.stat().st_size <= layout.EVENTS_MAX_BYTES
    assert kept == sorted(kept, reverse=True)
    assert len(watched.reader.events()) == sum(kept)
    assert watched.reader.events_dropped() == times - sum(kept) >= 3


def _circle() -> dict[str, Any]:
    event: dict[str, Any] = {"ts": 1, "event": "circle"}
    event["self"] = event
    return event


def _deep() -> dict[str, Any]:
    nested: list[Any] = []
    for _ in range(100_000):
        nested = [nested]
    return {"ts": 1, "event": "deep", "nested": nested}


@pytest.mark.parametrize(
    "event",
    [{"ts": 1, "event": "key", (1, 2): 3}, _circle(), _deep(), {"ts": 1, "event": "x" * layout.EVENT_MAX_BYTES}],
    ids=["key that is no text", "circle", "deep nesting", "longer than a line may be"],
)
def test_event_that_makes_no_line_is_dropped_and_counted(watched: Watched, event: dict[str, Any]) -> None:
    """What a user hands in may be anything, and nothing of it may raise into the training loop."""
    kept = [watched.writer.append_event(event), watched.writer.append_event({"ts": 2, "event": "sound"})]

    assert kept == [False, True]
    assert [event["event"] for event in watched.reader.events()] == ["sound"]
    assert (watched.reader.events_dropped(), watched.reader.errors) == (1, 0)


def test_text_that_is_no_text_is_mended_by_the_writer(watched: Watched) -> None:
    """A file name that is no UTF-8 comes as half characters, which OTLP refuses with everything beside them."""
    watched.writer.append_event({"ts": 1, "event": "checkpoint", "path": os.fsdecode(b"model-\xff.pt")})

    events = watched.reader.events()

    assert events == [{"ts": 1, "event": "checkpoint", "path": "model-?.pt"}]
    assert watched.reader.errors == 0


def test_values_json_does_not_know_become_text(watched: Watched) -> None:
    """A user's event may hold a path or a tensor: its text is better than no event."""
    watched.writer.append_event({"ts": 1, "event": "saved", "path": Path("/a/b")})

    events = watched.reader.events()

    assert events == [{"ts": 1, "event": "saved", "path": "/a/b"}]


@pytest.mark.parametrize("room_bytes", [5_000, 5_050])
def test_full_disk_drops_events_and_nothing_else(tmp_path: Path, room_bytes: int) -> None:
    """A disk fills up in the middle of a line; that line is dropped whole, and training goes on."""
    with Program(programs.append_until_full, tmp_path, CAPACITY, room_bytes) as program:
        path = Path(program.said())
        kept = [int(number) for number in program.said().split()]
        assert program.ended() == 0
    reader = opened(path)

    events = reader.events()

    assert [event["ts"] for event in events] == kept
    assert kept[-1] == 101
    assert len(kept) < 50
    assert list(itertools.pairwise(kept[:-1])) == [(number, number + 1) for number in range(1, len(kept) - 1)]
    assert (reader.events_dropped(), reader.errors) == (101 - len(kept), 0)
    reader.close()
