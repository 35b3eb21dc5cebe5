"""docs/scale.md counts what a node really sends."""

import json
import re
import subprocess
import sys
from typing import Any

import pytest

from tests.integration.relayed import REPOSITORY

PAGE = (REPOSITORY / "docs" / "scale.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def nodes() -> dict[str, dict[str, Any]]:
    """What the benchmark sees of a node of two ranks, by the size of its job as the page writes it."""
    command = [sys.executable, str(REPOSITORY / "benchmarks" / "volume.py"), "--quick", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return {f"{node['world_size']:,}": node for node in json.loads(done.stdout)["nodes"]}


def said(row: str, world_size: str) -> float:
    """What the page's table says in this row of a node of eight ranks in a job of that size."""
    [head] = re.findall(r"^\| a node of \|(.*)\|$", PAGE, re.MULTILINE)
    [cells] = re.findall(rf"^\| {re.escape(row)} \|(.*)\|$", PAGE, re.MULTILINE)
    place = [cell.strip() for cell in head.split("|")].index(f"8 of {world_size}")
    return float(cells.split("|")[place].replace(",", ""))


@pytest.mark.parametrize("world_size", ["64", "16,000"])
def test_series_are_as_many_as_the_page_says(nodes: dict[str, dict[str, Any]], world_size: str) -> None:
    """Who sizes a Prometheus by a page that has fallen behind learns it from the Prometheus."""
    node = nodes[world_size]

    counted = {whose: said(f"series {of}", world_size) for whose, of in WHOSE.items()}

    assert counted == {**node["series"], "rank": node["series"]["rank"] / node["ranks"]}


WHOSE = {"rank": "of a rank", "node": "of the node besides", "gpu": "of its 8 GPUs"}


def test_a_sampled_step_has_as_many_spans_as_the_page_says(nodes: dict[str, dict[str, Any]]) -> None:
    """The root comes once, everything else with each rank."""
    spans = nodes["64"]["step"]["spans"]

    assert said("spans of a sampled step", "64") == (spans - 1) / 2 * 8 + 1
