"""Reads the header of a recording: whose it is, or why it is none that we can read."""

import json
import os
import stat
from typing import NamedTuple
from zlib import crc32

from trainspan.clock import Anchor
from trainspan.identity import Identity
from trainspan.recording import layout

_LATEST_NS = 1 << 62  # the year 2116
_TEXT_FIELDS = ("role", "run", "host", "launcher")


class Header(NamedTuple):
    """What the writer put down before the first mark. `process_start_ns` is monotonic; `capacity` counts marks."""

    identity: Identity
    anchor: Anchor
    process_start_ns: int
    capacity: int


def read_header(descriptor: int) -> Header | str:
    """The header of an open ring file, or why it cannot be read."""
    found = os.fstat(descriptor)
    refusal = why_not_ours(found)
    if refusal:
        return refusal
    try:
        return _parse_header(os.pread(descriptor, layout.HEADER_BYTES, 0), found.st_size)
    except OSError as error:
        return f"cannot be read: {error.strerror}"


def why_not_ours(found: os.stat_result) -> str | None:
    """What keeps a file from being one that this user's processes wrote, or None."""
    if not stat.S_ISREG(found.st_mode):
        return "is not a regular file"
    if found.st_uid != os.geteuid():
        return f"belongs to user {found.st_uid}, not to {os.geteuid()}: trainspan reads its own user's recordings only"
    return None


def _parse_header(text: bytes, file_bytes: int) -> Header | str:
    if len(text) < layout.HEADER_BYTES:
        return f"is cut off in its header ({len(text)} of {layout.HEADER_BYTES} bytes)"
    magic, version, capacity, size, crc, monotonic_ns, unix_ns, start_ns = layout.FIXED_HEADER.unpack_from(text)
    if magic != layout.MAGIC:
        return "is not a recording, or was made on a machine of the other byte order"
    if version != layout.VERSION:
        return f"has layout version {version}; this trainspan reads version {layout.VERSION}: use the one that wrote it"
    if capacity & (capacity - 1) or not layout.CAPACITY_MIN <= capacity <= layout.CAPACITY_MAX:
        return f"claims an impossible ring of {capacity} marks"
    if file_bytes != layout.HEADER_BYTES + capacity * layout.MARK_BYTES:
        return f"has the wrong size ({file_bytes} bytes for a ring of {capacity} marks): it was cut off, or is damaged"
    identity_text = text[layout.IDENTITY_OFFSET :][: max(size, 0)]
    unsigned = layout.FIXED_HEADER.pack(magic, version, capacity, size, 0, monotonic_ns, unix_ns, start_ns)
    if size != len(identity_text) or crc32(unsigned + identity_text) != crc:
        return "has a damaged header (checksum differs)"
    identity = _parse_identity(identity_text)
    shown = all(0 <= time_ns < _LATEST_NS for time_ns in (monotonic_ns, unix_ns, start_ns))
    if identity is None or not shown:
        return "claims times that no clock shows" if identity else "has an identity that is not understood"
    return Header(identity, Anchor(monotonic_ns, unix_ns), start_ns, capacity)


def _parse_identity(text: bytes) -> Identity | None:
    try:
        fields = json.loads(text)
        identity = Identity(**fields)
    except (ValueError, TypeError, RecursionError):
        return None
    for name, value in identity._asdict().items():
        if not (_is_name(value) if name in _TEXT_FIELDS else is_count(value)):
            return None
    return identity


def _is_name(value: object) -> bool:
    # Folders are named after it, and terminals and exporters take it: `..`, escapes and half characters stay out.
    return isinstance(value, str) and value[:1] not in ("", ".") and value.isprintable() and "/" not in value


def is_count(value: object) -> bool:
    """Whether a value out of a JSON text is a number that fits a word and is not negative."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63
