"""Generation by a library that is not imported here: told from training and validation."""

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from tests.unit.tapes import Tape, recording_marker
from trainspan.names import Phase
from trainspan.record.hooks import generation as hook
from trainspan.record.marker import Marker
from trainspan.record.patches import Patches


class GenerationMixin:
    """As transformers has it: models inherit `generate`, which calls their forward for each token."""

    marker: Marker

    def generate(self, tokens: int) -> int:
        """As many tokens as were asked for."""
        if tokens < 0:
            raise ValueError(tokens)
        for _ in range(tokens):
            assert self.marker.enter(Phase.VALIDATION) < 0  # a forward in it is its own
        return tokens


@pytest.fixture
def model() -> Iterator[tuple[Any, Tape]]:
    """A model that generates, and the tape."""
    marker, tape = recording_marker()
    package, patches = ModuleType("utils"), Patches()
    package.__dict__["GenerationMixin"] = GenerationMixin
    GenerationMixin.marker = marker
    hook.install(package, marker, patches)
    yield type("Model", (GenerationMixin,), {})(), tape
    patches.undo()


def test_generation_is_a_phase_of_its_own(model: tuple[Any, Tape]) -> None:
    """Hundreds of forwards for one batch look like an endless validation."""
    generator, tape = model

    tokens = generator.generate(3)

    assert tokens == 3
    assert tape.written() == ["enter generation", "resume other"]


def test_failure_of_generation_is_the_users(model: tuple[Any, Tape]) -> None:
    """It passes through, and the phase ends with it."""
    generator, tape = model

    with pytest.raises(ValueError, match="-1"):
        generator.generate(-1)

    assert tape.written() == ["enter generation", "abort other"]
