"""What a script tells torch.monitor arrives as if it had told us."""

from collections.abc import Iterator
from datetime import datetime, timezone
from typing import Any

import pytest
import torch

from tests.unit.tapes import recording_marker
from trainspan.guard import seen
from trainspan.names import Phase
from trainspan.record.bridges import torch_monitor
from trainspan.record.marker import Marker
from trainspan.record.patches import Patches

Bridge = tuple[Marker, list[dict[str, Any]]]


@pytest.fixture
def bridge() -> Iterator[Bridge]:
    """The marker of a rank, and what it is told; without `name`, an event fails."""
    marker, _ = recording_marker()
    told: list[dict[str, Any]] = []
    patches = Patches()

    def tell(kind: str, /, **fields: Any) -> None:
        if not fields["name"]:
            raise OSError("the disk is full")
        told.append({"event": kind, **fields})

    torch_monitor.install(marker, patches, tell, lambda: True)
    yield marker, told
    patches.undo()


def log(name: str, **fields: Any) -> None:
    """As a script does it."""
    torch.monitor.log_event(torch.monitor.Event(name, datetime.now(timezone.utc), fields))


def test_event_of_the_monitor_is_an_event(bridge: Bridge) -> None:
    """Its data are as torch has them: a truth value has become a number there."""
    marker, told = bridge

    log("before", n=1)
    marker.step(marker.enter(Phase.OPTIMIZER))
    log("after", loss=0.5, text="x" * 2000)

    assert told == [
        {"event": "user_event", "name": "before", "step": None, "attributes": {"n": 1}},
        {"event": "user_event", "name": "after", "step": 1, "attributes": {"loss": 0.5, "text": "x" * 1024}},
    ]


def test_failure_of_the_bridge_does_not_reach_who_logs(bridge: Bridge) -> None:
    """Torch raises in the script what a handler raises."""
    before = seen().get("monitor", 0)

    log("")

    assert bridge[1] == []
    assert seen()["monitor"] == before + 1


def test_monitor_does_not_fill_the_log(bridge: Bridge) -> None:
    """A statistic of each batch would leave no room for a checkpoint."""
    for _ in range(torch_monitor.MOST + 3):
        log("batch")

    assert len(bridge[1]) == torch_monitor.MOST


def test_subscription_ends_with_the_hooks() -> None:
    """Nothing is left behind in torch."""
    told: list[Any] = []
    patches = Patches()
    torch_monitor.install(recording_marker()[0], patches, lambda _, /, **fields: told.append(fields), lambda: True)

    patches.undo()
    log("nobody listens")

    assert told == []
