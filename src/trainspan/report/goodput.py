"""Where a run's time went: its ledger, or somebody else's log, and the questions that the command line asks of it.

The JSON form (`trainspan goodput --json`) is `GoodputReport.to_json` of what was asked, and beside its keys those of
`Answer`. Keys are added, never renamed; a change of meaning makes a new `version`.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from trainspan.errors import InputError, RunNotFound
from trainspan.relay.goodput import ledger
from trainspan.relay.goodput.history import Disruption, RunHistory
from trainspan.relay.goodput.launches import Launches
from trainspan.relay.goodput.ml_goodput import Log, facts_of, in_their_words, parse
from trainspan.relay.goodput.projection import Projection, measure, project
from trainspan.relay.goodput.queries import (
    Axis,
    GoodputReport,
    Pace,
    Window,
    disruptions_in,
    ettr,
    mfu,
    pace,
    report,
    reports,
)

SCHEMA: Final = "trainspan.goodput"
VERSION: Final = 1
LEDGER: Final = "ledger"
"""Folder of the ledger in the run folder."""

_NS: Final = 1_000_000_000


class Source(NamedTuple):
    """A history and where it is from. `unread`: lines left out, torn or foreign, in the files `unread_in`."""

    name: str
    history: RunHistory
    unread: int
    unread_in: tuple[str, ...]
    log: Log | None = None


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked.

    Attributes:
        window: which time.
        rolling_ns: lengths of windows that end where `window` does.
        by: the axis to cut along.
        flops: of the model in one step over all ranks, and the peak per second of all devices; None: no MFU.
    """

    window: Window
    rolling_ns: tuple[int, ...] = ()
    by: Axis | None = None
    flops: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """What the engine says.

    Attributes:
        source: name of the run or of the file.
        asked: of the window asked for.
        rolling: by length in ns, of the windows that end with it.
        by: the axis asked for.
        parts: along it, by attempt, rank or node.
        recoveries: every attempt that began in the window after another.
        pace: how fast the newest steps are; None without steps.
        ettr: effective training time ratio; None without time.
        mfu: model FLOPs utilization of the newest steps; None where the FLOPs were not given.
        projection: what another checkpoint interval would bring; None while the run has not shown enough.
        unread: lines that could not be read, in the files `unread_in`.
        in_their_words: the answer in the terms of the library whose log was read.
    """

    source: str
    asked: GoodputReport
    rolling: dict[int, GoodputReport]
    by: Axis | None
    parts: dict[int | str, GoodputReport]
    recoveries: tuple[Disruption, ...]
    pace: Pace | None
    ettr: float | None
    mfu: float | None
    projection: Projection | None
    unread: int
    unread_in: tuple[str, ...]
    in_their_words: dict[str, Any] | None = field(default=None)


def from_ledger(folder: Path, on_progress: Callable[[int, int], None] = lambda _done, _total: None) -> Source:
    """The history of the run in `folder`, as far as its relays have written it.

    Args:
        folder: of the run.
        on_progress: told after each file how many bytes have been read, and of how many.

    Raises:
        RunNotFound: there is no ledger, or nothing in it.
    """
    reading, history, launches = ledger.Reading(), RunHistory(), Launches()
    try:
        history.add_all(launches.watch(ledger.read(folder / LEDGER, reading, on_progress)))
        if launches.repeated():
            reading, history = ledger.Reading(), RunHistory()
            history.add_all(launches.number(ledger.read(folder / LEDGER, reading, on_progress)))
    except FileNotFoundError:
        raise RunNotFound(
            f"{folder} holds no ledger: no rank has been seen yet (what has: trainspan report {folder}); if nothing "
            f"reads the recordings (TRAINSPAN_RELAY=off), fold them first: trainspan replay {folder}"
        ) from None
    except OSError as error:
        raise RunNotFound(f"{folder / LEDGER} cannot be read: {error.strerror}") from error
    if not history.attempts:
        raise RunNotFound(f"{folder / LEDGER} tells of no process yet ({reading.damaged} damaged lines)")
    return Source(folder.name, history, reading.damaged, tuple(reading.where))


