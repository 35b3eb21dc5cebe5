"""A fake device whose time the test moves, as the hook for device time asks for it."""

from trainspan.record.hooks.device_events import Device
from trainspan.testing.fake_cuda import FakeCuda


class Gpu(FakeCuda):
    """A device at `at_ms`, which the test moves."""

    def __init__(self) -> None:
        self.at_ms = 0.0
        super().__init__(lambda: self.at_ms)

    def device(self) -> Device:
        """It, as the hook asks for it."""
        return Device(
            lambda: self.ready,
            lambda: self.current,
            self.make_event,
            lambda: self.capturing or self.captures,
            self.on,
        )
