"""What a rank's marks of collectives mean, by what it tells of their kinds.

Read with distrust: a log can hold anything.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from trainspan.recording.layout import COLLECTIVE_KIND_MASK, KIND_SHIFT, SEQUENCE_SHIFT, WAIT
from trainspan.relay.timeline.fields import field

MOST_LABELS: Final = 16
"""Groups of one rank that are told apart on metrics; those that come later share `other`."""

MOST_GROUPS: Final = 1024
MOST_KINDS: Final = 4096
_CHARACTERS: Final = 64
_LARGEST: Final = 1 << 62
_MOST_CALLS: Final = 1 << 48  # the kinds of a group are added up, and a count has 64 bits
_PAIRS: Final = frozenset({"send", "recv"})


class Group(NamedTuple):
    """A process group. `ranks`: its members in order, as far as they are told; none: torch does not know it."""

    name: str
    label: str
    ranks: tuple[int, ...]


class Kind(NamedTuple):
    """Collectives that are alike."""

    op: str
    group: Group
    size_bytes: int


class Call(NamedTuple):
    """One collective. `sequence`: how many of its group came before it; None: not known, or it is a wait for one."""

    kind: Kind
    sequence: int | None

    @property
    def key(self) -> tuple[str, str, int] | None:
        """What all that take part call it; None where they have no common name for it."""
        if self.sequence is None or self.kind.op in _PAIRS or not self.kind.group.ranks:
            return None
        return self.kind.group.name, self.kind.op, self.sequence

    def peers(self, rank: int, most: int) -> list[int]:
        """The members that take part beside `rank`, up to `most`: those that follow it in the group's order.

        None where the number of the call says nothing to them: of a message between two.
        """
        ranks = self.kind.group.ranks
        if self.key is None or rank not in ranks:
            return []
        place = ranks.index(rank)
        return [*ranks[place + 1 :], *ranks[:place]][:most]


class Calls(NamedTuple):
    """How many `more` collectives of a kind there have been."""

    kind: Kind
    more: int


_NOWHERE: Final = Group("", "unknown", ())
_WAIT: Final = "wait"
_UNKNOWN: Final = Kind("unknown", _NOWHERE, 0)


class Collectives:
    """The kinds of one process, as it tells of them."""

    def __init__(self) -> None:
        self._groups: dict[str, Group] = {}
        self._kinds: dict[int, Kind] = {0: _UNKNOWN}
        self._counts: dict[int, int] = {}

    def take(self, event: Mapping[str, Any]) -> list[Calls]:
        """Take over an event of the rank; what it says of counts. One that makes no sense changes nothing."""
        try:
            return self._take(event)
        except ValueError:
            return []

    def call(self, operand: int) -> Call:
        """The collective that a mark with this operand has begun."""
        kind = self._kinds.get(operand >> KIND_SHIFT & COLLECTIVE_KIND_MASK, _UNKNOWN)
        if operand & WAIT:
            return Call(kind._replace(op=_WAIT), None)
        return Call(kind, None if kind is _UNKNOWN else operand >> SEQUENCE_SHIFT)

    def _take(self, event: Mapping[str, Any]) -> list[Calls]:
        told = event["event"]
        if told == "collective_group":
            self._add_group(event)
        elif told == "collective_kind":
            self._add_kind(event)
        elif told == "collectives":
            return [calls for pair in field(event, "counts", list) for calls in self._count(pair)]
        return []

    def _add_group(self, event: Mapping[str, Any]) -> None:
        name, label = field(event, "group", str), field(event, "label", str)
        ranks = field(event, "ranks", list)
        if len(self._groups) >= MOST_GROUPS or not all(type(rank) is int and 0 <= rank < _LARGEST for rank in ranks):
            raise ValueError("no group")
        labels = {group.label for group in self._groups.values()}
        shown = label[:_CHARACTERS] if label in labels or len(labels) < MOST_LABELS else "other"
        self._groups[name] = Group(name, shown, tuple(ranks))

    def _add_kind(self, event: Mapping[str, Any]) -> None:
        number, size = field(event, "kind", int), field(event, "bytes", int)
        group = self._groups.get(field(event, "group", str), _NOWHERE)
        if not 0 < number <= COLLECTIVE_KIND_MASK or not 0 <= size < _LARGEST or len(self._kinds) >= MOST_KINDS:
            raise ValueError("no kind")
        self._kinds[number] = Kind(field(event, "op", str)[:_CHARACTERS], group, size)

    def _count(self, pair: Any) -> list[Calls]:
        if not (isinstance(pair, list) and len(pair) == 2 and all(type(n) is int and 0 <= n < _LARGEST for n in pair)):
            return []
        number, count = pair
        if count >= _MOST_CALLS:
            return []
        more = count - self._counts.get(number, 0)
        if number not in self._kinds or more <= 0:
            return []
        self._counts[number] = count
        return [Calls(self._kinds[number], more)]
