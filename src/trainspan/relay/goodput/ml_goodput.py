"""Google's ml-goodput-measurement logs as facts: one JSON object a line, with that library's own field names.

A team that has such a log can ask our engine about it before it changes a line of code. Read as:

    job_start_time          an attempt begins. A step number that does not grow, and a step after the end, begin one too
    job_end_time            the last step ends, and the attempt, in good order
    step_start_time         the step before ends here; when numbers were skipped, those steps were in it
    tpu_init_*              `init`
    training_prep_*         `model_init`
    data_loading_*          `data_wait` before the first step, and when a step begins as the load ends: it waited.
                            Otherwise something ran in between, so the load was overlapped: informational
    custom_badput_event_*   `custom.<type>` in lower case; of nested ones the inner one wins
    save, *restore          `checkpoint_save`, `checkpoint_load`, blocking durations as logged, one after the other: a
                            thread does not block on two at a time
    elastic_wait_*          `restart`
    elastic_reinit_*        `init`
    elastic_slice_counts_*  nothing: how many slices there are takes no time

A phase that was never ended lasts until the next record. Records are sorted by their times; the same record within a
second is another writer's copy. Step 5 may be written 5.0: so Cloud Logging gives it back, and so the library's own
cache on disk has it. `in_their_words` gives our answer in the library's terms.
"""

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from trainspan.errors import InputError
from trainspan.relay.goodput.facts import Activity, Alive, Begun, Ended, Fact, Loaded, Saved, Step
from trainspan.relay.goodput.history import RunHistory
from trainspan.relay.goodput.queries import NS, WHOLE, Window, account_ns, report
from trainspan.relay.goodput.states import CUSTOM_PREFIX, DEPTH_MAX

TYPES: Final = {
    "init": "TPU_INITIALIZATION",
    "model_init": "TRAINING_PREP",
    "compile": "PROGRAM_STARTUP",
    "data_wait": "DATA_LOADING_SYNC",
    "checkpoint_save": "UNPRODUCTIVE_CHECKPOINT_SAVE_TIME",
    "checkpoint_load": "UNPRODUCTIVE_CHECKPOINT_RESTORE_TIME",
    "lost_work": "WASTED_PROGRESS_FROM_DISRUPTION",
}
"""Our state and its badput type. `custom.<name>` is in CUSTOM_BADPUT_EVENTS. Of `restart`, what lies between the last
sign of life and the new job start is INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION. Everything else is OTHER."""

_COPY_NS = NS
_TOUCHING_NS = NS // 100
_TOUCHING_SHARE = 100
_PHASES = {
    "tpu_init": "init",
    "training_prep": "model_init",
    "data_loading": "data_wait",
    "custom_badput_event": "custom",
    "elastic_wait": "restart",
    "elastic_reinit": "init",
}
_MOMENTS = {f"{name}_{edge}_time": (phase, edge) for name, phase in _PHASES.items() for edge in ("start", "end")} | {
    "job_start_time": ("job", "start"),
    "job_end_time": ("job", "end"),
    "step_start_time": ("step", "start"),
}
_TIMELESS = "elastic_slice_counts_timestamp"
_OPERATIONS = {
    "save": ("checkpoint_save", "checkpoint_manager_blocking_start_time", "checkpoint_manager_blocking_duration_secs"),
    "restore": ("checkpoint_load", "checkpoint_manager_start_time", "checkpoint_manager_duration_secs"),
    "emergency_restore": ("checkpoint_load", "checkpoint_manager_start_time", "checkpoint_manager_duration_secs"),
}
_OTHERS = ("job_name", "step_count", "custom_badput_event_type", "event_type", "step", "directory", _TIMELESS)
_KNOWN = {name: name for name in (*_MOMENTS, *_OTHERS, *(name for row in _OPERATIONS.values() for name in row[1:]))}


@dataclass(slots=True)
class Log:
    """What a log says. `skipped`: lines that say nothing we know. `overlapped_ns`: loads that held nobody up."""

    facts: list[Fact] = field(default_factory=list)
    skipped: int = 0
    overlapped_ns: list[tuple[int, int]] = field(default_factory=list)


def parse(lines: Iterable[str], job: str | None = None) -> tuple[list[dict[str, Any]], int]:
    """The entries of one job in a log, and how many lines were none.

    Args:
        lines: one JSON object each, or all of them in one JSON array: an entry, or what Cloud Logging exports, which
            has the entry as `jsonPayload`.
        job: its name; None when the log holds only one.

    Raises:
        InputError: the log holds several jobs and `job` is None; or none that is called so.
    """
    entries, skipped = [], 0
    for value in _values(lines):
        payload = value.get("jsonPayload", value) if isinstance(value, dict) else None
        if isinstance(payload, dict):
            # The keys are held once, not once a line: 186 instead of 233 MB for 300,000 lines.
            entries.append({_KNOWN[key]: held for key, held in payload.items() if key in _KNOWN})
        else:
            skipped += 1
    names = sorted({str(entry.get("job_name")) for entry in entries if time_of(entry) is not None})
    if job is None and len(names) > 1:
        raise InputError(f"the log holds {len(names)} jobs ({', '.join(names[:5])}); say which one")
    if job is not None and job not in names:
        raise InputError(f"the log holds no job {job!r}, but {', '.join(names[:5]) or 'nothing'}")
    return [entry for entry in entries if job is None or str(entry.get("job_name")) == job], skipped


