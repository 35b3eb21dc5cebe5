"""What the script hands over is what it should be, or nothing: it is asked only what cannot fail or wait."""

import math
from collections import UserDict
from decimal import Decimal
from enum import Enum, IntEnum
from fractions import Fraction
from pathlib import Path, PurePosixPath
from typing import Any

import numpy
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from trainspan.record import arguments


class Unbound:
    """A proxy whose object is not there yet: every question fails."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(f"asked for {name}")


class Name(str, Enum):
    """As many scripts name their phases."""

    FORWARD = "forward"


class Stage(IntEnum):
    """As many scripts number theirs."""

    SECOND = 2


ELSEWHERE = torch.empty(1, device="meta")
READERS = ("text", "plain", "number", "amount", "whole", "flag", "tag", "mapping", "path")


@pytest.mark.parametrize("reader", READERS)
def test_object_that_fails_at_every_question_is_none(reader: str) -> None:
    """What it says of its class counts as a question, too: `isinstance` asks it."""
    assert getattr(arguments, f"{reader}_of")(Unbound()) is None


@pytest.mark.parametrize(
    ("given", "number"),
    [
        *((0.5, 0.5), (3, 3.0), (True, 1.0), (Fraction(1, 2), 0.5), (Decimal("0.5"), 0.5)),
        *((numpy.float32(0.5), 0.5), (numpy.int64(3), 3.0), (torch.tensor([0.5], requires_grad=True), 0.5)),
        *((torch.zeros(2), None), (ELSEWHERE, None), (numpy.zeros(2), None), ("1", None), (1j, None)),
        *((10**400, None), (None, None)),
    ],
    ids=repr,
)
def test_number_is_whatever_is_one_number_and_here(given: Any, number: float | None) -> None:
    """numpy's and a tensor's on the CPU are at hand; one on a device would have to be waited for."""
    assert arguments.number_of(given) == number


def test_number_that_is_not_known_yet_is_none() -> None:
    """A fake tensor says that it is on the CPU, and raises when it is read."""
    with FakeTensorMode():
        fake = torch.ones(1)

    assert arguments.number_of(fake) is None


@pytest.mark.parametrize(
    ("given", "whole"),
    [
        *((0, 0), (7, 7), (7.0, 7), (numpy.int64(7), 7), ((1 << 62) - 1, (1 << 62) - 1)),
        *((-1, None), (7.5, None), (1 << 62, None), (math.nan, None), (math.inf, None), ("7", None)),
    ],
)
def test_whole_number_is_counted_from_zero_and_fits_the_wire(given: Any, whole: int | None) -> None:
    """What OTLP cannot carry, a reader would have to guess."""
    found = arguments.whole_of(given)

    assert (found, type(found)) == (whole, type(whole))


@pytest.mark.parametrize(("given", "amount"), [(0, 0.0), (2.5, 2.5), (-1, None), (math.nan, None), (math.inf, None)])
def test_amount_is_finite_and_never_negative(given: Any, amount: float | None) -> None:
    """A total that has become infinite stays so for ever."""
    assert arguments.amount_of(given) == amount


@pytest.mark.parametrize(
    ("given", "plain"),
    [
        *(("a", "a"), (True, True), (3, 3), (0.5, 0.5), (Name.FORWARD, "forward"), (Stage.SECOND, 2)),
        *((numpy.float64(0.5), 0.5), (numpy.float32(0.5), 0.5), (numpy.int64(3), 3), (numpy.bool_(True), True)),
        *((numpy.str_("a"), "a"), (numpy.longdouble(0.5), None), (numpy.datetime64(1, "ns"), None), (None, None)),
        *((numpy.zeros(1), None), (torch.zeros(()), None), (ELSEWHERE, None), (1j, None), (b"a", None), ([], None)),
    ],
    ids=repr,
)
def test_plain_value_is_one_of_python(given: Any, plain: object) -> None:
    """What a framework hands on is often a number of numpy's; a tensor's would have to be waited for."""
    found = arguments.plain_of(given)

    assert (found, type(found)) == (plain, type(plain))


def test_text_of_a_subclass_is_its_plain_text() -> None:
    """A member of an enumeration is a name as good as any."""
    found = arguments.text_of(Name.FORWARD)

    assert (found, type(found)) == ("forward", str)


@pytest.mark.parametrize(
    ("given", "tag"), [("8b", "8b"), (1234, "1234"), (numpy.int64(7), "7"), (Name.FORWARD, "forward"), ([], None)]
)
def test_tag_can_be_a_number(given: Any, tag: str | None) -> None:
    """The number of a job is what many have at hand."""
    assert arguments.tag_of(given) == tag


@pytest.mark.parametrize(
    ("given", "path"),
    [
        *(("a/b", "a/b"), (b"a/\xff", "a/\udcff"), (Path("a"), "a"), (PurePosixPath("a"), "a")),
        *((5, None), ("a\0b", None), (None, None)),
    ],
)
def test_path_is_what_a_file_can_have(given: Any, path: str | None) -> None:
    """A number would be taken for an open file."""
    assert arguments.path_of(given) == path


def test_mapping_can_be_of_any_kind() -> None:
    """A configuration is seldom a plain dict."""
    assert arguments.mapping_of(UserDict(a=1)) == {"a": 1}
    assert arguments.mapping_of([("a", 1)]) is None


@pytest.mark.parametrize(
    ("given", "is_function"),
    [(len, True), (lambda: 1, True), (Path.cwd, True), (Path, False), (staticmethod(len), False), (5, False)],
)
def test_only_a_function_is_one(given: Any, is_function: bool) -> None:
    """A class that became a function would fail at the first `isinstance`."""
    assert arguments.is_function(given) == is_function
