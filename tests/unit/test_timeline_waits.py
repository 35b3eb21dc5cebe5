"""Who waited for whom in a collective, from durations alone."""

from trainspan.relay.timeline.collectives import Call, Group, Kind
from trainspan.relay.timeline.waits import Stay, Wait, waits_of

WORLD = Group("0", "default_pg", (0, 1, 2))
REDUCE = Kind("all_reduce", WORLD, 4096)


def stay(start_ns: int, end_ns: int, sequence: int | None = 5, kind: Kind = REDUCE) -> Stay:
    """One rank's time in one collective."""
    return Stay(Call(kind, sequence), start_ns, end_ns)


def test_the_rank_that_came_last_waited_for_nobody() -> None:
    """It is the straggler; what the others spent beyond its time, they waited for it."""
    ranks = [[stay(0, 100)], [stay(90, 101)], [stay(1040, 1100)]]  # on clocks that differ

    waits = waits_of(ranks)

    assert waits == [[Wait(REDUCE, 0, 89)], [Wait(REDUCE, 90, 90)], [Wait(REDUCE, 1040, 1089)]]


def test_collectives_are_told_apart_by_their_number() -> None:
    """A rank may be one collective ahead in its step."""
    ranks = [[stay(0, 100), stay(200, 210, 6)], [stay(90, 100), stay(300, 330, 6)]]

    waits = waits_of(ranks)

    assert [[wait.end_ns - wait.start_ns for wait in of_rank] for of_rank in waits] == [[90, 0], [0, 20]]


def test_what_nobody_else_took_part_in_tells_nothing() -> None:
    """Of a group with one member on this node, or a message, or a wait for something launched long ago."""
    send = Kind("send", WORLD, 8)
    ranks = [[stay(0, 100, 1), stay(0, 9, None), stay(0, 9, 3, send)], [stay(0, 50, 2), stay(0, 5, 3, send)]]

    waits = waits_of(ranks)

    assert waits == [[], []]
