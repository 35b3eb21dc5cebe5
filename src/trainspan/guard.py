"""How our own failures end: said once on stderr, counted, and never the user's problem (law 1)."""

import sys
from collections import Counter

_seen: Counter[str] = Counter()


def warn_once(cause: str, message: str) -> None:
    """Print `trainspan: message` on stderr the first time `cause` comes, as one line; count it every time."""
    _seen[cause] += 1
    if _seen[cause] > 1 or sys.stderr is None:  # a None would make print() write into the user's stdout
        return
    try:
        print("trainspan:", *message.split(), file=sys.stderr, flush=True)
    except (OSError, ValueError):
        return  # stderr is closed: there is nobody left to tell, and the user's program must go on


def seen() -> dict[str, int]:
    """How often each cause came."""
    return dict(_seen)
