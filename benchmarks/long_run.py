"""One rank's long run through a relay, as fast as it takes it, by a clock of their own. Arguments: STATE STEPS.

The steps are of 0.25 s, give or take 2 % in each phase; every thousandth is three times as long and ends in a
checkpoint. Prints what the relay holds, one JSON object a line.
"""

import json
import os
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from local_ranks import SHARES, Job

from trainspan.names import Phase
from trainspan.recording import layout, places
from trainspan.recording.writer import RecordingWriter
from trainspan.relay.process import Relay
from trainspan.testing.builders import MarkTape
from trainspan.testing.clock import FakeClock

STEP_NS: Final = 250_000_000
AT_ONCE: Final = 500
"""Steps between two looks of the relay: about 7,000 marks."""

FIRST_WORD: Final = layout.HEADER_BYTES // layout.WORD_BYTES
ROWS: Final = 10


class Ring:
    """Stores marks that have been made elsewhere, as `record/marker.py` stores its own."""

    def __init__(self, writer: RecordingWriter):
        self._words = writer.words
        self._capacity = writer.capacity
        self._position = self._laps = 0

    def store(self, words: Sequence[int]) -> None:
        """Store [time_ns, word, …]."""
        for time_ns, word in zip(words[::2], words[1::2], strict=True):
            place = FIRST_WORD + 2 * self._position
            self._words[place + 1], self._words[place] = word, time_ns
            self._position += 1
            if self._position == self._capacity:
                self._position, self._laps = 0, self._laps + 1
                self._words[layout.WORD_LAP_ENDS + self._laps % layout.LAP_ENDS] = time_ns
                self._words[layout.WORD_LAPS] = self._laps


def spend_step(tape: MarkTape, number: int, chance: random.Random) -> int:
    """Put one step on the tape; when its checkpoint began, if it has one, else 0."""
    length_ns = 3 * STEP_NS if number % 1000 == 999 else STEP_NS
    begun_ns, saved_ns = tape.now_ns, 0
    for phase, share in SHARES[:-1]:
        tape.spend(phase, round(share * length_ns * chance.gauss(1, 0.02)))
    if number % 1000 == 999:
        saved_ns = tape.now_ns
        tape.spend(Phase.CHECKPOINT_SAVE, STEP_NS // 10)
    optimizer_ns = round(SHARES[-1][1] * length_ns)
    tape.spend(Phase.OTHER, max(begun_ns + length_ns - optimizer_ns - tape.now_ns, 0))
    tape.step(number, optimizer_ns)
    return saved_ns


def memory_mib() -> float:
    """What this process holds. Source: proc_pid_status(5)."""
    return int(Path("/proc/self/status").read_text().split("VmRSS:")[1].split()[0]) / 1024


def sizes_of(folder: Path) -> dict[str, int]:
    """Bytes of the ledger, and of all other files of the run folder."""
    sizes = {path: path.stat().st_size for path in folder.rglob("*") if path.is_file()}
    ledger = sum(size for path, size in sizes.items() if path.parent.name == "ledger")
    return {"ledger_bytes": ledger, "other_bytes": sum(sizes.values()) - ledger}


def main() -> None:
    """Run it."""
    state, steps = Path(sys.argv[1]), int(sys.argv[2])
    clock = FakeClock(time.monotonic_ns(), time.time_ns())
    identity = Job(ranks=1, world_size=1, step_s=STEP_NS / 1e9, steps=steps, run="long").identity(0)
    folder = places.make_private(places.run_folder(str(state), identity.run))
    recordings = places.make_private(state / "recordings")
    writer = RecordingWriter.create(recordings, identity, layout.CAPACITY_DEFAULT, clock.monotonic_ns())
    relay = Relay(recordings, folder, os.environ, own=writer.path, clock=clock, live=False)
    ring, tape = Ring(writer), MarkTape(clock.monotonic_ns())
    chance = random.Random(1)
    spent_s, told_s, told = 0.0, 0.0, 0
    for first in range(0, steps, AT_ONCE):
        end = min(first + AT_ONCE, steps)
        for number in range(first, end):
            saved_ns = spend_step(tape, number, chance)
            if saved_ns:
                writer.append_event(saved(saved_ns, tape.now_ns, number))
        ring.store(tape.words)
        tape.words.clear()
        clock.advance(tape.now_ns - clock.monotonic_ns())
        begun_s = time.process_time()
        relay.look()
        relay.look()  # what is newest is taken over by the look after it
        spent_s += time.process_time() - begun_s
        if end * ROWS // steps > first * ROWS // steps or end == steps:
            row = {"steps": end, "rss_mib": memory_mib(), "cpu_s_per_1000": (spent_s - told_s) / (end - told) * 1000}
            print(json.dumps({**row, **sizes_of(folder)}), flush=True)
            told_s, told = spent_s, end
    writer.close(clock.monotonic_ns())
    relay.look()
    relay.close()


def saved(start_ns: int, end_ns: int, number: int) -> dict[str, Any]:
    """The event of a checkpoint."""
    told = {"ok": True, "blocking": True, "staging": False, "file": f"step-{number}", "path": f"step-{number}"}
    times = {"ts": end_ns, "start_ns": start_ns, "end_ns": start_ns + STEP_NS // 10}
    return {"event": "checkpoint", "kind": "save", "step": number, "bytes": 6 << 30, **times, **told}


if __name__ == "__main__":
    main()
