"""Ways to damage a recording, and what must hold of a reader that meets it.

A damage is a list of edits: ["flip", 12], ["truncate", 4096]. So it can be drawn at random, kept in a file and read.
"""

import json
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

from tests.unit.recordings import pairs_of
from trainspan.recording import layout
from trainspan.recording.reader import Look, RecordingReader, Refusal, open_recording

CORPUS = Path(__file__).resolve().parents[1] / "data" / "recordings"
BASES = {"closed": CORPUS / "r00003-a1-p4711-9f3c2a11.ring", "killed": CORPUS / "r00000-a0-p4712-07d1e5b8.ring"}
"""`closed`: three laps and a half, five events, closed in order. `killed`: 300 marks, two events, killed in a phase."""

Edit = list[Any]


class Files(NamedTuple):
    """The bytes of one recording."""

    ring: bytearray
    log: bytearray

    def write(self, path: Path) -> None:
        """Write both, the ring to `path`."""
        path.write_bytes(self.ring)
        path.with_suffix(layout.EVENTS_SUFFIX).write_bytes(self.log)


class Outcome(NamedTuple):
    """What a reader made of a recording. `refusal`: why it read nothing; then the rest is 0."""

    refusal: str | None
    marks: int = 0
    lost: int = 0
    events: int = 0
    errors: int = 0


def base(name: str) -> Files:
    """The bytes of a sound recording: see `BASES`."""
    path = BASES[name]
    return Files(bytearray(path.read_bytes()), bytearray(path.with_suffix(layout.EVENTS_SUFFIX).read_bytes()))


def damage(files: Files, edits: list[Edit]) -> None:
    """Apply `edits` to `files`, in order."""
    for name, *arguments in edits:
        EDITS[name](files, *arguments)


