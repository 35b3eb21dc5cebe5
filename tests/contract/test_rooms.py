"""Every room says at its door what goes in, what comes out, and what never happens in it."""

import ast
import re
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src"
DOORS = sorted(path for path in SOURCE.rglob("__init__.py") if path.parent.parent != SOURCE)
SIGN = re.compile(r"In: \w.{9,}\. Out: \w.{2,}\. Never: \w.{2,}\.", re.DOTALL)


def faults_of_door(source: str) -> list[str]:
    """What keeps an internal `__init__.py` from being a sign and nothing else."""
    tree = ast.parse(source)
    sign = ast.get_docstring(tree) or ""
    faults = []
    if not SIGN.fullmatch(" ".join(sign.split())):
        faults.append(f"the docstring is not `In: ... Out: ... Never: ...`: {sign!r}")
    if len(tree.body) > 1:
        faults.append("there is code in it: a re-export makes import loops, and nobody looks for code here")
    return faults


@pytest.mark.parametrize("door", DOORS, ids=lambda path: path.parent.relative_to(SOURCE).as_posix())
def test_room_has_a_sign_and_no_code(door: Path) -> None:
    """Who wonders where a change goes reads these lines and nothing else."""
    source = door.read_text(encoding="utf-8")

    faults = faults_of_door(source)

    assert faults == []


@pytest.mark.parametrize(
    "source",
    [
        "",
        '"""A package."""',
        '"""In: . Out: . Never: ."""',
        '"""In: marks of one rank. Out: its steps."""',
        '"""In: marks of one rank. Out: its steps. Never: torch."""\n\nfrom trainspan import clock\n',
    ],
)
def test_poor_sign_is_found(source: str) -> None:
    """A check that accepts anything would let every room go without."""
    faults = faults_of_door(source)

    assert len(faults) == 1
