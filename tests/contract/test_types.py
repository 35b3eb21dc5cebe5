"""The type checker says the same wherever it runs, also where the frameworks (they require torch) are missing."""

import ast
import re
import sys
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

tomllib: Any = import_module("tomllib" if sys.version_info >= (3, 11) else "pip._vendor.tomli")
REPOSITORY = Path(__file__).resolve().parents[2]
PROJECT: dict[str, Any] = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
CHECKED = sorted(path for folder in ("src", "tests") for path in (REPOSITORY / folder).rglob("*.py"))


def modules_of(requirement: str) -> set[str]:
    """What the package of a requirement may be imported as: `megatron-core` is `megatron`."""
    [name] = re.findall(r"^[A-Za-z0-9-]+", requirement)
    return {name.replace("-", "_"), name.split("-")[0]}


@cache
def imported(path: Path) -> set[str]:
    """The packages that a file imports, by their first name."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").split(".")[0])
    return found


@pytest.mark.parametrize("requirement", ["torch", *PROJECT["dependency-groups"]["frameworks"]])
def test_no_framework_is_followed(requirement: str) -> None:
    """The checks do without them: whoever has them would see nothing, and everybody else an error."""
    skipped = {
        pattern.split(".")[0]
        for override in PROJECT["tool"]["mypy"]["overrides"]
        if override.get("follow_imports") == "skip"
        for pattern in override["module"]
    }

    followed = [
        path.relative_to(REPOSITORY).as_posix()
        for path in CHECKED
        if imported(path) & modules_of(requirement) - skipped
    ]

    assert followed == []
