"""One line of time, painted: segments that never overlap, each under one code, with sums over any window.

Painting takes the stronger claim at every instant (`Palette.keys`), so the picture depends on what was painted and
not on the order. Painting at the end, which is nearly always, costs O(1); in the middle, the chunks it touches.
A window costs two bisections and at most two chunks.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeAlias

from trainspan.relay.goodput.states import UNCOVERED

CHUNK_SEGMENTS = 192

Sums = dict[int, int]
Segment = tuple[int, int, int]
"""(start_ns, end_ns, code)."""

Longest: TypeAlias = Callable[[int], int]
"""How long, in ns, what begins at a time may become when it is told as one."""


class _Chunk:
    """Some neighbouring segments. Each ends where the next begins, the last where the next chunk begins."""

    __slots__ = ("codes", "starts", "sums")

    def __init__(self) -> None:
        self.starts = array("q")
        self.codes = bytearray()
        self.sums: Sums = {}


class Track:
    """A line of time from `start_ns` to `end_ns`, each instant under one code; `UNCOVERED`: nothing painted."""

    __slots__ = ("_chunks", "_edges", "_keys", "_newest", "_prefix", "end_ns")

    def __init__(self, keys: list[tuple[int, int, str]]) -> None:
        self._keys = keys
        self.clear()

    def clear(self) -> None:
        """Nothing is painted any more."""
        self._chunks: list[_Chunk] = []
        self._edges: list[int] = []
        self._newest = _Chunk()
        self._prefix: list[Sums] = [{}]
        self.end_ns = 0

    @property
    def start_ns(self) -> int | None:
        """Where the first segment begins, or None when there is none."""
        return self._edges[0] if self._edges else None

    def paint(self, start_ns: int, end_ns: int, code: int) -> None:
        """Claim [start_ns, end_ns) for `code`, where no stronger claim stands."""
        if end_ns <= start_ns:
            return
        if not self._chunks or start_ns >= self.end_ns:
            self.append(start_ns, end_ns, code)
        else:
            self._repaint(start_ns, end_ns, code)

    def append(self, start_ns: int, end_ns: int, code: int) -> None:
        """`paint` where nothing has been painted at or after `start_ns`, and the stretch is not empty."""
        if self._chunks and start_ns > self.end_ns:
            self._push(self.end_ns, start_ns, UNCOVERED)
        self._push(start_ns, end_ns, code)

    def extend(self, segments: Iterable[Segment]) -> None:
        """`append` all of them."""
        newest, end = self._newest, self.end_ns
        for start_ns, end_ns, code in segments:
            codes = newest.codes
            if start_ns == end and codes and (codes[-1] == code or len(codes) < CHUNK_SEGMENTS):
                if codes[-1] != code:
                    newest.starts.append(start_ns)
                    codes.append(code)
                newest.sums[code] = newest.sums.get(code, 0) + end_ns - start_ns
                self.end_ns = end_ns
            else:
                self.append(start_ns, end_ns, code)
                newest = self._newest
            end = end_ns

    def _push(self, start_ns: int, end_ns: int, code: int) -> None:
        chunk = self._newest
        codes = chunk.codes
        if not codes or codes[-1] != code:
            if not codes or len(codes) >= CHUNK_SEGMENTS:
                chunk = self._newest = _Chunk()
                self._chunks.append(chunk)
                self._edges.append(start_ns)
            chunk.starts.append(start_ns)
            chunk.codes.append(code)
        sums = chunk.sums
        sums[code] = sums.get(code, 0) + end_ns - start_ns
        self.end_ns = end_ns

    def _repaint(self, start_ns: int, end_ns: int, code: int) -> None:
        first = max(bisect_right(self._edges, start_ns) - 1, 0)
        last = max(bisect_right(self._edges, end_ns - 1), first + 1)
        if last == first + 1 and self._edges[first] <= start_ns and end_ns <= self._end_of(first):
            self._splice(first, start_ns, end_ns, code)
            return
        old = [segment for place in range(first, last) for segment in self._segments_of(place)]
        self._replace(first, last, _merged(_claimed(old, start_ns, end_ns, code, self._keys)))

    def _splice(self, place: int, start_ns: int, end_ns: int, code: int) -> None:
        """Claim a stretch inside one chunk; only the segments it touches, and their neighbours, are looked at."""
        chunk = self._chunks[place]
        first = max(bisect_right(chunk.starts, start_ns) - 2, 0)
        last = min(bisect_left(chunk.starts, end_ns) + 1, len(chunk.codes))
        ends = chunk.starts[first + 1 : last + 1]
        if last == len(chunk.codes):
            ends.append(self._end_of(place))
        old = list(zip(chunk.starts[first:last], ends, chunk.codes[first:last], strict=True))
        new = _merged(_claimed(old, start_ns, end_ns, code, self._keys))
        chunk.starts[first:last] = array("q", [segment[0] for segment in new])
        chunk.codes[first:last] = bytes(segment[2] for segment in new)
        for begin_ns, finish_ns, held in old:
            chunk.sums[held] -= finish_ns - begin_ns
        for begin_ns, finish_ns, held in new:
            chunk.sums[held] = chunk.sums.get(held, 0) + finish_ns - begin_ns
        del self._prefix[place + 1 :]
        if len(chunk.codes) > 2 * CHUNK_SEGMENTS:
            self._replace(place, place + 1, list(self._segments_of(place)))

    def _end_of(self, place: int) -> int:
        """Where the chunk at `place` ends."""
        return self._edges[place + 1] if place + 1 < len(self._edges) else self.end_ns

    def _segments_of(self, place: int) -> Iterator[Segment]:
        chunk = self._chunks[place]
        ends = chunk.starts[1:]
        ends.append(self._end_of(place))
        return zip(chunk.starts, ends, chunk.codes, strict=True)

    def _replace(self, first: int, last: int, segments: list[Segment]) -> None:
        """Put `segments` where the chunks [first, last) were."""
        if last == len(self._chunks):
            self.end_ns = segments[-1][1]
        chunks = [_chunk_of(segments[at : at + CHUNK_SEGMENTS]) for at in range(0, len(segments), CHUNK_SEGMENTS)]
        self._chunks[first:last] = chunks
        self._edges[first:last] = [chunk.starts[0] for chunk in chunks]
        self._newest = self._chunks[-1]
        del self._prefix[first + 1 :]

    def total(self) -> Sums:
        """ns under each code, over the whole line."""
        return self.before(self.end_ns)

    def before(self, time_ns: int) -> Sums:
        """ns under each code before `time_ns`. Cost: O(log n) and one chunk."""
        place = bisect_right(self._edges, time_ns) - 1
        if place < 0:
            return {}
        sums = dict(self._sums_before(place))
        if time_ns >= self.end_ns:
            add(sums, self._chunks[place].sums)
        elif bisect_right(self._chunks[place].starts, time_ns) * 2 < len(self._chunks[place].codes):
            for start_ns, end_ns, code in self._segments_of(place):
                if start_ns >= time_ns:
                    break
                sums[code] = sums.get(code, 0) + min(end_ns, time_ns) - start_ns
        else:
            self._sum_backwards(place, time_ns, sums)
        return sums

    def _sum_backwards(self, place: int, time_ns: int, sums: Sums) -> None:
        """Add the chunk at `place` to `sums`, less what it holds from `time_ns` on."""
        chunk = self._chunks[place]
        add(sums, chunk.sums)
        end_ns = self._end_of(place)
        for start_ns, code in zip(reversed(chunk.starts), reversed(chunk.codes), strict=True):
            if end_ns <= time_ns:
                break
            sums[code] -= end_ns - max(start_ns, time_ns)
            end_ns = start_ns

    def _sums_before(self, place: int) -> Sums:
        prefix = self._prefix
        while len(prefix) <= place:
            sums = dict(prefix[-1])
            add(sums, self._chunks[len(prefix) - 1].sums)
            prefix.append(sums)
        return prefix[place]

    def sums(self, start_ns: int, end_ns: int) -> Sums:
        """ns under each code in [start_ns, end_ns); what is beyond the line is in none."""
        sums = self.before(end_ns)
        for code, length_ns in self.before(start_ns).items():
            sums[code] -= length_ns
        return sums

    def segments(self, start_ns: int, end_ns: int) -> Iterator[Segment]:
        """The segments in [start_ns, end_ns), in order, cut at its ends."""
        place = max(bisect_right(self._edges, start_ns) - 1, 0)
        while place < len(self._chunks) and self._edges[place] < end_ns:
            for begin_ns, finish_ns, code in self._segments_of(place):
                if finish_ns > start_ns and begin_ns < end_ns:
                    yield max(begin_ns, start_ns), min(finish_ns, end_ns), code
            place += 1

    def backwards(self) -> Iterator[Segment]:
        """All segments, the last first."""
        for place in range(len(self._chunks) - 1, -1, -1):
            yield from reversed(list(self._segments_of(place)))

    def edges(self, start_ns: int) -> list[int]:
        """Where chunks begin after `start_ns`: places to cut a long walk."""
        return self._edges[bisect_right(self._edges, start_ns) :]

    def cut(self, time_ns: int) -> None:
        """Forget everything from `time_ns` on."""
        place = bisect_right(self._edges, time_ns - 1) - 1
        if place < 0:
            self.clear()
        elif time_ns < self.end_ns:
            kept = [
                (start, min(end, time_ns), held) for start, end, held in self._segments_of(place) if start < time_ns
            ]
            self._replace(place, len(self._chunks), kept)

    def thin(self, until_ns: int, longest_ns: Longest, spans: Sequence[tuple[int, int]] = ()) -> None:
        """Give up the order inside chunks, and between neighbours: what is left of them has one segment per code.

        The sums stay.

        Args:
            until_ns: chunks that reach beyond it are kept as they are.
            longest_ns: how long what begins at a time may become; a chunk that is longer is kept as it is.
            spans: in order; chunks that touch one of these are kept too.
        """
        chunks: list[_Chunk] = []
        edges: list[int] = []
        end = max(bisect_right(self._edges, until_ns) - 1, 0)
        place = 0
        while place < end:
            start_ns, last = self._edges[place], place
            if self._is_plain(place, spans) and self._edges[place + 1] - start_ns <= longest_ns(start_ns):
                while (
                    last + 1 < end
                    and self._edges[last + 2] - start_ns <= longest_ns(start_ns)
                    and self._is_plain(last + 1, spans)
                ):
                    last += 1
                chunks.append(_thinned(self._chunks[place : last + 1]))
            else:
                chunks.append(self._chunks[place])
            edges.append(start_ns)
            place = last + 1
        self._chunks[:end], self._edges[:end] = chunks, edges
        del self._prefix[1:]

    def _is_plain(self, place: int, spans: Sequence[tuple[int, int]]) -> bool:
        """Whether the chunk at `place`, which is not the last one, touches none of `spans`."""
        behind = bisect_right(spans, self._edges[place], key=lambda span: span[1])
        return behind == len(spans) or spans[behind][0] >= self._edges[place + 1]


def _thinned(chunks: Sequence[_Chunk]) -> _Chunk:
    """What neighbouring chunks hold, with one segment per code."""
    if len(chunks) == 1 and len(chunks[0].codes) <= len(chunks[0].sums):
        return chunks[0]
    sums: Sums = {}
    for chunk in chunks:
        add(sums, chunk.sums)
    segments, start_ns = [], chunks[0].starts[0]
    for code, length_ns in sorted(sums.items()):
        if length_ns:
            segments.append((start_ns, start_ns + length_ns, code))
            start_ns += length_ns
    return _chunk_of(segments)


def _chunk_of(segments: list[Segment]) -> _Chunk:
    chunk = _Chunk()
    for start_ns, end_ns, code in segments:
        chunk.starts.append(start_ns)
        chunk.codes.append(code)
        chunk.sums[code] = chunk.sums.get(code, 0) + end_ns - start_ns
    return chunk


def add(sums: Sums, more: Sums) -> None:
    """Add `more` to `sums`."""
    for code, length_ns in more.items():
        sums[code] = sums.get(code, 0) + length_ns


def _claimed(
    old: list[Segment], start_ns: int, end_ns: int, code: int, keys: list[tuple[int, int, str]]
) -> Iterator[Segment]:
    """`old` with [start_ns, end_ns) claimed for `code`; it may reach beyond `old` on both sides."""
    first_ns, last_ns = old[0][0], old[-1][1]
    if start_ns < first_ns:
        yield start_ns, min(end_ns, first_ns), code
        yield end_ns, first_ns, UNCOVERED
    for begin, finish, held in old:
        yield begin, min(finish, start_ns), held
        yield max(begin, start_ns), min(finish, end_ns), max(held, code, key=keys.__getitem__)
        yield max(begin, end_ns), finish, held
    yield max(start_ns, last_ns), end_ns, code


def _merged(segments: Iterator[Segment]) -> list[Segment]:
    """`segments` without the empty ones; neighbours under one code become one."""
    merged: list[Segment] = []
    for start_ns, end_ns, code in segments:
        if end_ns <= start_ns:
            continue
        if merged and merged[-1][2] == code:
            merged[-1] = (merged[-1][0], end_ns, code)
        else:
            merged.append((start_ns, end_ns, code))
    return merged
