"""Which steps get a trace: by the standard variables, alike on all nodes, and by default those worth looking at."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainspan.identity import trace_id_of
from trainspan.relay.signals.sampling import SLOW_AFTER, SLOW_BURST, SLOW_EVERY_NS, SLOW_MOST, StepSampler
from trainspan.sampling import FIRST_STEPS, sampling_from

PACE_NS = 1_000_000
NAMES = "always_on, always_off, traceidratio, parentbased_always_on, parentbased_always_off, parentbased_traceidratio"


def sampler_of(environ: Mapping[str, str], run: str = "run-1", attempt: int = 0) -> StepSampler:
    """The sampler that this environment, which is in order, asks for."""
    sampling, problems = sampling_from(environ)
    assert problems == []
    return StepSampler(sampling, run, attempt)


def reasons_of(sampler: StepSampler, durations_ns: list[int], first: int = 0) -> dict[int, str]:
    """Reason by step number, of those that have one."""
    reasons = {}
    end_ns = 0
    for number, duration_ns in enumerate(durations_ns, first):
        end_ns += duration_ns
        reason = sampler.reason_for(number, duration_ns, end_ns)
        if reason is not None:
            reasons[number] = reason
    return reasons


def test_unset_takes_the_first_steps_and_one_in_a_hundred_by_trace_id() -> None:
    """Somebody who switches it on must see a trace at once, and a steady trickle later."""
    sampler = sampler_of({})

    reasons = reasons_of(sampler, [PACE_NS] * 10_000)

    shares = [number for number, reason in reasons.items() if reason == "share"]
    assert [number for number, reason in reasons.items() if reason == "first"] == [0, 1, 2, 3, 4]
    assert set(reasons.values()) == {"first", "share"}
    assert 60 <= len(shares) <= 140
    assert all(trace_id_of("run-1", 0, "step", number) % (1 << 64) < (1 << 64) // 100 for number in shares)


def test_the_first_steps_are_those_the_attempt_begins_with() -> None:
    """A resumed run counts on from its checkpoint; its attempt has first steps all the same."""
    sampler = sampler_of({}, attempt=1)

    reasons = reasons_of(sampler, [PACE_NS] * 20, first=70_000)

    assert [number for number, reason in reasons.items() if reason == "first"] == list(range(70_000, 70_005))


@pytest.mark.parametrize("name", ["traceidratio", "parentbased_traceidratio", "TraceIdRatio"])
def test_every_node_samples_the_same_steps(name: str) -> None:
    """A trace with half of its ranks missing explains nothing; nodes see different times and must still agree."""
    environ = {"OTEL_TRACES_SAMPLER": name, "OTEL_TRACES_SAMPLER_ARG": "0.1"}

    one = reasons_of(sampler_of(environ), [PACE_NS] * 2000)
    other = reasons_of(sampler_of(environ), [PACE_NS * 10, PACE_NS] * 1000)

    assert one == other
    assert set(one.values()) == {name.lower()}
    assert 140 <= len(one) <= 260


@pytest.mark.parametrize("name", ["always_on", "parentbased_always_on"])
def test_always_on_takes_every_step(name: str) -> None:
    """The specification's words mean what they say."""
    reasons = reasons_of(sampler_of({"OTEL_TRACES_SAMPLER": name}), [PACE_NS] * 50)

    assert reasons == dict.fromkeys(range(50), name)


@pytest.mark.parametrize("name", ["always_off", "parentbased_always_off"])
def test_always_off_takes_none_not_even_a_failed_one(name: str) -> None:
    """Off is what somebody with a full backend asked for."""
    sampler = sampler_of({"OTEL_TRACES_SAMPLER": name})

    reason = sampler.reason_for(0, PACE_NS, PACE_NS, failed=True)

    assert reason is None
    assert sampler.sampling.off
    assert sampler.reason_for_last() is None