def _values(lines: Iterable[str]) -> Iterator[Any]:
    """What each line that is not blank holds, or each item of the one array; None for what is not JSON."""
    rest = iter(lines)
    first = next((line for line in rest if line.strip()), "")
    if first.lstrip().startswith("["):
        whole = [first, *rest]
        items = _json("".join(whole))
        rest = iter(whole)
        if isinstance(items, list):
            yield from items
            return
    else:
        yield from [_json(first)] if first else []
    yield from (_json(line) for line in rest if line.strip())


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def facts_of(entries: Iterable[dict[str, Any]]) -> Log:
    """What the entries of one job say, whatever order they came in."""
    log = Log()
    moments = []
    for entry in entries:
        moment = _moment_of(entry)
        if moment is None:
            log.skipped += _TIMELESS not in entry
        else:
            moments.append(moment)
    if moments and moments[0][0] > moments[-1][0]:
        moments.reverse()  # the newest first, as gcloud writes them: what came at one time is to keep its order
    reader = _Reader(log)
    for time_ns, what, edge, entry in sorted(moments, key=lambda moment: moment[0]):
        reader.take(time_ns, what, edge, entry)
    reader.finish()
    return log


def time_of(entry: dict[str, Any]) -> int | None:
    """The time of an entry in Unix ns, or None when it is none of the library's."""
    moment = _moment_of(entry)
    return None if moment is None else moment[0]


def _moment_of(entry: dict[str, Any]) -> tuple[int, str, str, dict[str, Any]] | None:
    """(time, what, start or end, entry)."""
    event = entry.get("event_type")
    if isinstance(event, str) and event in _OPERATIONS:
        state, start, duration = _OPERATIONS[event]
        time_ns, length_ns = _ns(entry.get(start)), _ns(entry.get(duration))
        return None if time_ns is None or length_ns is None else (time_ns, state, str(length_ns), entry)
    for name, value in entry.items():
        what, edge = _MOMENTS.get(name, ("", ""))
        time_ns = _ns(value) if what else None
        if time_ns is not None:
            fits = what != "step" or _whole(entry.get("step_count")) is not None
            return (time_ns, what, edge, entry) if fits else None
    return None


def _ns(seconds: object) -> int | None:
    """Whole numbers of seconds are numbers too; true and false are none."""
    if not isinstance(seconds, int | float) or isinstance(seconds, bool):
        return None
    return round(seconds * NS) if math.isfinite(seconds) and 0 <= seconds < 1 << 32 else None


def _whole(count: object) -> int | None:
    """A number of a step: whole, also where it is written as a float."""
    if not isinstance(count, int | float) or isinstance(count, bool):
        return None
    return int(count) if 0 <= count < 1 << 53 and count == int(count) else None


