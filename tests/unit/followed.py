"""A channel for bridges that are under test, the tape behind it, and what was told."""

from typing import Any

from tests.unit.tapes import recording_marker
from trainspan.identity import Assignment
from trainspan.record.bridges.channel import Channel
from trainspan.record.checkpoints import Notes
from trainspan.record.course import Course
from trainspan.record.hooks import optimizer
from trainspan.record.patches import Patches
from trainspan.record.scalars import ScalarLog
from trainspan.record.spans import SpanTeller


class Followed:
    """A channel, the tape behind it, what was told, and what was done of which the process was told."""

    def __init__(self) -> None:
        marker, self.tape = recording_marker()
        self.marker = marker
        self.told: list[dict[str, Any]] = []
        self.done: list[tuple[Any, ...]] = []
        self.patches = Patches()
        scalars = ScalarLog(self.tell, marker.steps, {})
        course = Course(self.tell, marker.steps)
        notes, spans = Notes(marker, self.tell, lambda: True), SpanTeller(self.tell, lambda: True)
        self.shared = self.claims = 0
        stepping = optimizer.install(marker, self.patches, self.claim, [])
        self.channel = Channel(marker, scalars, course, notes, spans, self.share_run, stepping, self)

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

    def assign(self, assignment: Assignment) -> None:
        """Remember what the process is to do."""
        self.done.append(("assign", assignment))

    def begin(self) -> None:
        """Remember that it is recorded from now on."""
        self.done.append(("begin",))

    def close(self) -> None:
        """Remember that it is at its end."""
        self.done.append(("close",))

    def note_fatal(self, error: BaseException) -> None:
        """Remember what has ended it."""
        self.done.append(("fatal", error))

    def note_stop(self, signal: str) -> None:
        """Remember how it is about to be stopped."""
        self.done.append(("stop", signal))