@pytest.mark.parametrize("environ", [{}, {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0"}])
def test_a_failed_step_is_always_taken(environ: Mapping[str, str]) -> None:
    """It is the one trace that somebody will look for."""
    sampler = sampler_of(environ)

    reason = sampler.reason_for(10, PACE_NS, PACE_NS, failed=True)

    assert reason == "failed"
    assert not sampler.sampling.off


def test_a_configured_sampler_adds_no_slow_and_no_last_steps() -> None:
    """Who sets a ratio of 0 wants none."""
    sampler = sampler_of({"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0"})

    reasons = reasons_of(sampler, [PACE_NS] * 100 + [PACE_NS * 100])

    assert reasons == {}
    assert sampler.reason_for_last() is None


def test_a_step_twice_as_long_as_the_median_is_slow() -> None:
    """Exactly twice is not; and the first steps of a job are slow for reasons everybody knows."""
    sampler = sampler_of({})
    steady = FIRST_STEPS + SLOW_AFTER

    reasons = reasons_of(sampler, [PACE_NS] * steady + [2 * PACE_NS, 2 * PACE_NS + 1, PACE_NS])

    assert [number for number, reason in reasons.items() if reason == "slow"] == [steady + 1]


def test_nothing_is_slow_before_there_is_a_median() -> None:
    """Warm-up would fill the trace budget."""
    sampler = sampler_of({})

    reasons = reasons_of(sampler, [PACE_NS] * (SLOW_AFTER - 1) + [PACE_NS * 50])

    assert "slow" not in reasons.values()


def test_the_median_follows_the_job() -> None:
    """A run that gets slower for good is slow for a while, and then that is its pace."""
    sampler = sampler_of({})

    reasons = reasons_of(sampler, [PACE_NS] * 200 + [PACE_NS * 3] * 200)

    slow = [number for number, reason in reasons.items() if reason == "slow"]
    assert slow[0] == 200
    assert slow[-1] < 260


def test_slow_steps_are_limited_in_rate_and_number() -> None:
    """A flapping network must not turn 1 in 100 into every other step for days."""
    sampler = sampler_of({})
    reasons_of(sampler, [PACE_NS] * 100)

    burst = [sampler.reason_for(1000 + n, 10 * PACE_NS, 0) for n in range(SLOW_BURST + 5)]
    later = []
    for n in range(2 * SLOW_MOST):
        reasons_of(sampler, [PACE_NS] * 2, first=10_000 + 10 * n)
        later.append(sampler.reason_for(10_009 + 10 * n, 10 * PACE_NS, (n + 1) * SLOW_EVERY_NS))

    assert burst.count("slow") <= SLOW_BURST
    # A slow step of the fixed share has a trace anyhow: it says so, and counts for no bound.
    numbers = (*range(1000, 1000 + len(burst)), *range(10_009, 10_009 + 10 * len(later), 10))
    taken = [number for number in numbers if sampler.sampling.takes(trace_id_of("run-1", 0, "step", number))]
    assert burst.count("slow") + later.count("slow") == SLOW_MOST + len(taken)


def test_a_slow_step_of_the_fixed_share_says_that_it_was_slow() -> None:
    """A gateway thins out the ordinary ones by this word; slow steps it must keep."""
    sampler = sampler_of({})
    shared = next(n for n in range(200, 10_000) if sampler.sampling.takes(trace_id_of("run-1", 0, "step", n)))
    reasons_of(sampler, [PACE_NS] * shared)

    reason = sampler.reason_for(shared, 10 * PACE_NS, shared * PACE_NS)

    assert reason == "slow"


def test_the_last_step_of_an_attempt_is_taken() -> None:
    """Where a run ended is looked at more often than where it was."""
    sampler = sampler_of({})

    reason = sampler.reason_for_last()

    assert reason == "last"


@pytest.mark.parametrize(
    ("environ", "says"),
    [
        (
            {"OTEL_TRACES_SAMPLER": "sometimes"},
            f"OTEL_TRACES_SAMPLER='sometimes' is not understood: use {NAMES}; going on as if it were not set",
        ),
        (
            {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "half"},
            "OTEL_TRACES_SAMPLER_ARG='half' is not understood: use a number from 0 to 1; going on with 1",
        ),
        (
            {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "1.5"},
            "OTEL_TRACES_SAMPLER_ARG='1.5' is not understood: use a number from 0 to 1; going on with 1",
        ),
        (
            {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "nan"},
            "OTEL_TRACES_SAMPLER_ARG='nan' is not understood: use a number from 0 to 1; going on with 1",
        ),
    ],
)
def test_what_is_not_understood_is_said_and_the_default_used(environ: Mapping[str, str], says: str) -> None:
    """The relay prints it and goes on; the command line refuses it in the same words."""
    sampling, problems = sampling_from(environ)

    assert [str(problem) for problem in problems] == [says]
    unset = environ["OTEL_TRACES_SAMPLER"] == "sometimes"
    assert sampling.name == (None if unset else "traceidratio")
    assert unset or StepSampler(sampling, "run-1", 0).reason_for(9, 1, 1) == "traceidratio"


def test_an_argument_that_no_sampler_reads_is_no_problem() -> None:
    """The specification gives it a meaning only for the ratio samplers; an empty value is no value."""
    on = sampling_from({"OTEL_TRACES_SAMPLER": "always_on", "OTEL_TRACES_SAMPLER_ARG": "what"})
    empty = sampling_from({"OTEL_TRACES_SAMPLER": "", "OTEL_TRACES_SAMPLER_ARG": ""})

    assert (on[1], empty[1]) == ([], [])
    assert empty[0].name is None


@given(st.lists(st.integers(0, 10**12), max_size=300))
def test_any_durations_are_judged(durations_ns: list[int]) -> None:
    """The window of the median must never lose count of itself."""
    sampler = sampler_of({})

    reasons = reasons_of(sampler, durations_ns)

    assert set(reasons.values()) <= {"first", "share", "slow"}


def steady_sampler(environ: Mapping[str, str] | None = None) -> StepSampler:
    """A sampler that has seen as many steps as it takes to know the pace."""
    sampler = sampler_of(environ or {})
    reasons_of(sampler, [PACE_NS] * 200)
    return sampler


@pytest.mark.parametrize(("held_up_ns", "reason"), [(PACE_NS // 4, None), (PACE_NS // 4 + 1, "straggler")])
def test_a_step_in_which_one_rank_held_the_others_up_is_taken(held_up_ns: int, reason: str | None) -> None:
    """Where a rank is late in every step, none is slow."""
    number = next(n for n in range(200, 300) if not sampler_of({}).sampling.takes(trace_id_of("run-1", 0, "step", n)))

    found = steady_sampler().reason_for(number, PACE_NS, 0, held_up_ns=held_up_ns)

    assert found == reason


def test_stragglers_leave_room_for_slow_steps() -> None:
    """A rank that is late all day must not cost the one step that took ten times as long."""
    sampler = steady_sampler()

    late = [sampler.reason_for(n, PACE_NS, 0, held_up_ns=PACE_NS) for n in range(1000, 1030)]
    slow = sampler.reason_for(1030, 10 * PACE_NS, 0, held_up_ns=5 * PACE_NS)

    assert SLOW_BURST <= late.count("straggler") <= SLOW_BURST + 3
    assert slow == "slow"


def test_nobody_is_a_straggler_before_the_pace_is_known_or_where_a_sampler_is_set() -> None:
    """Ranks begin at different times; and who sets a ratio wants that ratio."""
    beginner = sampler_of({})
    reasons_of(beginner, [PACE_NS] * (SLOW_AFTER - 1))
    configured = steady_sampler({"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0"})

    early = beginner.reason_for(SLOW_AFTER - 1, PACE_NS, 0, held_up_ns=PACE_NS)
    unasked = configured.reason_for(1000, PACE_NS, 0, held_up_ns=PACE_NS)

    assert (early, unasked) == (None, None)


def test_a_step_is_everybodys_if_its_number_or_its_trace_id_says_so() -> None:
    """Below whose root a node hangs its ranks depends on it: rank 0's relay knows of nothing else."""
    sampler = sampler_of({})

    reasons = [sampler.reason_for(number, 1, number, failed=True) for number in range(7)]

    assert reasons == ["failed"] * 7
    assert [sampler.everywhere(number, "failed") for number in range(7)] == [True] * 5 + [False] * 2
    assert sampler.everywhere(6, "last")
