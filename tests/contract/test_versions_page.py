"""What is said of versions is what `scripts/compat` found, and its tests meet every file that touches torch."""

import ast
import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
RECORD = ROOT / "src" / "trainspan" / "record"
HOOKS = RECORD / "hooks"
PAGE = (ROOT / "docs" / "versions.md").read_text()
FOUND = re.compile(r"^\| (\d[\w.+]*) \| (\d[\d.]*) \| (\d[\d.]*) \| (\d+) \| (\d+) \| (\d+) \|$", re.MULTILINE)

FOUND_OF_FRAMEWORKS = re.compile(r"^((?:\| \d[\w.+]* ){9})\| (\d+) \| (\d+) \| (\d+) \|$", re.MULTILINE)

COMPAT: dict[str, Any] = runpy.run_path(str(ROOT / "scripts" / "compat"))


def imports(path: Path) -> Iterator[str]:
    """Every module that a file imports, anywhere in it; of `from a import b` both `a` and `a.b`."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def touches_torch(path: Path) -> bool:
    """Whether a file is a hook, or has torch's names in it."""
    return path.parent == HOOKS or any(name.partition(".")[0] == "torch" for name in imports(path))


MET_BY = {"trainspan.record.agent": "tests.integration.recorded.start_ranks"}
"""The agent is torchrun's own process: a test meets it by starting ranks."""

TOUCHING = sorted(path for path in RECORD.rglob("[!_]*.py") if touches_torch(path))


@pytest.fixture(scope="module")
def tried() -> set[str]:
    """What the tests of a row import."""
    return {name for path in COMPAT["tests"](COMPAT["SELECTION"][0]) for name in imports(path)}


@pytest.mark.parametrize("path", TOUCHING, ids=lambda path: path.relative_to(RECORD).as_posix())
def test_every_row_tries_whatever_touches_torch(path: Path, tried: set[str]) -> None:
    """A hook that no row has met is not known to fit."""
    module = ".".join(path.relative_to(ROOT / "src").with_suffix("").parts)

    assert MET_BY.get(module, module) in tried


@pytest.mark.parametrize("pattern", COMPAT["TESTS"])
def test_every_pattern_finds_tests(pattern: str) -> None:
    """A file that got another name would go unnoticed."""
    found = list(ROOT.glob(pattern))

    assert found


def test_page_has_the_rows_of_the_script() -> None:
    """A row that nobody has run is not one that was found."""
    lowest = COMPAT["pinned"](COMPAT["LOWEST"])[0].rpartition("=")[2]
    rows = FOUND.findall(PAGE)

    assert len(rows) == len(COMPAT["SELECTION"])
    for (torch, python, opentelemetry, *_), row in zip(rows, COMPAT["SELECTION"], strict=True):
        assert torch.partition("+")[0] == row.torch or row.torch == COMPAT["NEWEST"]
        assert python.startswith(f"{row.python}.")
        assert (opentelemetry == lowest) == (row.opentelemetry == COMPAT["LOWEST"])


def test_rows_of_the_page_are_of_one_state_of_the_code() -> None:
    """The same tests in each row, and none that failed."""
    counts = [(int(passed), int(failed), int(skipped)) for *_, passed, failed, skipped in FOUND.findall(PAGE)]

    assert {failed for _, failed, _ in counts} == {0}
    assert len({sum(row) for row in counts}) == 1


def test_page_has_the_frameworks_of_the_script() -> None:
    """As for torch: a row that nobody has run is not one that was found."""
    found = FOUND_OF_FRAMEWORKS.findall(PAGE)
    rows = [re.findall(r"[\w.+]+", versions) for versions, *_ in found]

    assert len(rows) == len(COMPAT["OF_FRAMEWORKS"])
    for (torch, python, _, *frameworks), row in zip(rows, COMPAT["OF_FRAMEWORKS"], strict=True):
        assert torch == row.torch or row.torch == COMPAT["NEWEST"]
        assert python.startswith(f"{row.python}.")
        for version, asked in zip(frameworks, row.frameworks, strict=True):
            assert version == asked or asked == COMPAT["NEWEST"]
    assert {(failed, skipped) for *_, failed, skipped in found} == {("0", "0")}
    assert len({passed for _, passed, _, _ in found}) == 1
