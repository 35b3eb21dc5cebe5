"""The nodes of a job agree on the number of its first attempt, in the store by which they have met."""

from torch.distributed import HashStore, PrefixStore

from trainspan.record.agent import say_highest


def test_highest_number_is_what_all_are_told() -> None:
    """A new machine knows of no attempt, and may be the first to say so, or the last."""
    store = HashStore()

    said = [say_highest(store, number, instead=True) for number in (0, 3, 1)]

    assert said == [0, 3, 3]
    assert [say_highest(store, number, instead=False) for number in (0, 3, 1)] == [3, 3, 3]


def test_without_a_wait_for_each_other_the_first_one_says_it() -> None:
    """Who has been told already would not hear of a higher one."""
    store = HashStore()

    said = [say_highest(store, number, instead=False) for number in (1, 4)]

    assert said == [1, 1]


def test_what_was_said_in_one_round_holds_in_the_next() -> None:
    """Each round of a rendezvous has a prefix of its own; the attempts go on."""
    store = HashStore()

    first = say_highest(PrefixStore("round.0", store), 2, instead=True)

    assert say_highest(PrefixStore("round.1", store), 0, instead=False) == first == 2


def test_store_that_takes_nothing_holds_nobody_up() -> None:
    """A rendezvous can be of anybody's making, and a launcher that waits for ever is a job that never starts."""

    class Stubborn:
        def compare_set(self, *_: str) -> bytes:
            return b"1"

    assert say_highest(Stubborn(), 5, instead=True) == 1
