"""Every nanosecond of a rank's wall clock is charged to exactly one state."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainspan.names import STATES, Phase
from trainspan.relay.goodput.account import Account
from trainspan.relay.timeline.records import EndReason, ProcessEnd, RankStep, phase_times_of
from trainspan.relay.timeline.steps import RankTimeline
from trainspan.testing.builders import MarkTape, rank_step


def charged(account: Account, *steps: RankStep) -> Account:
    """`account`, with training that began with these steps."""
    account.start(steps[0].start_ns)
    for step in steps:
        account.charge(step, phase_times_of(step))
    return account


PHASES = [(Phase.DATA_WAIT, 5), (Phase.H2D, 1), (Phase.FORWARD, 20), (Phase.VALIDATION, 7), (Phase.OTHER, 2)]


def test_a_completed_step_is_charged_by_its_phases() -> None:
    """Waiting for data and validating are not what the step is for; the rest is."""
    account = charged(Account(process_start_ns=60), rank_step(0, PHASES, start_ns=100))

    states = account.states()

    assert states == {"init": 40, "data_wait": 5, "validation": 7, "productive": 23}
    assert account.elapsed_ns == 75


def test_an_attempt_begins_with_the_outage_and_the_steps_it_does_again() -> None:
    """A counter cannot be taken back, so what was lost is charged when it is done again; a save in it is a save."""
    account = Account(process_start_ns=60)
    account.resume(30, 1)
    phases = [(Phase.DATA_WAIT, 5), (Phase.FORWARD, 20), (Phase.CHECKPOINT_SAVE, 3)]

    charged(account, rank_step(0, phases, start_ns=100), rank_step(1, phases, start_ns=128))

    assert account.states() == {
        "restart": 30,
        "init": 40,
        "lost_work": 25,
        "productive": 20,
        "data_wait": 5,
        "checkpoint_save": 6,
    }
    assert account.elapsed_ns == 126


@pytest.mark.parametrize("told", [0, 1, 2, 3])
@pytest.mark.parametrize("gap_ns", [0, 30])
def test_an_account_goes_on_where_it_was_left(told: int, gap_ns: int) -> None:
    """Another relay takes over, and a counter may neither fall nor count twice; the next step begins late."""
    steps = [rank_step(number, PHASES, start_ns=start_ns) for number, start_ns in enumerate((100, 135, 180))]
    whole, left = Account(process_start_ns=60), Account(process_start_ns=60)
    for account in (whole, left):
        account.resume(gap_ns, 2)
    charged(whole, *steps)
    for step in steps[:told]:
        charged(left, step)

    account = Account(60, left.states(), told)
    account.resume(gap_ns, 2)
    account.start(100)
    for step in steps[told:]:
        account.charge(step, phase_times_of(step))

    assert account.states() == whole.states()
    assert (account.began_ns, account.charged_until_ns) == (whole.began_ns, whole.charged_until_ns)


def test_outage_is_charged_once_and_the_steps_may_become_known_later() -> None:
    """Where a run is taken up can be known only after its first step."""
    account = Account(process_start_ns=60)
    account.resume(30, 0)
    charged(account, rank_step(0, [(Phase.FORWARD, 10)], start_ns=100))

    account.resume(30, 2)
    charged(account, *[rank_step(n, [(Phase.FORWARD, 10)], start_ns=100 + 10 * n) for n in (1, 2)])

    assert account.states() == {"restart": 30, "init": 40, "productive": 20, "lost_work": 10}


def test_before_the_first_step_nothing_is_known_yet() -> None:
    """Time is charged when it is known what it was; a counter that took it back would not be monotonic."""
    account = Account(process_start_ns=60)

    states, so_far = account.states(), account.states_at(100)

    assert states == {}
    assert so_far == {"unaccounted": 40}


def test_the_running_step_is_unaccounted_until_it_completes() -> None:
    """A hang must be seen as time that nothing explains, not as productive time."""
    account = charged(Account(0), rank_step(0, [(Phase.FORWARD, 10)], start_ns=5))

    so_far = account.states_at(1000)

    assert so_far == {"init": 5, "productive": 10, "unaccounted": 985}
    assert account.states() == {"init": 5, "productive": 10}
    assert account.states_at(3) == account.states()


def test_after_the_last_step_an_orderly_process_shuts_down() -> None:
    """Saving and tearing down is not training, but a last validation is still validation."""
    account = charged(Account(0), rank_step(0, [(Phase.FORWARD, 10)], start_ns=0))
    rest = rank_step(1, [(Phase.OTHER, 3), (Phase.VALIDATION, 8), (Phase.OTHER, 4)], start_ns=10, complete=False)

    account.close(ProcessEnd(30, "closed"), rest)

    assert account.states() == {"productive": 10, "shutdown": 12, "validation": 8}
    assert account.elapsed_ns == 30


@pytest.mark.parametrize("reason", ["died", "exception"])
def test_the_last_step_of_a_process_that_failed_is_unaccounted(reason: EndReason) -> None:
    """Its work is lost: nobody will ever know whether it would have become a step."""
    account = charged(Account(0), rank_step(0, [(Phase.FORWARD, 10)], start_ns=0))
    rest = rank_step(1, [(Phase.FORWARD, 3), (Phase.BACKWARD, 8)], start_ns=10, complete=False)

    account.close(ProcessEnd(21, reason), rest)

    assert account.states() == {"productive": 10, "unaccounted": 11}


@pytest.mark.parametrize("reason", ["closed", "died", "exception"])
def test_a_process_without_a_step_was_in_init_all_its_life(reason: EndReason) -> None:
    """A job that dies while it loads its model has spent that time on init."""
    account = Account(10)

    account.close(ProcessEnd(50, reason), None)

    assert account.states() == {"init": 40}


def test_a_process_that_completed_no_step_was_not_shutting_down() -> None:
    """A script that only evaluates has phases and no steps: what is not validation is not explained."""
    account = Account(0)
    account.start(10)

    account.close(
        ProcessEnd(40, "closed"), rank_step(0, [(Phase.VALIDATION, 15), (Phase.OTHER, 15)], start_ns=10, complete=False)
    )

    assert account.states() == {"init": 10, "validation": 15, "unaccounted": 15}


def test_the_time_of_lost_marks_is_unaccounted() -> None:
    """The relay was lapped: it knows that time went by, and nothing else."""
    first = rank_step(0, [(Phase.FORWARD, 10)], start_ns=5)
    later = rank_step(9, [(Phase.FORWARD, 10)], start_ns=90)

    account = charged(Account(0), first, later)

    assert account.states() == {"init": 5, "productive": 20, "unaccounted": 75}


def test_init_that_lost_marks_hide_is_unaccounted() -> None:
    """The relay came too late to see the first step: what came before is not all init."""
    account = Account(0)
    account.start(None)
    step = rank_step(9, [(Phase.FORWARD, 10)], start_ns=90)

    account.charge(step, phase_times_of(step))

    assert account.states() == {"unaccounted": 90, "productive": 10}


def test_the_end_of_an_orderly_process_that_lost_marks_hide_is_unaccounted() -> None:
    """Without its marks nobody knows how long it still trained."""
    account = charged(Account(0), rank_step(0, [(Phase.FORWARD, 10)], start_ns=0))

    account.close(ProcessEnd(50, "closed"), None)

    assert account.states() == {"productive": 10, "unaccounted": 40}


def test_lost_time_before_an_orderly_end_is_not_shutdown() -> None:
    """The relay caught up after the last step: only what it has seen since is shutdown."""
    account = charged(Account(0), rank_step(0, [(Phase.FORWARD, 10)], start_ns=0))
    rest = rank_step(9, [(Phase.OTHER, 5)], start_ns=80, complete=False)

    account.close(ProcessEnd(85, "closed"), rest)

    assert account.states() == {"productive": 10, "unaccounted": 70, "shutdown": 5}


SPENT = st.lists(st.tuples(st.sampled_from(list(Phase)), st.integers(1, 99)), max_size=6)


@given(
    st.lists(SPENT, max_size=5),
    st.lists(st.integers(0, 60), max_size=3),
    st.integers(0, 1200),
    st.sampled_from(["closed", "died", "exception"]),
    st.integers(0, 3000),
)
def test_the_states_add_up_to_the_elapsed_time_at_every_moment(
    loop: list[list[tuple[Phase, int]]], laps: list[int], process_start_ns: int, reason: EndReason, end_ns: int
) -> None:
    """Law 6, from marks to account, over laps, odd process starts and every end; and no state ever shrinks."""
    tape = MarkTape(now_ns=1000)
    for number, phases in enumerate(loop):
        for phase, ns in phases:
            tape.spend(phase, ns)
        tape.step(number, optimizer_ns=7)
    timeline, account = RankTimeline(), Account(process_start_ns)
    before: dict[str, int] = {}

    for place in range(0, len(tape.words), 10):
        timeline.gap(int(place // 10 in laps))
        for step in timeline.feed(tape.words[place : place + 10]):
            if timeline.started:
                account.start(timeline.first_step_start_ns)
            account.charge(step, phase_times_of(step))
        states = account.states()
        assert all(states[state] >= time_ns for state, time_ns in before.items())
        assert sum(states.values()) == account.elapsed_ns
        before = states
    if timeline.started:
        account.start(timeline.first_step_start_ns)
    account.close(ProcessEnd(end_ns, reason), timeline.end(end_ns))

    states = account.states()
    assert set(states) <= set(STATES)
    assert all(states[state] >= time_ns for state, time_ns in before.items())
    assert sum(states.values()) == account.charged_until_ns - process_start_ns
    assert account.charged_until_ns >= max(end_ns, process_start_ns)
    now_ns = account.charged_until_ns + 13
    assert sum(account.states_at(now_ns).values()) == now_ns - process_start_ns
