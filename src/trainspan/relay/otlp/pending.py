"""What lies in a run folder and waits for an endpoint, as somebody sees it who comes when the relay has left."""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, NamedTuple

from trainspan.errors import RecordingRefused, SettingError
from trainspan.relay.otlp.claims import claim_file, journals_in, signal_of
from trainspan.relay.otlp.destinations import SIGNALS, Signal, destination
from trainspan.relay.otlp.journal import Journal


class Pending(NamedTuple):
    """`waiting`: the signals that wait, by the place that has not taken them, as it may be shown.

    `in_use`: the signals that a live relay delivers itself.
    `spoiled`: the signals that have no place, by what is wrong with the variable that should name it.
    """

    waiting: Mapping[str, list[Signal]]
    in_use: list[Signal]
    spoiled: Mapping[str, list[Signal]]


def pending_in(folder: Path, environ: Mapping[str, str]) -> Pending:
    """What of a run is not delivered."""
    paths = journals_in(folder)
    waiting: dict[str, list[Signal]] = {}
    in_use: list[Signal] = []
    spoiled: dict[str, list[Signal]] = {}
    for signal in SIGNALS:
        try:
            goal = destination(signal, environ)
        except SettingError as error:
            spoiled.setdefault(str(error), []).append(signal)
            continue
        if goal.kind not in ("otlp", "console"):
            continue
        states = {_state_of(path) for path in paths if signal_of(path) == signal}
        if "waiting" in states:
            waiting.setdefault(goal.place, []).append(signal)
        if "in use" in states:
            in_use.append(signal)
    return Pending(waiting, in_use, spoiled)


def _state_of(path: Path) -> Literal["waiting", "in use", "delivered"]:
    """How a journal stands; one of another user counts as delivered: who replays it is told."""
    try:
        claimed = claim_file(path, unlocked=True)
    except RecordingRefused:
        return "delivered"
    if claimed is None:
        return "in use"
    journal = Journal(path, claimed, path.stat().st_size, lambda _cause, _message: None)
    journal.close()
    return "waiting" if journal.pending_bytes else "delivered"
