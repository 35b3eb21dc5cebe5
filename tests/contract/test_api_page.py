"""docs/api.md says what the API does, and its examples run."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import trainspan
from trainspan.record.misuse import KINDS

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "api.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
SCOPES = [name for name in trainspan.__all__ if not name.startswith("on_")]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: str(EXAMPLES.index(example)))
@pytest.mark.parametrize("enabled", ["1", ""])
def test_example_runs(example: str, enabled: str, tmp_path: Path) -> None:
    """What is copied from the page works, with and without trainspan, and has nothing to warn of."""
    environ = {"TRAINSPAN_ENABLED": enabled, "TRAINSPAN_RELAY": "off", "TRAINSPAN_DIR": str(tmp_path)}

    ran = subprocess.run([sys.executable, "-c", example], env=environ, capture_output=True, text=True, check=False)

    assert (ran.returncode, ran.stderr, ran.stdout) == (0, "", "")


def test_there_are_examples() -> None:
    """The test above is content with none."""
    assert len(EXAMPLES) == 3


@pytest.mark.parametrize("name", SCOPES)
def test_every_call_is_on_the_page(name: str) -> None:
    """A call that nobody has heard of might as well not be there."""
    assert f"`{name}(" in PAGE


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_misuse_is_explained(kind: str) -> None:
    """Who sees it in a metric looks it up here."""
    assert f"| `{kind}` |" in PAGE


def test_every_scope_has_its_callbacks() -> None:
    """A pair is made by hand for each: one could be forgotten, or left behind."""
    pairs = {name.removeprefix("on_").rpartition("_")[0] for name in trainspan.__all__ if name.startswith("on_")}
    apart = {"checkpoint_saved", "configure", "event", "init", "is_enabled", "timed"}
    apart |= {"counter", "log", "observe", "processed"}

    assert pairs == set(SCOPES) - apart
    for pair in pairs:
        assert {f"on_{pair}_start", f"on_{pair}_end"} <= set(trainspan.__all__)


def test_every_public_name_is_there_and_explained() -> None:
    """`from trainspan import *`, and what an editor shows."""
    assert [name for name in trainspan.__all__ if not getattr(trainspan, name).__doc__] == []
    assert list(trainspan.__all__) == sorted(trainspan.__all__)
