"""Energy is charged to the ranks that train on a GPU, once, and what nobody trained with to nobody."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainspan.names import Phase
from trainspan.relay.timeline.energy import PATIENCE_NS, Charges, GpuEnergy
from trainspan.relay.timeline.records import RankStep
from trainspan.testing.builders import rank_step

S = 1_000_000_000


def step(number: int, start_s: float, forward_s: float = 0.25, backward_s: float = 0.75) -> RankStep:
    """A step of two phases."""
    phases = [(Phase.FORWARD, round(forward_s * S)), (Phase.BACKWARD, round(backward_s * S))]
    return rank_step(number, phases, start_ns=round(start_s * S))


def steady(gpu: GpuEnergy, power_w: float, until_s: int, every_s: int = 10) -> None:
    """Readings of a GPU that draws evenly."""
    for at_s in range(0, until_s + 1, every_s):
        gpu.read(at_s * S, at_s * power_w, power_w)


def of(charges: Charges, rank: str) -> dict[str, Any]:
    """Joules by the name of the phase."""
    return {phase.wire: pytest.approx(joules) for phase, joules in charges[rank].joules.items()}


def test_a_rank_is_charged_for_its_time_by_phase() -> None:
    """The whole promise: 600 W for a minute are 36 kJ, a quarter of it in forward."""
    gpu = GpuEnergy()
    gpu.join("a")
    gpu.add_steps("a", [step(n, n) for n in range(61)])
    steady(gpu, 600, 60)

    charges = gpu.settle(61 * S)

    assert of(charges, "a") == {"forward": 9_000, "backward": 27_000}


def test_what_was_drawn_before_the_first_step_and_after_the_end_is_charged_to_nobody() -> None:
    """An hour of downloading is no energy of training."""
    gpu = GpuEnergy()
    gpu.join("a")
    gpu.add_steps("a", [step(n, 25 + n) for n in range(10)])
    gpu.leave("a")
    steady(gpu, 100, 60)

    charges = gpu.settle(61 * S)

    assert sum(charges["a"].joules.values()) == pytest.approx(1_000)


def test_two_ranks_on_one_gpu_share_its_energy() -> None:
    """Charged to each of them in full, the energy of the job would be twice that of the machine."""
    gpu = GpuEnergy()
    gpu.join("a")
    gpu.join("b")
    gpu.add_steps("a", [step(n, n) for n in range(60)])
    gpu.add_steps("b", [step(n, 30 + n, 0.5, 0.5) for n in range(30)])
    gpu.leave("a")
    gpu.leave("b")
    steady(gpu, 300, 60)

    charges = gpu.settle(61 * S)

    assert of(charges, "a") == {"forward": 9000 / 4 + 4500 / 4, "backward": (9000 + 4500) * 3 / 4}
    assert of(charges, "b") == {"forward": 2250, "backward": 2250}


def test_a_window_waits_for_the_step_in_which_it_ends() -> None:
    """Marks come with the end of a step; charged before, its phases would be missing."""
    gpu = GpuEnergy()
    gpu.join("a")
    gpu.add_steps("a", [step(0, 0, 2, 6)])
    steady(gpu, 100, 10)

    early = gpu.settle(11 * S)
    gpu.add_steps("a", [step(1, 8, 2, 6)])
    late = gpu.settle(17 * S)

    assert early == {}
    assert of(late, "a") == {"forward": 400, "backward": 600}


def test_a_hang_does_not_hold_windows_for_ever() -> None:
    """Nobody knows what a rank does that says nothing; the memory for its windows is bounded all the same."""
    gpu = GpuEnergy()
    gpu.join("a")
    gpu.join("b")
    gpu.add_steps("a", [step(n, n) for n in range(20)])
    gpu.add_steps("b", [step(0, 0)])
    steady(gpu, 100, 10)

    held = gpu.settle(10 * S + PATIENCE_NS)
    let_go = gpu.settle(10 * S + PATIENCE_NS + 1)

    assert held == {}
    assert sum(sum(charge.joules.values()) for charge in let_go.values()) == pytest.approx(1_000)


def test_what_somebody_else_charges_is_not_charged_here() -> None:
    """Another relay speaks for the GPU for a while; when it has left, a window must not reach back over its time."""
    gpu = GpuEnergy()
    gpu.join("a")
    gpu.add_steps("a", [step(n, n) for n in range(11)])
    steady(gpu, 100, 10)
    first = gpu.settle(10 * S)
    gpu.rest()
    gpu.add_steps("a", [step(n, n) for n in range(11, 51)])
    for at_s in (30, 40):
        gpu.read(at_s * S, at_s * 100.0, None)

    later = gpu.settle(41 * S)

    assert [sum(charges["a"].joules.values()) for charges in (first, later)] == pytest.approx([1000, 1000])


def test_a_counter_that_has_not_moved_makes_no_window() -> None:
    """It is refreshed ten times a second: between two of that, a reading says nothing new, and is no zero."""
    gpu = GpuEnergy()
    gpu.join("a")
    gpu.add_steps("a", [step(0, 0, 2, 4)])
    for at_ns, joules in ((0, 0.0), (S, 0.0), (2 * S, 0.0), (4 * S, 800.0)):
        gpu.read(at_ns, joules, None)

    charges = gpu.settle(6 * S)

    assert of(charges, "a") == {"forward": 400, "backward": 400}


def test_an_old_card_is_measured_by_its_power() -> None:
    """A card without a counter draws no less for it; between readings the trapezoid is the best guess."""
    gpu = GpuEnergy()
    gpu.join("a")
    gpu.add_steps("a", [step(n, n) for n in range(31)])
    for at_s, power_w in ((0, 178), (10, 201), (20, 154), (30, 154)):
        gpu.read(at_s * S, None, power_w)

    charges = gpu.settle(31 * S)

    assert sum(charges["a"].joules.values()) == pytest.approx((178 + 201) / 2 * 10 + (201 + 154) / 2 * 10 + 1540)


def test_a_counter_that_once_does_not_answer_costs_nothing() -> None:
    """A driver that is busy refuses a call now and then: power must not stand in for a counter that goes on."""
    gpu = GpuEnergy()
    gpu.join("a")
    gpu.add_steps("a", [step(n, n) for n in range(41)])
    for at_s, counted_j in ((0, 50_000.0), (10, 56_500.0), (20, None), (30, 69_500.0), (40, 76_000.0)):
        gpu.read(at_s * S, counted_j, 650)

    charges = gpu.settle(41 * S)

    assert sum(charges["a"].joules.values()) == pytest.approx(26_000)


def test_a_counter_that_answers_late_is_no_energy_of_the_time_before() -> None:
    """It counts from its own first reading; what was integrated until then is another number."""
    gpu = GpuEnergy()
    gpu.join("a")
    gpu.add_steps("a", [step(n, n) for n in range(31)])
    for at_s, counted_j in ((0, None), (10, None), (20, 90_000.0), (30, 96_500.0)):
        gpu.read(at_s * S, counted_j, 650)

    charges = gpu.settle(31 * S)

    assert sum(charges["a"].joules.values()) == pytest.approx(13_000)


def test_a_device_that_tells_neither_is_charged_to_nobody() -> None:
    """No energy known is not no energy."""
    gpu = GpuEnergy()
    gpu.join("a")
    gpu.add_steps("a", [step(0, 0)])
    gpu.read(0, None, None)
    gpu.read(S, None, None)

    assert gpu.settle(2 * S) == {}


@given(
    st.lists(st.tuples(st.integers(1, 20), st.integers(0, 900)), min_size=1, max_size=30),
    st.lists(
        st.tuples(st.integers(0, 100), st.lists(st.tuples(st.integers(1, 3000), st.integers(1, 3000)), max_size=40)),
        max_size=4,
    ),
)
def test_never_more_is_charged_than_was_drawn(
    readings: list[tuple[int, int]], ranks: list[tuple[int, list[tuple[int, int]]]]
) -> None:
    """Whatever the ranks did when: the sum over all of them is at most what the counter has risen by."""
    gpu = GpuEnergy()
    for name, (start_s, phases) in enumerate(ranks):
        gpu.join(str(name))
        at_ms = start_s * 1000
        for number, (forward_ms, backward_ms) in enumerate(phases):
            gpu.add_steps(str(name), [step(number, at_ms / 1000, forward_ms / 1000, backward_ms / 1000)])
            at_ms += forward_ms + backward_ms
        gpu.leave(str(name))
    at_s, joules = 0, 0.0
    gpu.read(0, 0.0, None)
    for seconds, power_w in readings:
        at_s += seconds
        joules += seconds * power_w
        gpu.read(at_s * S, joules, None)

    charges = gpu.settle(at_s * S + 1)

    charged = sum(sum(charge.joules.values()) for charge in charges.values())
    assert charged <= joules * (1 + 1e-9)
    assert all(value >= 0 for charge in charges.values() for value in charge.joules.values())
