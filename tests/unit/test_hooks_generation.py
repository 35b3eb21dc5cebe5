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


class DiffusionPipeline:
    """As diffusers has it: each kind of pipeline is a class with a `__call__` of its own."""

    marker: Marker


@pytest.fixture
def pipelines() -> Iterator[tuple[Any, Tape]]:
    """What pipelines are made of, and the tape."""
    marker, tape = recording_marker()
    package, patches = ModuleType("pipeline_utils"), Patches()
    package.__dict__["DiffusionPipeline"] = DiffusionPipeline
    DiffusionPipeline.marker = marker
    hook.install_diffusers(package, marker, patches)
    yield DiffusionPipeline, tape
    patches.undo()


def denoise(self: Any, steps: int) -> int:
    """As many steps as were asked for, each of which calls a model that was left in training mode."""
    for _ in range(steps):
        assert self.marker.enter(Phase.FORWARD) < 0
    return steps


def test_sampling_of_a_pipeline_is_generation(pipelines: tuple[Any, Tape]) -> None:
    """An image after each epoch, and in the middle of one: its forwards are none of the step's."""
    base, tape = pipelines
    made = type("Pipeline", (base,), {"__call__": denoise})
    inheriting = type("Inheriting", (made,), {})

    steps = made()(3), inheriting()(2)

    assert steps == (3, 2)
    assert tape.written() == ["enter generation", "resume other"] * 2
    assert made.__call__.__name__ == "denoise"


def test_pipeline_is_as_it_was_once_the_hook_is_out() -> None:
    """Also one that was made while it was in."""
    marker, tape = recording_marker()
    package, patches = ModuleType("pipeline_utils"), Patches()
    package.__dict__["DiffusionPipeline"] = DiffusionPipeline
    hook.install_diffusers(package, marker, patches)
    made = type("Pipeline", (DiffusionPipeline,), {"__call__": denoise})

    patches.undo()

    assert vars(made)["__call__"] is denoise
    assert "__init_subclass__" not in vars(DiffusionPipeline)
    assert tape.written() == []


def test_pipelines_that_see_to_their_kinds_themselves_are_left_alone() -> None:
    """What another version does there must go on."""
    marker, _ = recording_marker()
    package = ModuleType("pipeline_utils")
    package.__dict__["DiffusionPipeline"] = type("Own", (), {"__init_subclass__": lambda: None})

    with pytest.raises(AttributeError, match="another way"):
        hook.install_diffusers(package, marker, Patches())


class Collector:
    """As TorchRL's: for each batch it asks its policy, which it leaves in training mode, step by step."""

    marker: Marker

    def rollout(self) -> int:
        for _ in range(3):
            assert self.marker.enter(Phase.FORWARD) < 0
        return 3


def test_what_a_collector_collects_is_generation() -> None:
    """The environment included: without gradients, but not in eval mode, it would be the forward of the next step."""
    marker, tape = recording_marker()
    package, patches = ModuleType("torchrl.collectors._single"), Patches()
    package.__dict__["Collector"] = Collector
    Collector.marker = marker
    hook.install_torchrl(package, marker, patches)

    frames = Collector().rollout()
    patches.undo()

    assert frames == 3
    assert tape.written() == ["enter generation", "resume other"]
