"""The relay's mouth: what is put is on disk first, and delivered from there.

Each signal has a journal, and a thread that takes its lines to the endpoint in order. A signal without an endpoint has
the journal alone; one that the user has switched off (`none`, `OTEL_SDK_DISABLED`) has neither.
"""

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from opentelemetry.sdk._logs import ReadableLogRecord
from opentelemetry.sdk.metrics.export import MetricsData
from opentelemetry.sdk.trace import ReadableSpan

from trainspan.errors import SettingError
from trainspan.relay.otlp.claims import claim
from trainspan.relay.otlp.complaints import Complaints
from trainspan.relay.otlp.courier import Courier
from trainspan.relay.otlp.delivery import Delivery, admission_to
from trainspan.relay.otlp.destinations import SIGNALS, Kind, Signal, destination
from trainspan.relay.otlp.journal import Journal
from trainspan.relay.otlp.otlp_json import encode
from trainspan.relay.otlp.sdk_logs import listening

BATCH_ITEMS = 512
"""Spans or log records in one request: what the SDK's own processors send."""

BATCH_POINTS = 2000
"""Metric points in one request, where the resources can be parted: a gRPC server takes 4 MiB."""


class SignalHealth(NamedTuple):
    """How one signal fares. Batches, but for `failures` (attempts) and `pending_bytes` (on disk, not delivered).

    `dropped`: at the bound, unwritable, unreadable, or refused while others were taken.
    `rejected`: spans, points or log records of delivered batches that the endpoint did not take.
    """

    delivered: int = 0
    failures: int = 0
    pending_bytes: int = 0
    dropped: int = 0
    rejected: int = 0


class Untaken(NamedTuple):
    """Signals that one place had not taken in the end, for one reason. `place`: as it may be shown."""

    place: str
    signals: list[Signal]
    reason: str


class Outlet:
    """Where a relay puts its spans, metrics and log records.

    Nothing it is given is ever refused with an exception, and no call waits for the network but `close`.

    Args:
        folder: the run folder; it exists, and is private.
        node_rank: rank of the node in the job; names its files. None: this is not the node's relay.
        environ: the environment, for the `OTEL_*` variables.
        spool_bytes: bound of each signal's file.
        log: told of what goes wrong, once per cause. A variable that is not understood is one such cause: its signal is
            kept in the run folder, and can be replayed.

    Raises:
        RecordingRefused: the run folder cannot be written.
    """

    def __init__(
        self,
        folder: Path,
        node_rank: int | None,
        environ: Mapping[str, str],
        spool_bytes: int,
        log: Callable[[str], None],
    ):
        complain = Complaints(log)
        self._lanes: dict[Signal, _Lane] = {}
        with ExitStack() as undone:
            for signal in SIGNALS:
                kind, delivery = _way_out(signal, environ, complain)
                if kind != "none":
                    path, claimed = claim(folder, signal, node_rank)
                    journal = Journal(path, claimed, spool_bytes, complain)
                    self._lanes[signal] = _Lane(signal, journal, delivery, complain)
                    undone.callback(self._lanes[signal].close, 0.0)
            undone.pop_all()

    def put_spans(self, spans: Sequence[ReadableSpan]) -> None:
        """Keep and deliver finished spans."""
        self._put("traces", _sliced(spans))

    def put_metrics(self, metrics: MetricsData) -> None:
        """Keep and deliver metrics as they were collected."""
        self._put("metrics", _parted(metrics))

    def put_logs(self, records: Sequence[ReadableLogRecord]) -> None:
        """Keep and deliver log records."""
        self._put("logs", _sliced(records))

    def close(self, timeout_s: float) -> bool:
        """Deliver what can be delivered in `timeout_s` seconds, then stop, also where an endpoint answers nothing.

        What remains is on disk, for the next relay of this run or `replay`.

        Returns:
            Whether everything was delivered that has an endpoint.
        """
        deadline = time.monotonic() + timeout_s
        for lane in self._lanes.values():
            lane.finish(deadline)
        closed = [lane.close(deadline) for lane in self._lanes.values()]
        return all(closed)

    def untaken(self) -> list[Untaken]:
        """What was not delivered by `close`, with those signals together that share a place and a reason."""
        found: dict[tuple[str, str], list[Signal]] = {}
        for signal, lane in self._lanes.items():
            if lane.untaken is not None:
                found.setdefault(lane.untaken, []).append(signal)
        return [Untaken(place, signals, reason) for (place, reason), signals in found.items()]

    def is_delivering(self) -> bool:
        """Whether an endpoint has not taken everything yet."""
        return any(lane.is_delivering() for lane in self._lanes.values())

    def health(self) -> Mapping[Signal, SignalHealth]:
        """How each signal fares, those that are switched off included."""
        return {signal: self._lanes[signal].health() if signal in self._lanes else SignalHealth() for signal in SIGNALS}

    def _put(self, signal: Signal, batches: Iterator[Any]) -> None:
        lane = self._lanes.get(signal)
        if lane is not None:
            for batch in batches:
                lane.put(batch)


