"""Which of CUDA's devices a process trains on."""

from types import SimpleNamespace
from typing import Any

import pytest

from trainspan.record.hooks.used_device import used_device


def optimizer(*devices: str) -> Any:
    """One with a parameter on each of these devices, each in a group of its own."""
    groups = []
    for device in devices:
        kind, _, number = device.partition(":")
        parameter = SimpleNamespace(device=SimpleNamespace(type=kind, index=int(number) if number else None))
        groups.append({"params": [parameter]})
    return SimpleNamespace(param_groups=groups)


def test_it_is_where_the_model_was_placed() -> None:
    """`model.to(f"cuda:{rank}")` leaves the first device the current one, where an event would make a context."""
    used = used_device(lambda: optimizer("cuda:3"), lambda: 0, lambda number: number == 3)

    number = used()

    assert number == 3


def test_a_current_device_that_is_in_use_stands_for_offloaded_parameters() -> None:
    """They are the CPU's, and so is the optimizer's work; forward and backward are the device's."""
    used = used_device(lambda: optimizer("cpu"), lambda: 2, lambda number: number == 2)

    number = used()

    assert number == 2


@pytest.mark.parametrize(
    "lead",
    [None, optimizer("cpu"), optimizer(), SimpleNamespace(), SimpleNamespace(param_groups=[{"params": []}])],
    ids=["none", "cpu", "no group", "a framework's own", "no parameter"],
)
def test_a_device_without_a_context_is_none(lead: Any) -> None:
    """Whoever asked it would take half a gigabyte of a GPU that may be another rank's."""
    used = used_device(lambda: lead, lambda: 0, lambda _: False)

    number = used()

    assert number is None
