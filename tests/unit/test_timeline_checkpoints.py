"""What a rank tells of a checkpoint is read with distrust."""

from typing import Any

import pytest

from trainspan.relay.timeline.checkpoints import checkpoint_of

SAVE = {"event": "checkpoint", "kind": "save", "start_ns": 5, "end_ns": 9, "ok": True, "blocking": True, "path": "a1"}


@pytest.mark.parametrize(
    ("told", "size"),
    [
        ({"bytes": 7, "directory_bytes": None}, 7),
        ({"bytes": None, "directory_bytes": 9014}, 9014),
        ({"bytes": None}, None),
        ({"bytes": -1, "directory_bytes": "9014"}, None),
        ({"directory_bytes": 1 << 62}, None),
    ],
)
def test_size_is_that_of_the_file_or_of_what_went_into_the_directory(told: dict[str, Any], size: int | None) -> None:
    """A recording of a release before has no size of directories, and one of somebody else anything."""
    checkpoint = checkpoint_of({**SAVE, **told})

    assert checkpoint is not None
    assert checkpoint.size_bytes == size
