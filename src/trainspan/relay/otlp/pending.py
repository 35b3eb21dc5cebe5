"""What lies in a run folder and waits for an endpoint, as somebody sees it who comes when the relay has left."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from trainspan.errors import RecordingRefused, SettingError
from trainspan.relay.otlp.claims import claim_file, journals_in, signal_of
from trainspan.relay.otlp.destinations import SIGNALS, Signal, destination
from trainspan.relay.otlp.journal import Journal


class Pending(NamedTuple):
    """`waiting`: the signals that wait, by the place that has not taken them, as it may be shown.

    `spoiled`: the signals that have no place, by what is wrong with the variable that should name it.
    """

    waiting: Mapping[str, list[Signal]]
    spoiled: Mapping[str, list[Signal]]


def pending_in(folder: Path, environ: Mapping[str, str]) -> Pending:
    """What of a run is not delivered. What a live relay holds is its business, and not counted."""
    paths = journals_in(folder)
    waiting: dict[str, list[Signal]] = {}
    spoiled: dict[str, list[Signal]] = {}
    for signal in SIGNALS:
        try:
            goal = destination(signal, environ)
        except SettingError as error:
            spoiled.setdefault(str(error), []).append(signal)
            continue
        of_signal = (path for path in paths if signal_of(path) == signal)
        if goal.kind in ("otlp", "console") and any(map(_holds_some, of_signal)):
            waiting.setdefault(goal.place, []).append(signal)
    return Pending(waiting, spoiled)


def _holds_some(path: Path) -> bool:
    """Whether a journal holds what is not delivered, and nobody delivers it now."""
    try:
        claimed = claim_file(path, unlocked=True)
    except RecordingRefused:
        return False  # of another user: who replays it is told
    if claimed is None:
        return False
    journal = Journal(path, claimed, path.stat().st_size, lambda _cause, _message: None)
    journal.close()
    return journal.pending_bytes > 0