class _Lane:
    """One signal: its journal, and the thread that delivers it where there is an endpoint.

    `untaken`: once it is closed, the place that has not taken everything, and why; None: all of it is delivered.
    """

    def __init__(self, signal: Signal, journal: Journal, delivery: Delivery | None, complain: Complaints):
        self.untaken: tuple[str, str] | None = None
        self._signal = signal
        self._journal = journal
        self._complain = complain
        self._unencodable = 0
        self._sender = _Sender(journal, delivery, complain) if delivery else None
        if self._sender is not None:
            self._sender.start()

    def put(self, batch: Any) -> None:
        try:
            with listening() as heard:
                text = encode(self._signal, batch)
        except Exception as error:  # noqa: BLE001 - the SDK's encoder raises what it likes for what it cannot encode
            self._unencodable += 1
            self._complain(f"{self._signal} encode", f"a batch of {self._signal} cannot be encoded ({error!r:.200})")
            return
        if heard.records:
            self._complain(
                f"{self._signal} attribute", f"an attribute in {self._signal} cannot be encoded; it is left out"
            )
        self._journal.append(text)
        if self._sender is not None:
            self._sender.wake()

    def is_delivering(self) -> bool:
        return self._sender is not None and self._journal.pending_bytes > 0

    def finish(self, deadline: float) -> None:
        if self._sender is not None:
            self._sender.finish(deadline)

    def close(self, deadline: float) -> bool:
        """Whether all is delivered, at `deadline` (monotonic, s) at the latest."""
        if self._sender is not None:
            self.untaken = self._sender.stop(deadline)
        self._journal.close()
        return self.untaken is None

    def health(self) -> SignalHealth:
        courier = self._sender.courier if self._sender else None
        return SignalHealth(
            delivered=courier.delivered if courier else 0,
            failures=courier.failures if courier else 0,
            pending_bytes=self._journal.pending_bytes,
            dropped=self._journal.dropped + self._unencodable,
            rejected=courier.rejected if courier else 0,
        )


class _Sender(threading.Thread):
    """Delivers a journal while the relay lives.

    A daemon: a request that hangs in a silent server cannot be called off, and nobody waits for it.
    """

    def __init__(self, journal: Journal, delivery: Delivery, complain: Complaints):
        super().__init__(name=f"trainspan-{delivery.destination.signal}", daemon=True)
        self.courier = Courier(journal, delivery, self._complain_while_serving)
        self._complain = complain
        self._stopped = False
        self._journal = journal
        self._delivery = delivery
        self._admission = admission_to(delivery.destination, complain)
        self._news = threading.Event()
        self._finishing = threading.Event()
        self._deadline = math.inf

    def run(self) -> None:
        while True:
            self._news.clear()
            finishing = self._finishing.is_set()
            step = "stuck" if self._is_refused() else self.courier.step()
            if step == "moved":
                self._journal.trim()
            elif step == "stuck":
                if self._admission and self.courier.last.verdict == "unanswered":
                    self._admission.doubt()
                if not self._wait_before_next_try(finishing):
                    return
            elif finishing:
                return
            else:
                self._news.wait()

    def wake(self) -> None:
        """There is something new in the journal."""
        self._news.set()

    def finish(self, deadline: float) -> None:
        """Deliver what is there, and end: at the journal's end, or where `deadline` leaves no time for another try."""
        self._deadline = deadline
        self._finishing.set()
        self._news.set()

    def stop(self, deadline: float) -> tuple[str, str] | None:
        """The place that has not taken everything by `deadline`, and why; it is delivered nothing afterwards."""
        self.join(max(0.0, deadline - time.monotonic()))
        done = not self.is_alive() and self._journal.pending_bytes == 0
        untaken = None if done else (self._delivery.destination.place, self._reason())
        self._stopped = True
        self._delivery.close()
        return untaken

    def _complain_while_serving(self, cause: str, message: str) -> None:
        """Hand on what the courier says, but not that it will try again when it will not."""
        if not self._stopped:
            self._complain(cause, message)

    def _reason(self) -> str:
        """Why the endpoint has not taken the first line."""
        refusal = self._admission.refusal if self._admission else None
        # Of a short run, the SDK is still at its first attempt.
        last = self.courier.last
        before = last.reason if last.verdict in ("refused", "unanswered") else None
        return refusal or self._delivery.failing() or before or "no answer yet"

    def _is_refused(self) -> bool:
        """Whether there is something to deliver, and our or the endpoint's certificate is in the way."""
        if self._admission is None or not self._journal.pending_bytes or not self._admission.is_refused():
            return False
        self.courier.refusals += 1
        return True

    def _wait_before_next_try(self, finishing: bool) -> bool:
        """Whether there is a next try."""
        backoff_s = self.courier.backoff_s()
        if not finishing:
            self._finishing.wait(backoff_s)
            return True
        if self.courier.is_hopeless or time.monotonic() + backoff_s >= self._deadline:
            return False
        time.sleep(backoff_s)
        return True


def _way_out(signal: Signal, environ: Mapping[str, str], complain: Complaints) -> tuple[Kind, Delivery | None]:
    """What becomes of a signal, and the way to its endpoint where it has one."""
    try:
        goal = destination(signal, environ)
        if goal.beside:
            left_out = f"{', '.join(goal.beside)} of OTEL_{signal.upper()}_EXPORTER is not served by the relay"
            complain(left_out, f"{left_out}: it takes {signal} to one place, {goal.place}")
        return goal.kind, Delivery(goal) if goal.kind in ("otlp", "console") else None
    except SettingError as error:
        # One variable can spoil the destinations of three signals, and is one cause.
        complain(str(error), f"{error}; what it concerns is kept in the run folder")
        return "folder", None


def _sliced(items: Sequence[Any]) -> Iterator[Sequence[Any]]:
    return (items[start : start + BATCH_ITEMS] for start in range(0, len(items), BATCH_ITEMS))


def _parted(metrics: MetricsData) -> Iterator[MetricsData]:
    """`metrics` in requests of at most `BATCH_POINTS`, or of one resource, whatever is more."""
    part: list[Any] = []
    points = 0
    for resource in metrics.resource_metrics:
        of_resource = sum(len(metric.data.data_points) for scope in resource.scope_metrics for metric in scope.metrics)
        if part and points + of_resource > BATCH_POINTS:
            yield MetricsData(part)
            part, points = [], 0
        part.append(resource)
        points += of_resource
    if part:
        yield MetricsData(part)
