"""What the script of one rank says with the API, as it comes in; read with distrust."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from trainspan import names
from trainspan.relay.timeline.told import Value
from trainspan.relay.timeline.user_events import UserEvent, configured_of, user_event_of

_KIND_CHARACTERS: Final = 64
_KINDS: Final = 32
_MOST_CALLS: Final = 1 << 48


class Said:
    """What one rank's script has said.

    Attributes:
        events: what has happened, until somebody takes it.
        configured: what it has told of itself, by its name on the wire.
        tags: what it wants on everything its rank sends.
        misuse: calls that made no sense, by kind.
    """

    def __init__(self) -> None:
        self.events: list[UserEvent] = []
        self.configured: dict[str, Value] = {}
        self.tags: dict[str, str] = {}
        self.misuse: dict[str, int] = {}
        self._take: Mapping[str, Callable[[Mapping[str, Any]], None]] = {
            "user_event": self._take_event,
            "configured": self._take_configured,
            "misuse": self._take_misuse,
        }

    def take(self, event: Mapping[str, Any]) -> bool:
        """Take an event over; False: it is none of the script's."""
        take = self._take.get(event["event"])
        if take is not None:
            take(event)
        return take is not None

    def _take_event(self, event: Mapping[str, Any]) -> None:
        read = user_event_of(event)
        if read is not None:
            self.events.append(read)

    def _take_configured(self, event: Mapping[str, Any]) -> None:
        configured = configured_of(event)
        self.configured.update(configured.values)
        self.tags.update(configured.tags)
        told = {**configured.values, **configured.tags}
        if told:
            self.events.append(UserEvent(names.EVENT_CONFIGURED, event["ts"], None, told))

    def _take_misuse(self, event: Mapping[str, Any]) -> None:
        kind, count = event.get("kind"), event.get("count")
        # The node's ranks are added up, and a counter has 64 bits.
        if not (isinstance(kind, str) and type(count) is int and 0 <= count < _MOST_CALLS):
            return
        if kind in self.misuse or len(self.misuse) < _KINDS:
            self.misuse[kind[:_KIND_CHARACTERS]] = count