class _Reader:
    """Walks the records in order of time; all facts are about rank 0."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._attempt = -1
        self._ended = False
        self._begun_ns = 0
        self._step: tuple[int, int] | None = None  # (number, start) of the one that runs
        self._open: dict[str, list[tuple[int, int]]] = {}  # by state: (start, depth) of what has not ended
        self._loads: list[tuple[int, int]] = []
        self._blocked_until_ns = 0

    def take(self, time_ns: int, what: str, edge: str, entry: dict[str, Any]) -> None:
        if what == "job":
            self._take_job(time_ns, edge)
            return
        if self._attempt < 0 or (self._ended and edge == "start"):
            self._begin(time_ns)
        if what == "step":
            self._take_step(time_ns, int(entry["step_count"]))
        elif what.startswith("checkpoint"):
            self._take_checkpoint(time_ns, what, int(edge), entry)
        else:
            state = CUSTOM_PREFIX + _custom_name(entry) if what == "custom" else what
            self._take_phase(time_ns, state, edge)

    def finish(self) -> None:
        """No more records."""
        if self._attempt >= 0:
            self._leave()

    def _add(self, fact: Fact) -> None:
        self._log.facts.append(fact)

    def _begin(self, time_ns: int) -> None:
        if self._attempt >= 0:
            self._leave()
        self._attempt += 1
        self._ended, self._begun_ns, self._step = False, time_ns, None
        self._add(Begun(self._attempt, 0, time_ns, counts_in_run=True))

    def _leave(self) -> None:
        """The attempt has no more records: what is open stays open, what was loaded since the last step fed nobody."""
        for state, starts in self._open.items():
            for start_ns, depth in starts:
                self._add(Activity(self._attempt, 0, state, start_ns, None, depth))
        self._settle_loads(None)
        self._open = {}

    def _take_job(self, time_ns: int, edge: str) -> None:
        if edge == "start":
            is_copy = self._attempt >= 0 and self._step is None and time_ns - self._begun_ns < _COPY_NS
            if not is_copy or self._ended:
                self._begin(time_ns)
        elif self._attempt >= 0:
            self._settle_loads(None)
            if self._step is not None:
                self._add(Step(self._attempt, 0, self._step[0], self._step[1], time_ns))
                self._step = None
            self._add(Ended(self._attempt, 0, time_ns, orderly=True))
            self._ended = True

    def _take_step(self, time_ns: int, number: int) -> None:
        if self._step is not None and number <= self._step[0]:
            if number == self._step[0] and time_ns - self._step[1] < _COPY_NS:
                return
            self._begin(time_ns)
        self._settle_loads(time_ns)
        if self._step is None:
            self._add(Alive(self._attempt, 0, time_ns))
        else:
            before, start_ns = self._step
            self._add(Step(self._attempt, 0, before, start_ns, time_ns, steps=number - before))
        self._step = number, time_ns

    def _take_phase(self, time_ns: int, state: str, edge: str) -> None:
        starts = self._open.setdefault(state, [])
        is_custom = state.startswith(CUSTOM_PREFIX)
        if edge == "end":
            if starts:
                self._take_span(state, *starts.pop(), time_ns)
        elif is_custom or not starts:
            depth = sum(len(open_) for other, open_ in self._open.items() if other.startswith(CUSTOM_PREFIX))
            starts.append((time_ns, min(depth, DEPTH_MAX) if is_custom else 0))

    def _take_span(self, state: str, start_ns: int, depth: int, end_ns: int) -> None:
        if state == "data_wait":
            self._loads.append((start_ns, end_ns))
        else:
            self._add(Activity(self._attempt, 0, state, start_ns, end_ns, depth))

    def _settle_loads(self, step_ns: int | None) -> None:
        """Decide who waited for the loads since the last step, now that the next begins, or none does."""
        for start_ns, end_ns in self._loads:
            tolerance_ns = max(_TOUCHING_NS, (end_ns - start_ns) // _TOUCHING_SHARE)
            if self._step is None or (step_ns is not None and step_ns - end_ns <= tolerance_ns):
                self._add(Activity(self._attempt, 0, "data_wait", start_ns, end_ns))
            else:
                self._log.overlapped_ns.append((start_ns, end_ns))
        self._loads = []

    def _take_checkpoint(self, time_ns: int, state: str, length_ns: int, entry: dict[str, Any]) -> None:
        start_ns = max(time_ns, self._blocked_until_ns)
        self._blocked_until_ns = end_ns = start_ns + length_ns
        self._add(Activity(self._attempt, 0, state, start_ns, end_ns))
        step, name = _whole(entry.get("step")), str(entry.get("directory"))[:256]
        if step is not None:
            made = Saved if state == "checkpoint_save" else Loaded
            self._add(made(self._attempt, 0, end_ns, step + 1, name))


def _custom_name(entry: dict[str, Any]) -> str:
    return str(entry.get("custom_badput_event_type") or "unknown").lower()[:64]


def in_their_words(history: RunHistory, log: Log, window: Window = WHOLE) -> dict[str, Any]:
    """Our answer in the library's terms: seconds by badput type, those above zero.

    As there, a restart is a disruption once it has led to a step or to another restart, and DATA_LOADING_ASYNC is
    informational: it is not part of the total.
    """
    answer, states = report(history, window), account_ns(history, window)
    known = [
        disruption
        for disruption in history.disruptions(window.now_ns)
        if disruption.first_step_ns is not None or disruption.attempt != history.attempts[-1]
    ]
    outage_ns = sum(window.overlap_ns(disruption.failed_ns, disruption.begun_ns) for disruption in known)
    badput_s = {theirs: states.pop(ours, 0) / NS for ours, theirs in TYPES.items()}
    badput_s["INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION"] = outage_ns / NS
    badput_s["DATA_LOADING_ASYNC"] = sum(window.overlap_ns(*load) for load in log.overlapped_ns) / NS
    productive_ns = states.pop("productive", 0)
    custom_s = {
        state.removeprefix(CUSTOM_PREFIX).upper(): states.pop(state) / NS
        for state in list(states)
        if state.startswith(CUSTOM_PREFIX)
    }
    badput_s["OTHER"] = (sum(states.values()) - outage_ns) / NS
    return {
        "total_s": answer.total_s,
        "productive_s": productive_ns / NS,
        "badput_s": {theirs: seconds for theirs, seconds in badput_s.items() if seconds}
        | ({"CUSTOM_BADPUT_EVENTS": custom_s} if custom_s else {}),
        "excluded_s": answer.excluded_s,
        "disruptions": sum(window.overlap_ns(d.begun_ns, d.begun_ns + 1) for d in known),
        "max_productive_step": answer.last_step or 0,
    }
