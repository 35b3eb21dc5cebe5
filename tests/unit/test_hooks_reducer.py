"""What DDP's reducer measures is read where there is something to read."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.unit import process_groups
from trainspan.record.hooks import reducer as hook


@pytest.fixture
def replica(tmp_path: Path) -> Iterator[Any]:
    """A model on one rank of gloo."""
    with process_groups.alone(tmp_path):
        yield DistributedDataParallel(nn.Linear(64, 64))


def test_times_of_the_reducer_are_told_once_in_a_while(replica: Any) -> None:
    """How much of the communication hides behind the backward decides how many nodes are worth it."""
    told: list[tuple[str, dict[str, Any]]] = []
    step_ended = hook.install([replica], lambda event, **fields: told.append((event, fields)))

    for _ in range(6):
        replica(torch.ones(8, 64)).sum().backward()
        step_ended()

    [(event, fields)] = told
    assert event == "ddp"
    assert fields["bucket_bytes"] == (64 * 64 + 64) * 4
    assert all(fields[name] > 0 for name in ("forward_compute_ns", "backward_compute_ns", "backward_comm_ns"))
    assert fields["backward_overlap_ns"] <= fields["backward_comm_ns"]


def test_no_replica_is_no_cost_and_no_word() -> None:
    """Most scripts have none."""
    told: list[Any] = []
    step_ended = hook.install([], told.append)

    step_ended()

    assert told == []


def test_a_reducer_of_another_kind_is_asked_once(capsys: pytest.CaptureFixture[str]) -> None:
    """Its data is private to torch."""

    class Other:
        asked = 0

        def _get_ddp_logging_data(self) -> dict[str, Any]:
            self.asked += 1
            raise AssertionError("no logger")

    other = Other()
    step_ended = hook.install([other], print)

    step_ended()
    step_ended()

    assert other.asked == 1
    assert "the times of the reducer are not read" in capsys.readouterr().err
