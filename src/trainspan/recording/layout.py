"""The format of a recording, version 1: this page is its definition.

A recording is two files in a private directory (0700; files 0600), named after one process:

    r00003-a0-p4711-9f3c2a11.ring      fixed size: a header of 4096 bytes, then the ring of marks
    r00003-a0-p4711-9f3c2a11.events    append-only: one JSON object per line

The name is `<a agent | r rank><rank>-a<attempt>-p<pid>-<8 random hex digits>`; the truth is in the header.
All words are signed 64-bit little-endian integers.

Header, by word index:

    0  MAGIC             also tells the byte order
    1  VERSION           of this layout; a reader refuses another one
    2  CAPACITY          marks in the ring, a power of two
    3  IDENTITY_BYTES    length of the identity
    4  HEADER_CRC        crc32 of words 0 to 7, this one taken as 0, and the identity
    5  ANCHOR_MONOTONIC  one instant on both clocks, in ns
    6  ANCHOR_UNIX
    7  PROCESS_START     monotonic ns at which the process began
    64 LAPS              how often the ring has been filled; written by the rank before the first mark of a lap
    65 CLOSED            monotonic ns of an orderly close; 0 while open and after a kill
    66 EVENTS_DROPPED    events the rank did not append, because the log was at its bound or the disk full
    67 LAP_ENDS          four words: the time of the last mark before LAPS became n is in word 67 + n mod 4, before
                         LAPS is written
    from byte 1024       the identity: a JSON object with the fields of `trainspan.identity.Identity`; its texts can
                         name folders: printable, without `/`, not empty, not beginning with `.`

Ring: `CAPACITY` marks of two words, the time first:

    +0  monotonic ns     0: never written
    +8  operand << 8 | code

The writer stores the second word, then the time: the time publishes the mark. Times never decrease from mark to
mark, so the newest mark is the one whose successor is older than itself (or was never written). A reader consumes
only what its previous look had already found: whatever the processor reorders, those stores are long complete.

A ring whose times rise from its first slot to its last is full or has just been begun anew, and LAPS does not tell
which while its store is under way (for milliseconds, if it waits for the disk). LAP_ENDS tells: marks of lap n are not
older than the end that stands there for n. That end is younger than the one for n - 1, or it is not visible yet.

Code, 8 bits: a kind (upper two bits) and a `Phase` (lower six).

    ENTER  phase    from this time on the rank is in `phase`
    RESUME phase    the phase that was entered has returned; the rank is back in `phase`
    ABORT  phase    as RESUME, but the phase was left by an exception
    STEP   phase    the lead optimizer's step has ended: step number `operand` is complete; the rank is back in `phase`

The operand of an ENTER into COLLECTIVE: bit 0 set: it waits for one that was launched; bit 1 set: by the same call of
the library; bits 2 to 14: its kind, which an event `collective_kind` explains (0: unknown); bits 15 and up: how many
collectives of its group came before it. That of an ENTER into VALIDATION: UNTRAINED, where no optimizer is known to
train the model that is called. That of a RESUME, where the phase that returned was DATA_WAIT: what the batch holds,
samples in its lower 24 bits and tokens above; where it was VALIDATION: the forward passes of a whole loop; 0: not
known. That of a STEP has SKIPPED set where the optimizer was asked to step and a gradient scaler let it not.

While it is made, the ring file is called `.<name>.draft`, and its writer holds the same lock on it.

Liveness: the writer holds a POSIX record lock on the ring file. The kernel frees it when the process is gone,
whatever killed it, also in another PID namespace. Lock free and CLOSED 0: the process died.
"""

import struct
from typing import Final

MAGIC: Final = int.from_bytes(b"trspan\r\n", "little")
VERSION: Final = 1

HEADER_BYTES: Final = 4096
MARK_BYTES: Final = 16
WORD_BYTES: Final = 8

WORD_MAGIC: Final = 0
WORD_VERSION: Final = 1
WORD_CAPACITY: Final = 2
WORD_IDENTITY_BYTES: Final = 3
WORD_HEADER_CRC: Final = 4
WORD_ANCHOR_MONOTONIC: Final = 5
WORD_ANCHOR_UNIX: Final = 6
WORD_PROCESS_START: Final = 7
WORD_LAPS: Final = 64
WORD_CLOSED: Final = 65
WORD_EVENTS_DROPPED: Final = 66
WORD_LAP_ENDS: Final = 67
LAP_ENDS: Final = 4

HALF_STORED: Final = 2
"""Oldest marks of a full ring that count as overwritten: the one being stored, and the next where stores overtake."""

IDENTITY_OFFSET: Final = 1024
IDENTITY_MAX_BYTES: Final = HEADER_BYTES - IDENTITY_OFFSET

FIXED_HEADER: Final = struct.Struct("<8q")
LIVE_WORDS: Final = struct.Struct("<7q")

CAPACITY_MIN: Final = 1 << 10
CAPACITY_MAX: Final = 1 << 26
CAPACITY_DEFAULT: Final = 1 << 16
CAPACITY_UNREAD: Final = 1 << 22
"""Marks kept when no relay reads along: 64 MiB, about 350,000 steps of a plain loop."""

ENTER: Final = 0x00
RESUME: Final = 0x40
ABORT: Final = 0x80
STEP: Final = 0xC0
KIND_MASK: Final = 0xC0
PHASE_MASK: Final = 0x3F
CODE_MASK: Final = 0xFF
OPERAND_SHIFT: Final = 8
TOKENS_SHIFT: Final = 24
SAMPLES_MAX: Final = (1 << TOKENS_SHIFT) - 1
TOKENS_MAX: Final = (1 << 31) - 1

SKIPPED: Final = 1 << 52
"""Set in the operand of a STEP: a gradient scaler skipped the optimizer's step."""

UNTRAINED: Final = 1
"""Operand of an ENTER into VALIDATION."""

WAIT: Final = 1
SAME_CALL: Final = 2
KIND_SHIFT: Final = 2
COLLECTIVE_KIND_MASK: Final = (1 << 13) - 1
SEQUENCE_SHIFT: Final = 15
SEQUENCE_MASK: Final = (1 << 38) - 1
"""The operand of an ENTER into COLLECTIVE."""

EVENTS_MAX_BYTES: Final = 16 << 20
"""Bound of one process's event log."""

EVENT_MAX_BYTES: Final = 1 << 20
"""Bound of one line in it."""

RING_SUFFIX: Final = ".ring"
EVENTS_SUFFIX: Final = ".events"
DAMAGED_SUFFIX: Final = ".damaged"
DRAFT_SUFFIX: Final = ".draft"
