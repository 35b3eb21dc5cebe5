"""A channel for bridges that are under test, the tape behind it, and what was told."""

from typing import Any

from tests.unit.tapes import recording_marker
from trainspan.record.bridges.channel import Channel
from trainspan.record.checkpoints import Notes
from trainspan.record.course import Course
from trainspan.record.hooks import optimizer
from trainspan.record.patches import Patches
from trainspan.record.scalars import ScalarLog
from trainspan.record.spans import SpanTeller


class Followed:
    """A channel, the tape behind it, and what was told."""

    def __init__(self) -> None:
        marker, self.tape = recording_marker()
        self.marker = marker
        self.told: list[dict[str, Any]] = []
        self.patches = Patches()
        scalars = ScalarLog(self.tell, marker.steps, {})
        course = Course(self.tell, marker.steps)
        notes, spans = Notes(marker, self.tell, lambda: True), SpanTeller(self.tell, lambda: True)
        self.shared = self.claims = 0
        stepping = optimizer.install(marker, self.patches, self.claim, [])
        self.channel = Channel(marker, scalars, course, notes, spans, self.share_run, stepping)

    def tell(self, event: str, **fields: Any) -> None:
        """Append an event."""
        self.told.append({"event": event, **fields})

    def claim(self) -> bool:
        """Count how often somebody was going to train."""
        self.claims += 1
        return False

    def share_run(self) -> None:
        """Count how often the run was shared."""
        self.shared += 1

    def step(self) -> None:
        """Complete a step."""
        self.marker.step(self.marker.enter(1))
