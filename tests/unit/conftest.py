"""What unit tests have in common."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.unit.followed import Followed


@pytest.fixture
def followed() -> "Iterator[Followed]":
    """What a bridge is installed with; afterwards everything is as it was."""
    from tests.unit.followed import Followed  # with torch, which most tests do without

    fixture = Followed()
    yield fixture
    fixture.patches.undo()
