"""Each check of `scripts/test-gpu` as a test, where there is a GPU."""

from pathlib import Path

import pytest

from tests.gpu.checks import CHECKS, Check
from tests.gpu.runs import Bench

pytestmark = pytest.mark.gpu("what `scripts/test-gpu` lists: device times, step time, energy, CUDA graphs")


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_it_holds_on_a_gpu(check: Check, tmp_path: Path) -> None:
    """What was shown with fakes must be so on the device."""
    rows = list(check.rows(Bench(tmp_path)))

    assert rows
    assert [row for row in rows if row.holds is False] == []
