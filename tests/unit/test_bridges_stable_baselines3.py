"""Stable-Baselines3, against the least that it must be: collections in which callbacks evaluate and save."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.unit.followed import Followed
from trainspan.record.bridges import stable_baselines3

GENERATION = ["enter generation", "resume other"]


class BaseAlgorithm:
    """As that of the package; without a suffix its file is an archive all the same."""

    def save(self, path: str) -> None:
        Path(f"{path}.zip").write_bytes(b"12345")

    @classmethod
    def load(cls, path: str) -> Any:
        return cls, path


class OnPolicyAlgorithm(BaseAlgorithm):
    """As that of the package."""

    def collect_rollouts(self, callback: Callable[[], object]) -> str:
        callback()
        return "collected"


class Package:
    """The modules that are followed."""

    def __init__(self, followed: Followed):
        self.evaluation = self._follow(followed, "evaluation", evaluate_policy=lambda error=None: _fail(error))
        self._follow(followed, "base_class", BaseAlgorithm=BaseAlgorithm)
        self._follow(followed, "on_policy_algorithm", OnPolicyAlgorithm=OnPolicyAlgorithm)
        self.algorithm = OnPolicyAlgorithm()

    def _follow(self, followed: Followed, name: str, **names: Any) -> ModuleType:
        module = ModuleType(f"stable_baselines3.common.{name}")
        module.__dict__.update(names)
        stable_baselines3.install(module, followed.patches, followed.channel)
        return module


def _fail(error: Exception | None = None) -> str:
    if error is not None:
        raise error
    return "evaluated"


@pytest.fixture
def package(followed: Followed) -> Package:
    """A package as Stable-Baselines3, followed."""
    return Package(followed)


def test_collection_is_generation(followed: Followed, package: Package) -> None:
    """Its policy is in the mode of an evaluation, without gradients: a validation it is not."""
    answer = package.algorithm.collect_rollouts(lambda: None)
    with pytest.raises(ValueError, match="left"):
        package.algorithm.collect_rollouts(lambda: _fail(ValueError("left")))

    assert answer == "collected"
    assert followed.tape.written() == [*GENERATION, "enter generation", "abort other"]


def test_callback_that_evaluates_in_a_collection_validates(followed: Followed, package: Package) -> None:
    """The collection goes on after it, also where an exception leaves it and is caught."""

    def callback() -> None:
        package.evaluation.evaluate_policy()
        with pytest.raises(ValueError, match="left"):
            package.evaluation.evaluate_policy(ValueError("left"))

    package.algorithm.collect_rollouts(callback)

    validations = ["enter validation", "resume other", *GENERATION, "enter validation", "abort other"]
    assert followed.tape.written() == [*GENERATION, *validations, *GENERATION]


def test_evaluation_by_itself_is_a_validation(followed: Followed, package: Package) -> None:
    """As a script does it after the training."""
    answer = package.evaluation.evaluate_policy()

    assert answer == "evaluated"
    assert followed.tape.written() == ["enter validation", "resume other"]


def test_archive_is_a_checkpoint(followed: Followed, package: Package, tmp_path: Path) -> None:
    """Saved by a callback in a collection, by a name without a suffix, and loaded by a class that inherits."""
    path = str(tmp_path / "model")

    package.algorithm.collect_rollouts(lambda: package.algorithm.save(path))
    loaded = OnPolicyAlgorithm.load(f"{path}.zip")

    save, load = followed.told
    saving = ["enter checkpoint_save", "resume other"]
    assert loaded == (OnPolicyAlgorithm, f"{path}.zip")
    assert followed.tape.written()[:6] == [*GENERATION, *saving, *GENERATION]
    assert (save["bytes"], save["file"]) == (5, load["file"])


def test_another_package_is_refused(followed: Followed) -> None:
    """A bridge that does half of its work would be worse than none."""
    with pytest.raises(KeyError):
        stable_baselines3.install(ModuleType("stable_baselines3.common.evaluation"), followed.patches, followed.channel)
