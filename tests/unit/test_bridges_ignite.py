"""Ignite, against the least that it must be: engines that fire events."""

from collections.abc import Callable
from enum import Enum
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.unit.followed import Followed
from trainspan.record.bridges import ignite


class Events(Enum):
    """As Ignite's."""

    ITERATION_COMPLETED = "iteration_completed"
    EPOCH_COMPLETED = "epoch_completed"


class Engine:
    """As Ignite's: it counts epochs from one."""

    def __init__(self, process: Callable[[], object], handler: Callable[[], object] = lambda: None):
        self._process = process
        self._handler = handler
        self.state: Any = SimpleNamespace(epoch=0)

    def _fire_event(self, event_name: Events) -> str:
        if event_name is Events.EPOCH_COMPLETED:
            self._handler()
        return event_name.value

    def run(self, iterations: int, epochs: int) -> str:
        answer = ""
        for self.state.epoch in range(1, epochs + 1):
            for _ in range(iterations):
                self._process()
                answer += self._fire_event(Events.ITERATION_COMPLETED)[:1]
            self._fire_event(Events.EPOCH_COMPLETED)
        return answer


@pytest.fixture
def engine_class(followed: Followed) -> type[Engine]:
    """The engine of a package as Ignite, followed."""
    module = ModuleType("ignite.engine.engine")
    module.__dict__.update(Engine=Engine, Events=Events)
    ignite.install(module, followed.patches, followed.channel)
    return Engine


def test_epoch_is_that_of_the_engine_that_trains(followed: Followed, engine_class: type[Engine]) -> None:
    """One that evaluates in a handler is always in its own first epoch."""
    evaluator = engine_class(lambda: None)
    trainer = engine_class(followed.step, lambda: evaluator.run(2, epochs=1))

    answer = trainer.run(2, epochs=3)

    assert answer == "i" * 6
    assert [(event["step"], event["global_step"], event["epoch"]) for event in followed.told] == [
        (0, None, 0),
        (2, None, 1),
        (4, None, 2),
    ]


def test_engine_without_a_state_disturbs_nothing(
    followed: Followed, engine_class: type[Engine], capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever a subclass makes of it."""
    engine = engine_class(followed.step)
    engine.state = None

    answer = engine._fire_event(Events.ITERATION_COMPLETED)

    assert answer == "iteration_completed"
    assert followed.told == []
    assert "epoch of Ignite" in capsys.readouterr().err


def test_another_ignite_is_refused(followed: Followed) -> None:
    """The bootstrap says so."""
    with pytest.raises(AttributeError):
        ignite.install(ModuleType("empty"), followed.patches, followed.channel)