def from_ml_goodput(path: Path, job: str | None) -> Source:
    """The history in a log of Google's ml-goodput-measurement, one JSON object a line.

    Raises:
        InputError: the file cannot be read, holds no such entry, or several jobs and `job` is None.
    """
    try:
        with path.open(encoding="utf-8-sig", errors="replace") as lines:
            entries, unread = parse(lines, job)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
    except InputError as error:
        raise InputError(f"{path}: {error} (--job)") from error
    log = facts_of(entries)
    unread += log.skipped
    if not log.facts:
        raise InputError(
            f"{path} is no log of ml-goodput-measurement: of {unread} lines none holds a time of its "
            '(such as {"job_name": "...", "job_start_time": 1700000000.0})'
        )
    history = RunHistory()
    history.add_all(log.facts)
    return Source(path.name, history, unread, (path.name,) if unread else (), log)


def answer(source: Source, question: Question) -> Answer:
    """What the engine says to `question`."""
    history, window = source.history, question.window
    asked = report(history, window)
    end_ns = window.until_ns if window.until_ns is not None else history.last_sign_ns or 0
    newest = pace(history, window)
    return Answer(
        source=source.name,
        asked=asked,
        rolling={
            length_ns: report(history, window._replace(since_ns=end_ns - length_ns, until_ns=end_ns))
            for length_ns in question.rolling_ns
        },
        by=question.by,
        parts=reports(history, question.by, window) if question.by else {},
        recoveries=tuple(disruptions_in(history, window)),
        pace=newest,
        ettr=ettr(asked),
        mfu=None
        if newest is None or question.flops is None
        else mfu(question.flops[0], newest.mean_s, question.flops[1]),
        projection=project(measure(history, window)),
        unread=source.unread,
        unread_in=source.unread_in,
        in_their_words=None if source.log is None else in_their_words(history, source.log, window),
    )


def to_json(said: Answer) -> dict[str, Any]:
    """The answer as one JSON object."""
    return {
        "schema": SCHEMA,
        "version": VERSION,
        "source": said.source,
        **said.asked.to_json(),
        "unread": {"lines": said.unread, "files": list(said.unread_in)},
        "recoveries": [_recovery_json(recovery) for recovery in said.recoveries],
        "recovery_s": _recovery_s(said.recoveries),
        "pace": None if said.pace is None else said.pace._asdict(),
        "ettr": said.ettr,
        "mfu": said.mfu,
        "projection": None if said.projection is None else asdict(said.projection),
        "rolling": [{"length_s": length / _NS, **part.to_json()} for length, part in said.rolling.items()],
        **({} if said.by is None else {"by": {said.by: {str(k): part.to_json() for k, part in said.parts.items()}}}),
        **({} if said.in_their_words is None else {"in_their_words": said.in_their_words}),
    }


def _recovery_s(recoveries: Sequence[Disruption]) -> float:
    """Seconds from the last sign of life to the first new step, over all recoveries that have led to one."""
    return sum(d.first_step_ns - d.failed_ns for d in recoveries if d.first_step_ns is not None) / _NS


def _recovery_json(recovery: Disruption) -> dict[str, Any]:
    """One recovery: its fields, the times as Unix seconds."""
    first_ns = recovery.first_step_ns
    return {
        "attempt": recovery.attempt,
        "failed_unix_s": recovery.failed_ns / _NS,
        "begun_unix_s": recovery.begun_ns / _NS,
        "first_step_unix_s": None if first_ns is None else first_ns / _NS,
        "recovery_s": None if first_ns is None else (first_ns - recovery.failed_ns) / _NS,
        "resumed_step": recovery.resumed_step,
        "known_by": recovery.known_by or None,
        "lost_steps": recovery.lost_steps,
        "planned": recovery.planned,
        "world_size_before": recovery.world_size_before,
        "world_size": recovery.world_size,
    }