def _flip(files: Files, bit: int) -> None:
    if files.ring:
        files.ring[bit // 8 % len(files.ring)] ^= 1 << bit % 8


def _word(files: Files, index: int, value: int) -> None:
    _put(files.ring, index * layout.WORD_BYTES, struct.pack("<q", value))


def _mark(files: Files, slot: int, time_ns: int, word: int) -> None:
    _put(files.ring, layout.HEADER_BYTES + slot * layout.MARK_BYTES, struct.pack("<2q", time_ns, word))


def _fill(files: Files, start: int, count: int, byte: int) -> None:
    _put(files.ring, start, bytes([byte]) * count)


def _put(ring: bytearray, start: int, patch: bytes) -> None:
    """Overwrite, never extend."""
    end = min(len(ring), start + len(patch))
    if start < end:
        ring[start:end] = patch[: end - start]


def _truncate(files: Files, size: int) -> None:
    del files.ring[size:]


def _extend(files: Files, count: int) -> None:
    files.ring.extend(bytes(count))


def _identity(files: Files, text: str) -> None:
    """Put `text` in place of the identity, signed: what a writer of another kind, or a liar, would have written."""
    encoded = text.encode("utf-8", "surrogatepass")
    _put(files.ring, layout.IDENTITY_OFFSET, encoded.ljust(layout.IDENTITY_MAX_BYTES, b"\0"))
    _word(files, layout.WORD_IDENTITY_BYTES, len(encoded))
    _sign(files)


def _sign(files: Files) -> None:
    """Make the checksum fit what the header now says."""
    if len(files.ring) < layout.HEADER_BYTES:
        return
    _word(files, layout.WORD_HEADER_CRC, 0)
    size = struct.unpack_from("<q", files.ring, layout.WORD_IDENTITY_BYTES * layout.WORD_BYTES)[0]
    identity = files.ring[layout.IDENTITY_OFFSET : layout.HEADER_BYTES][: max(size, 0)]
    _word(files, layout.WORD_HEADER_CRC, crc32(files.ring[: layout.FIXED_HEADER.size] + identity))


def _log(files: Files, text: str) -> None:
    """Append `text` to the event log."""
    files.log.extend(text.encode("utf-8", "surrogatepass"))


def _log_truncate(files: Files, size: int) -> None:
    del files.log[size:]


def _log_flip(files: Files, bit: int) -> None:
    if files.log:
        files.log[bit // 8 % len(files.log)] ^= 1 << bit % 8


EDITS: dict[str, Callable[..., None]] = {
    "flip": _flip,
    "word": _word,
    "mark": _mark,
    "fill": _fill,
    "truncate": _truncate,
    "extend": _extend,
    "identity": _identity,
    "sign": _sign,
    "log": _log,
    "log_truncate": _log_truncate,
    "log_flip": _log_flip,
}


def read_through(path: Path, later: Callable[[], None] = lambda: None) -> Outcome:
    """Read the recording at `path` to its end as a relay would, and check what must hold whatever its bytes are.

    Args:
        path: the ring file.
        later: called when the reader has looked once.
    """
    reader = open_recording(path)
    if isinstance(reader, Refusal):
        assert reader.path == path
        assert reader.reason
        return Outcome(reader.reason)
    looks = [reader.look()]
    events = reader.events()
    later()
    looks += [reader.look(), reader.look(), reader.look(final=True), reader.look(final=True)]
    events += reader.events() + reader.events()
    _check_looks(reader, looks)
    _check_events(events)
    assert not reader.writer_lives()
    assert reader.closed_ns() is None or (reader.closed_ns() or 0) > 0
    assert reader.events_dropped() >= 0
    marks, lost = sum(len(look.marks) // 2 for look in looks), sum(look.lost for look in looks)
    outcome = Outcome(None, marks, lost, len(events), reader.errors)
    reader.close()
    return outcome


def _check_looks(reader: RecordingReader, looks: list[Look]) -> None:
    marks = [mark for look in looks for mark in pairs_of(look)]
    times = [time_ns for time_ns, _word in marks]
    assert times == sorted(times)
    assert all(time_ns > 0 for time_ns in times)
    assert len(marks) <= 2 * reader.capacity
    assert all(look.lost >= 0 and look.pending >= 0 for look in looks)
    assert looks[-1].marks == []


def _check_events(events: list[dict[str, Any]]) -> None:
    for event in events:
        assert isinstance(event["event"], str)
        assert isinstance(event["ts"], int)
        assert 0 <= event["ts"] < 1 << 63
        json.dumps(event, ensure_ascii=False).encode()


def draw_edits(draw: random.Random) -> list[Edit]:
    """Some edits, at random: where the format has its joints rather than anywhere."""
    return [draw.choice(_DRAWS)(draw) for _ in range(draw.choice((1, 1, 1, 2, 3, 6)))]


_LIVE_WORDS = range(layout.WORD_LAPS, layout.WORD_LAP_ENDS + layout.LAP_ENDS)
_RING_BYTES = layout.HEADER_BYTES + layout.CAPACITY_MIN * layout.MARK_BYTES
_LINES = (
    "\n",
    "not JSON\n",
    "[1,2]\n",
    "{}\n",
    '{"ts":1}\n',
    '{"ts":-1,"event":"x"}\n',
    '{"ts":true,"event":"x"}\n',
    '{"ts":1e3,"event":"x"}\n',
    '{"ts":1,"event":7}\n',
    '{"ts":1,"event":"half \\ud800"}\n',
    '{"ts":1,"event":"x","a":NaN}\n',
    '{"ts":' + "9" * 5000 + ',"event":"x"}\n',
    '{"ts":1,"event":"x","a":' + "[" * 100_000 + "\n",
    "\0\0\0\0\n",
    '{"ts":1,"event":"torn',
    '{"ts":1,"event":"sound"}\n',
)


def _draw_value(draw: random.Random) -> int:
    near = draw.choice((0, 1, 2, 3, 4, 5, layout.CAPACITY_MIN, 1 << 34, 1 << 44, 1 << 62))
    return draw.choice((near, -near, near + draw.randint(-3, 3), draw.getrandbits(64) - (1 << 63)))


def _draw_mark(draw: random.Random) -> Edit:
    return ["mark", draw.randrange(layout.CAPACITY_MIN), _draw_value(draw), _draw_value(draw)]


def _draw_identity(draw: random.Random) -> Edit:
    fields = json.loads(bytes(base("killed").ring[layout.IDENTITY_OFFSET :]).partition(b"\0")[0])
    name = draw.choice(list(fields))
    values: tuple[Any, ...] = (
        "",
        "..",
        "a/b",
        "\0",
        "\ud800",
        -1,
        1 << 63,
        1.5,
        True,
        None,
        [],
        {"a": 1},
        "9" * 2000,
        fields[name],
    )
    fields[draw.choice((name, "more"))] = draw.choice(values)
    return ["identity", json.dumps(fields, ensure_ascii=draw.random() < 0.5)[: draw.choice((3000, 40))]]


_DRAWS: tuple[Callable[[random.Random], Edit], ...] = (
    lambda draw: ["flip", draw.randrange(8 * _RING_BYTES)],
    lambda draw: ["flip", draw.randrange(8 * layout.FIXED_HEADER.size)],
    lambda draw: ["word", draw.choice((*_LIVE_WORDS, layout.WORD_LAPS)), _draw_value(draw)],
    lambda draw: ["word", draw.randrange(8), _draw_value(draw)],
    lambda _draw: ["sign"],
    _draw_mark,
    lambda draw: ["fill", draw.randrange(_RING_BYTES), draw.randrange(9000), draw.choice((0, 0, 255, 127))],
    lambda draw: ["truncate", draw.choice((draw.randrange(_RING_BYTES), draw.randrange(128), layout.HEADER_BYTES))],
    lambda draw: ["extend", draw.choice((1, 8, 16, layout.CAPACITY_MIN * layout.MARK_BYTES))],
    _draw_identity,
    lambda draw: ["log", draw.choice(_LINES)],
    lambda draw: ["log_truncate", draw.randrange(400)],
    lambda draw: ["log_flip", draw.randrange(3000)],
)
