"""What is called at the end of a step: in order, and the first time more than later."""

from collections.abc import Callable

from trainspan.record.step_hooks import append_with_first

StepEnds = list[Callable[[], None]]


def end_step(step_ends: StepEnds) -> None:
    """What the hooks do."""
    for end in step_ends:
        end()


def test_what_the_first_step_tells_is_called_once_and_makes_nobody_miss_that_step() -> None:
    """A list that shrinks while it is gone through skips one: the collectives of a step."""
    called: list[str] = []
    step_ends: StepEnds = [lambda: called.append("before")]
    append_with_first(step_ends, lambda: called.append("each"), lambda: called.append("first"))
    step_ends.append(lambda: called.append("behind"))

    end_step(step_ends)
    end_step(step_ends)

    assert called == ["before", "each", "first", "behind", "before", "each", "behind"]


def test_step_that_a_handler_ends_within_the_end_of_the_first_raises_nothing() -> None:
    """A signal comes at any time, and what handles it may train."""
    called: list[str] = []
    step_ends: StepEnds = []

    def end_another() -> None:
        called.append("each")
        if len(called) == 1:
            end_step(step_ends)

    append_with_first(step_ends, end_another, lambda: called.append("first"))

    end_step(step_ends)
    end_step(step_ends)

    assert called == ["each", "each", "first", "first", "each"]
