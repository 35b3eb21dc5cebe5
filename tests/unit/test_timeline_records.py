"""What travels behind the timeline: phase times, and how a process ended."""

from hypothesis import given
from hypothesis import strategies as st

from trainspan.names import Phase
from trainspan.relay.timeline.records import EndReason, ProcessEnd, RankStep, phase_of_end, phase_times_of, place_of_end
from trainspan.testing.builders import rank_step


@given(st.lists(st.tuples(st.sampled_from(list(Phase)), st.integers(0, 1000))))
def test_phase_times_add_up_to_the_step(phases: list[tuple[Phase, int]]) -> None:
    """Account, metrics and report all start from them: what is missing here is missing everywhere."""
    step = rank_step(0, phases)

    times_ns = phase_times_of(step)

    assert sum(times_ns.values()) == step.end_ns - step.start_ns
    for phase in Phase:
        assert times_ns.get(phase, 0) == sum(ns for its, ns in phases if its is phase)


def test_a_death_is_in_the_last_interval() -> None:
    """A SIGKILL leaves no mark behind: where the rank was last is where it died."""
    step = rank_step(3, [(Phase.FORWARD, 5), (Phase.BACKWARD, 5)], failed=[0], complete=False)

    phase = phase_of_end(step)

    assert phase is Phase.BACKWARD


def test_an_exception_is_in_the_innermost_phase_it_left_last() -> None:
    """Behind it the rank ran its way out of the closure and the program; those did not fail first."""
    step = rank_step(
        3,
        [(Phase.DATA_WAIT, 1), (Phase.OTHER, 1), (Phase.FORWARD, 5), (Phase.OPTIMIZER, 1), (Phase.OTHER, 9)],
        failed=[0, 2, 3],
        complete=False,
    )

    place = place_of_end(step)

    assert place == 2


def test_a_rank_killed_on_its_way_out_failed_where_the_exception_left() -> None:
    """When one rank dies the others' collectives raise, and their launcher ends them before they are out."""
    step = rank_step(3, [(Phase.FORWARD, 5), (Phase.BACKWARD, 5), (Phase.OTHER, 2)], failed=[1], complete=False)

    told = ProcessEnd(0, "died", "SIGTERM").sentence(step)

    assert told == "process ended by SIGTERM in backward of step 3"


def test_an_exception_in_the_users_own_code_is_in_other() -> None:
    """A phase that failed earlier, and was caught, must not be blamed."""
    step = rank_step(3, [(Phase.DATA_WAIT, 1), (Phase.FORWARD, 5), (Phase.OTHER, 9)], failed=[0], complete=False)

    phase = phase_of_end(step)

    assert phase is Phase.OTHER


def test_the_end_in_words_says_what_is_known() -> None:
    """It is what a person reads on the red span."""
    step = rank_step(41, [(Phase.BACKWARD, 5)], complete=False)

    def words(reason: EndReason, cause: str | None, at: RankStep | None) -> str:
        return ProcessEnd(0, reason, cause).sentence(at)

    assert words("died", None, step) == "process ended in backward of step 41"
    assert words("died", "SIGKILL", step) == "process ended by SIGKILL in backward of step 41"
    assert words("exception", "ValueError", None) == "process ended by ValueError in init"
    assert not ProcessEnd(0, "closed").failed
    assert ProcessEnd(0, "exception").failed
