"""Quantiles within 1 %, mergeable, bounded, and readable from a file that may hold anything."""

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainspan.relay.timeline.sketch import MOST_BUCKETS, Sketch

SECONDS = st.one_of(st.just(0.0), st.floats(1e-9, 1e6))


def sketch_of(values: list[float]) -> Sketch:
    """A sketch that has counted these."""
    sketch = Sketch()
    for value in values:
        sketch.add(value)
    return sketch


def state_of(sketch: Sketch) -> tuple[Any, ...]:
    """Everything in it that does not depend on the order of adding."""
    return sketch.count, sketch.least, sketch.greatest, sketch.zeros, sketch.buckets


@given(st.lists(SECONDS, min_size=1, max_size=200), st.floats(0, 1))
def test_a_quantile_is_within_one_percent(values: list[float], q: float) -> None:
    """The report compares p95 of ranks; an error near their difference would name the wrong straggler."""
    exact = sorted(values)[math.floor(q * (len(values) - 1))]

    answer = sketch_of(values).quantile(q)

    assert answer is not None
    assert answer == pytest.approx(exact, rel=0.01, abs=1e-9)


@given(st.lists(SECONDS), st.lists(SECONDS))
def test_merging_is_counting_everything(some: list[float], others: list[float]) -> None:
    """A run's quantiles come from the sketches of its nodes; the order and the cut must not matter."""
    merged = sketch_of(some)

    merged.merge(sketch_of(others))

    both = sketch_of(some + others)
    assert state_of(merged) == state_of(both)
    assert merged.total == pytest.approx(both.total)


@given(st.lists(st.floats(0, allow_infinity=False), max_size=50))
def test_no_value_makes_more_buckets_than_the_bound(values: list[float]) -> None:
    """A relay of eight ranks keeps seventy sketches; each must be bounded whatever the times are."""
    sketch = sketch_of(values)

    indices = sorted(sketch.buckets)

    assert not indices or indices[-1] - indices[0] < MOST_BUCKETS
    assert sketch.count == len(values)


def test_a_sketch_of_nothing_answers_none() -> None:
    """Zero seconds would claim a measurement."""
    sketch = Sketch()

    answers = (sketch.quantile(0.5), sketch.mean)

    assert answers == (None, None)


@given(st.lists(SECONDS, max_size=30))
def test_it_comes_back_from_json_as_it_was(values: list[float]) -> None:
    """The report reads what the relay wrote, in another process, perhaps years later."""
    sketch = sketch_of(values)

    read = Sketch.from_json(json.loads(json.dumps(sketch.to_json())))

    assert state_of(read) == state_of(sketch)
    assert read.total == sketch.total


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"scale": 5}, "scale 5"),
        ({"count": 3}, "hold 2 values"),
        ({"buckets": [[0, -1], [1, 3]]}, "hold 2 values"),
        ({"buckets": [[99999, 2]]}, "out of range"),
        ({"buckets": [[1]]}, "no sketch"),
        ({"buckets": 7}, "no sketch"),
        ({"min": 3.0}, "from 3.0 to 2.0"),
        ({"max": float("inf")}, "inf"),
        ({"sum": float("nan")}, "nan"),
        ({"sum": None}, "no sketch"),
    ],
)
def test_a_torn_sketch_is_refused(change: dict[str, Any], says: str) -> None:
    """Numbers that contradict each other would be reported as measured."""
    written = {**sketch_of([1.0, 2.0]).to_json(), **change}

    with pytest.raises(ValueError, match=says):
        Sketch.from_json(written)
