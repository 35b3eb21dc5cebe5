"""Whole lines in an open file, by offset. Every line ends in a newline; offsets are bytes from the file's start."""

import os
import zlib
from typing import NamedTuple

LINE_MAX_BYTES = 64 << 20
"""Longer lines are not ours: it is what the SDK's exporters refuse to send."""

_CHUNK_BYTES = 1 << 18


class FoundLine(NamedTuple):
    """One line. `end` is behind its newline; `text` is without it, and None where it is too long."""

    end: int
    text: bytes | None


def end_of_last_line(descriptor: int, size_bytes: int) -> int:
    """Where the last newline ends; less than `size_bytes` where a crash left half a line behind it."""
    end = size_bytes
    while end > 0:
        start = max(0, end - _CHUNK_BYTES)
        newline = os.pread(descriptor, end - start, start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0


def crc_of_line(descriptor: int, start: int) -> int:
    """CRC-32 of the line that begins at `start`, with its newline; 0 where the file ends there."""
    crc = 0
    while chunk := os.pread(descriptor, _CHUNK_BYTES, start):
        line, newline, _ = chunk.partition(b"\n")
        crc = zlib.crc32(line + newline, crc)
        if newline:
            break
        start += len(chunk)
    return crc


def start_of_line_from(descriptor: int, offset: int) -> int:
    """Where the first line begins that begins at `offset` (from 1) or behind it; the file's end, if there is none."""
    position = offset - 1
    while chunk := os.pread(descriptor, _CHUNK_BYTES, position):
        newline = chunk.find(b"\n")
        if newline >= 0:
            return position + newline + 1
        position += len(chunk)
    return position


def count_lines(descriptor: int, start: int, end: int) -> int:
    """Lines that end after `start` and up to `end`."""
    lines = 0
    while start < end and (chunk := os.pread(descriptor, min(_CHUNK_BYTES, end - start), start)):
        lines += chunk.count(b"\n")
        start += len(chunk)
    return lines


def line_from(descriptor: int, start: int) -> FoundLine:
    """The line that begins at `start`."""
    chunks: list[bytes] = []
    end = start
    while chunk := os.pread(descriptor, _CHUNK_BYTES, end):
        line, newline, _ = chunk.partition(b"\n")
        end += len(line) + len(newline)
        if end - start <= LINE_MAX_BYTES:
            chunks.append(line)
        if newline:
            break
    return FoundLine(end, b"".join(chunks) if end - start <= LINE_MAX_BYTES else None)


def copy(source: int, start: int, target: int) -> None:
    """Append what follows `start` in `source` to `target`, both descriptors.

    Raises:
        OSError: the target's disk is full, or either cannot be used.
    """
    while chunk := os.pread(source, _CHUNK_BYTES, start):
        append(target, chunk)
        start += len(chunk)


def append(descriptor: int, record: bytes) -> None:
    """Write all of `record` at the end, with one call.

    Raises:
        OSError: it could not be written, or only in part; the caller cuts the part off.
    """
    written = os.write(descriptor, record)
    if written != len(record):
        # The kernel gives the reason to the next write alone, which has nothing left to ask for.
        raise OSError(None, f"only {written} of {len(record)} bytes fitted")
