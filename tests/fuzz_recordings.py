"""Damages recordings at random and reads them, for as long as one likes.

    python -m tests.fuzz_recordings 20000 --seed 7

What is found is printed as an entry for `tests/data/recordings/damages.json`, and ends the run with exit code 1.
"""

import argparse
import json
import random
import re
import sys
import tempfile
import time
import traceback
import tracemalloc
from collections import Counter
from pathlib import Path

from tests.unit.recording_damage import BASES, Outcome, base, damage, draw_edits, read_through

SLOW_S = 2.0
HEAVY_BYTES = 8 << 20


def main() -> int:
    """Run; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", type=int, help="damaged recordings to read")
    parser.add_argument("--seed", type=int, default=0, help="of the first; the next has the next number")
    parser.add_argument("--memory", action="store_true", help="watch the memory each takes (three times slower)")
    options = parser.parse_args()
    if options.memory:
        tracemalloc.start()
    outcomes: Counter[str] = Counter()
    found = 0
    with tempfile.TemporaryDirectory() as directory:
        for seed in range(options.seed, options.seed + options.count):
            kind = _try(seed, Path(directory) / "r00000-a0-p1-00000000.ring")
            outcomes[kind] += 1
            found += kind.startswith("FOUND")
    for kind, times in outcomes.most_common():
        sys.stdout.write(f"{times:8d}  {kind}\n")
    return 1 if found else 0


def _try(seed: int, path: Path) -> str:
    """Damage and read once; what came out, in a few words."""
    draw = random.Random(seed)
    name = draw.choice(list(BASES))
    before, while_open = draw_edits(draw), draw_edits(draw) if draw.random() < 0.3 else []
    files = base(name)
    damage(files, before)
    files.write(path)

    def damage_again() -> None:
        damage(files, while_open)
        files.write(path)

    tracemalloc.reset_peak()
    began_s = time.perf_counter()
    try:
        outcome = read_through(path, damage_again)
    except Exception:  # noqa: BLE001 - whatever it is, it is what we are looking for
        traceback.print_exc()
        return _found("it raised", seed, name, before, while_open)
    if time.perf_counter() - began_s > SLOW_S:
        return _found("it took long", seed, name, before, while_open)
    if tracemalloc.get_traced_memory()[1] > HEAVY_BYTES:
        return _found("it took much memory", seed, name, before, while_open)
    return _kind_of(outcome)


def _found(what: str, seed: int, name: str, before: list[list[object]], while_open: list[list[object]]) -> str:
    entry = {"name": "?", "base": name, "edits": before, "while_open": while_open}
    sys.stdout.write(f"seed {seed}: {what}\n{json.dumps(entry)}\n")
    return f"FOUND: {what}"


def _kind_of(outcome: Outcome) -> str:
    if outcome.refusal:
        return "refused: " + re.sub(r"-?\d+", "N", outcome.refusal)
    return "read, with errors" if outcome.errors else "read, without errors"


if __name__ == "__main__":
    sys.exit(main())
