"""A device without a device: a stream that gets to its events when the test says so."""

from trainspan.record.hooks.device_events import Device


class FakeStream:
    """One stream and the clock of its device.

    Attributes:
        now_ms: time on the device; an event is reached at the time it was recorded plus `behind_ms`.
        behind_ms: how far the device is behind the host.
        capturing: whether a graph is being captured.
        ready: whether the script uses the device.
        events: every event that was made.
        queries: how often it was asked whether an event was reached.
        broken: whether every call fails, as after an error that CUDA does not forget.
    """

    def __init__(self) -> None:
        self.now_ms = 0.0
        self.behind_ms = 0.0
        self.capturing = False
        self.ready = True
        self.events: list[FakeEvent] = []
        self.queries = 0
        self.broken = False

    def device(self) -> Device:
        """It, as the hook asks for it."""
        return Device(lambda: self.ready, self.make_event, lambda: self.capturing)

    def make_event(self) -> "FakeEvent":
        """A new event."""
        self.events.append(FakeEvent(self))
        return self.events[-1]


class FakeEvent:
    """As torch.cuda.Event(enable_timing=True): what CUDA refuses, it refuses."""

    def __init__(self, stream: FakeStream):
        self._stream = stream
        self.at_ms: float | None = None

    def record(self) -> None:
        """Be reached when the device gets here."""
        if self._stream.broken:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        if self._stream.capturing:
            raise RuntimeError("an event recorded while a graph is captured has no time")
        self.at_ms = self._stream.now_ms + self._stream.behind_ms

    def query(self) -> bool:
        """Whether the device got here."""
        if self._stream.capturing:
            raise RuntimeError("operation not permitted when stream is capturing")
        self._stream.queries += 1
        return self.at_ms is not None and self.at_ms <= self._stream.now_ms

    def elapsed_time(self, end_event: "FakeEvent") -> float:
        """Milliseconds from here to there."""
        if self.at_ms is None or end_event.at_ms is None or end_event.at_ms > self._stream.now_ms:
            raise RuntimeError("device not ready")
        return end_event.at_ms - self.at_ms
