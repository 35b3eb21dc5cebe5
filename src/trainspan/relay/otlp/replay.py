"""Delivers later what a run folder holds and no endpoint has taken: each line once, from where the last try stopped."""

import queue
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from trainspan.errors import SettingError
from trainspan.relay.otlp.claims import claim_file, journals_in, signal_of
from trainspan.relay.otlp.complaints import Complaints
from trainspan.relay.otlp.courier import Courier
from trainspan.relay.otlp.delivery import Delivery, admission_to
from trainspan.relay.otlp.destinations import Destination, Signal, destinations
from trainspan.relay.otlp.journal import Journal

_UNBOUNDED = 1 << 62
_WAIT_MAX_S = 0.2  # somebody is watching, and the SDK waits between its own tries


class Progress(NamedTuple):
    """How far one file is. Bytes of what was not delivered when the replay began."""

    file: str
    done_bytes: int
    total_bytes: int


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """What a replay did.

    `delivered` and `dropped`: batches; dropped are those that cannot be read, and those that the endpoint refuses while
    it takes others. `remaining_bytes`: still to be delivered. `in_use`: files that a live relay delivers itself.
    `no_endpoint`: files of a signal that has none. `problems`: what went wrong, once per cause.
    """

    delivered: int
    dropped: int
    remaining_bytes: int
    in_use: tuple[str, ...]
    no_endpoint: tuple[str, ...]
    problems: tuple[str, ...]

    @property
    def complete(self) -> bool:
        """Whether nothing is left that has an endpoint."""
        return self.remaining_bytes == 0 and not self.in_use


def replay(
    folder: Path, environ: Mapping[str, str], timeout_s: float, progress: Callable[[Progress], None]
) -> ReplayReport:
    """Deliver everything in the journals of `folder` that is not delivered. A second call has nothing left to deliver.

    Signals go in parallel, the files of one signal in order.

    Args:
        folder: the run folder.
        environ: the environment, for the `OTEL_*` variables.
        timeout_s: bound of it all; what is not delivered by then is left for the next call.
        progress: told of every batch, on the caller's thread.

    Raises:
        SettingError: no signal has an endpoint, or a variable is not understood.
        RecordingRefused: a file of the folder cannot be opened.
    """
    goals = {signal: goal for signal, goal in destinations(environ).items() if goal.kind in ("otlp", "console")}
    if not goals:
        raise SettingError(
            "no endpoint to deliver to: set OTEL_EXPORTER_OTLP_ENDPOINT, for example http://localhost:4318"
        )
    problems: list[str] = []
    complain = Complaints(problems.append)
    paths = journals_in(folder)
    with ExitStack() as opened:
        loads: dict[Signal, list[Journal]] = {signal: [] for signal in goals}
        in_use = []
        for path in (path for path in paths if signal_of(path) in goals):
            claimed = claim_file(path, unlocked=True)
            if claimed is None:
                in_use.append(path.name)
            else:
                journal = Journal(path, claimed, _UNBOUNDED, complain)
                opened.callback(journal.close)
                loads[signal_of(path)].append(journal)
        carriers = [_Carrier(goals[signal], journals, complain) for signal, journals in loads.items() if journals]
        remaining_bytes = _run(carriers, time.monotonic() + timeout_s, progress)
    return ReplayReport(
        delivered=sum(carrier.delivered for carrier in carriers),
        dropped=sum(journal.dropped for journals in loads.values() for journal in journals),
        remaining_bytes=remaining_bytes,
        in_use=tuple(in_use),
        no_endpoint=tuple(path.name for path in paths if signal_of(path) not in goals),
        problems=tuple(problems),
    )


def _run(carriers: "list[_Carrier]", deadline: float, progress: Callable[[Progress], None]) -> int:
    """Bytes that are left when all carriers have ended or `deadline` (monotonic, s) has passed."""
    news: queue.SimpleQueue[Progress | None] = queue.SimpleQueue()
    for carrier in carriers:
        carrier.begin(news)
    running = len(carriers)
    try:
        while running and (left_s := deadline - time.monotonic()) > 0:
            try:
                told = news.get(timeout=left_s)
            except queue.Empty:
                break
            if told is None:
                running -= 1
            else:
                progress(told)
    finally:
        remaining_bytes = sum([carrier.end() for carrier in carriers])
    return remaining_bytes


class _Carrier:
    """Takes the files of one signal to its endpoint, on a thread of its own."""

    def __init__(self, goal: Destination, journals: list[Journal], complain: Complaints):
        self._couriers: list[Courier] = []
        self._journals = journals
        self._complain = complain
        self._delivery = Delivery(goal)
        self._admission = admission_to(goal, complain)
        self._ended = threading.Event()

    @property
    def delivered(self) -> int:
        """Batches taken so far."""
        return sum(courier.delivered for courier in self._couriers)

    def begin(self, news: "queue.SimpleQueue[Progress | None]") -> None:
        name = f"trainspan-replay-{self._delivery.destination.signal}"
        threading.Thread(target=self._carry_all, args=(news,), name=name, daemon=True).start()

    def end(self) -> int:
        """Stop at once, also in the middle of a request; returns the bytes that are left."""
        self._ended.set()
        self._delivery.close()
        for journal in self._journals:
            journal.close()
        return sum(journal.pending_bytes for journal in self._journals)

    def _carry_all(self, news: "queue.SimpleQueue[Progress | None]") -> None:
        # Whoever replays by hand waits for the answer: it will not change by itself.
        refused = self._admission is not None and self._admission.is_refused()
        for journal in () if refused else self._journals:
            self._carry(journal, news)
        news.put(None)

    def _carry(self, journal: Journal, news: "queue.SimpleQueue[Progress | None]") -> None:
        courier = Courier(journal, self._delivery, self._complain)
        self._couriers.append(courier)
        total_bytes = journal.pending_bytes
        while not self._ended.is_set():
            step = courier.step()
            if step == "moved":
                news.put(Progress(journal.path.name, total_bytes - journal.pending_bytes, total_bytes))
            elif step == "empty" or courier.is_hopeless:
                return
            else:
                self._ended.wait(max(min(courier.backoff_s(), _WAIT_MAX_S), courier.asked_wait_s))
