"""How numbers read in a report."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainspan.report import quantities


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (0.0, "0 s"),
        (4e-7, "0 s"),
        (5e-6, "5.00 µs"),
        (9.996e-4, "1.00 ms"),
        (0.0412, "41.2 ms"),
        (0.4126, "413 ms"),
        (0.99951, "1.00 s"),
        (59.94, "59.9 s"),
        (99.4, "99.4 s"),
        (99.6, "1 min 40 s"),
        (3599.4, "59 min 59 s"),
        (3599.6, "1 h 00 min"),
        (86399, "1 d 00 h"),
        (360000, "4 d 04 h"),
    ],
)
def test_duration_reads_at_a_glance(seconds: float | None, text: str) -> None:
    """A reader compares rows; the unit must fit the number, also where it is about to roll over."""
    assert quantities.duration(seconds) == text


@given(st.floats(min_value=0, max_value=8e7))
def test_duration_never_outgrows_its_column(seconds: float) -> None:
    """Tables are laid out for 11 characters; a wider number would push the report past 80 columns."""
    text = quantities.duration(seconds)

    assert len(text) <= 11
    assert "1000" not in text.split()[0]


@pytest.mark.parametrize(
    ("share", "text"), [(None, "-"), (0.0, "0.0 %"), (0.8123, "81.2 %"), (1.0, "100.0 %"), (0.0004, "0.0 %")]
)
def test_ratio_reads_as_percent(share: float | None, text: str) -> None:
    """What was not measured is a dash, so that it cannot be taken for zero."""
    assert quantities.ratio(share) == text


@pytest.mark.parametrize(
    ("per_second", "text"), [(None, "-"), (0.0, "0.00/s"), (1.934, "1.93/s"), (250.0, "250/s"), (0.01, "0.60/min")]
)
def test_rate_of_a_slow_run_is_per_minute(per_second: float | None, text: str) -> None:
    """A large model takes a minute a step; `0.02/s` would hide the difference between 0.016 and 0.024."""
    assert quantities.rate(per_second) == text


@pytest.mark.parametrize(
    ("size_bytes", "text"), [(None, "-"), (0, "0 B"), (1023, "1023 B"), (1 << 20, "1.00 MiB"), (3 << 29, "1.50 GiB")]
)
def test_size_uses_binary_units(size_bytes: int | None, text: str) -> None:
    """`df` and ring sizes are powers of two."""
    assert quantities.size(size_bytes) == text


@pytest.mark.parametrize(
    ("joules", "text"),
    [(None, "-"), (0.0, "0.00 J"), (31.4, "31.4 J"), (999.6, "1.00 kJ"), (52_100, "52.1 kJ"), (3.6e6, "1.00 kWh")],
)
def test_energy_reads_at_a_glance(joules: float | None, text: str) -> None:
    """Nobody knows how much a megajoule is; a kilowatt hour has a price."""
    assert quantities.energy(joules) == text


@pytest.mark.parametrize(
    ("per_second", "text"),
    [(0.0, "0.00 tokens/s"), (812.4, "812 tokens/s"), (999.7, "1.00k tokens/s"), (31_240.0, "31.2k tokens/s")],
)
def test_count_rate_reads_at_a_glance(per_second: float, text: str) -> None:
    """Tokens come in millions."""
    assert quantities.count_rate(per_second, "tokens") == text


def test_flop_rate_has_the_prefix_at_its_unit() -> None:
    """TFLOP/s is what the word is, in every paper and on every data sheet."""
    rates = [quantities.flop_rate(per_second) for per_second in (3.12e14, 4.2e9, 12.0)]

    assert rates == ["312 TFLOP/s", "4.20 GFLOP/s", "12.0 FLOP/s"]
