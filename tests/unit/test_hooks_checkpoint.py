"""Saves and loads by safetensors and torch.distributed.checkpoint, and what is told of their paths."""

import hashlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp

from tests.unit.tapes import Tape, recording_marker
from trainspan.record.checkpoints import Notes
from trainspan.record.hooks import checkpoint
from trainspan.record.marker import FOREIGN, Marker
from trainspan.record.patches import Patches

SAVE = ["enter checkpoint_save", "resume other"]
LOAD = ["enter checkpoint_load", "resume other"]


class Watched(NamedTuple):
    """The marker, its tape, and the events."""

    marker: Marker
    tape: Tape
    events: list[dict[str, Any]]

    def said(self, *fields: str) -> list[tuple[Any, ...]]:
        """These fields of every event."""
        return [tuple(event[field] for field in fields) for event in self.events]


@pytest.fixture(params=["hash"])
def watched(request: pytest.FixtureRequest) -> Iterator[Watched]:
    """The libraries with the hook in them; the parameter is what is told of a path."""
    marker, tape = recording_marker()
    events: list[dict[str, Any]] = []
    patches = Patches()
    notes = Notes(marker, lambda _, **fields: events.append(fields), lambda: True, request.param)
    checkpoint.install(marker, patches, notes)
    checkpoint.install_safetensors(safetensors.torch, marker, patches, notes)
    checkpoint.install_distributed(dcp, marker, patches, notes)
    yield Watched(marker, tape, events)
    patches.undo()


def test_safetensors_are_checkpoints_like_others(watched: Watched, tmp_path: Path) -> None:
    """Most models on the shelf are kept so."""
    file = tmp_path / "model.safetensors"

    safetensors.torch.save_file({"w": torch.ones(4)}, file)
    loaded = safetensors.torch.load_file(file)

    assert torch.equal(loaded["w"], torch.ones(4))
    assert watched.tape.written() == SAVE + LOAD
    assert watched.said("kind", "ok", "blocking", "staging", "bytes") == [
        ("save", True, True, False, file.stat().st_size),
        ("load", True, True, False, None),
    ]
    assert len({event["file"] for event in watched.events}) == 1


def test_failure_of_safetensors_reaches_the_user(watched: Watched, tmp_path: Path) -> None:
    """A file that is not there is the script's to deal with, and no checkpoint to resume from."""
    with pytest.raises(FileNotFoundError):
        safetensors.torch.load_file(tmp_path / "absent")

    assert watched.tape.written() == ["enter checkpoint_load", "abort other"]
    assert watched.said("kind", "ok") == [("load", False)]


@pytest.mark.filterwarnings("ignore::UserWarning")  # of torch, that there is no process group
def test_asynchronous_save_tells_staging_and_upload_apart(watched: Watched, tmp_path: Path) -> None:
    """What blocks is badput, what does not is not; and only the upload says that there is a checkpoint."""
    pending = dcp.async_save({"w": torch.ones(4)}, checkpoint_id=tmp_path / "step-1")
    pending.result(timeout=60)
    weights = {"w": torch.zeros(4)}
    dcp.load(weights, checkpoint_id=tmp_path / "step-1")

    assert torch.equal(weights["w"], torch.ones(4))
    assert watched.tape.written() == SAVE + LOAD
    assert sorted(watched.said("kind", "ok", "blocking", "staging")) == [
        ("load", True, True, False),
        ("save", True, False, False),
        ("save", True, True, True),
    ]
    assert len({event["file"] for event in watched.events}) == 1


@pytest.mark.skipif(
    not hasattr(dcp, "save_state_dict"), reason="this torch has them no more; would have shown that they are marked"
)
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
def test_older_names_are_checkpoints_too(watched: Watched, tmp_path: Path) -> None:
    """Deprecated, and in scripts: without a mark, no step is known from which a restart goes on."""
    weights = {"w": torch.zeros(4)}

    dcp.save_state_dict({"w": torch.ones(4)}, dcp.FileSystemWriter(tmp_path / "step-1"), no_dist=True)
    dcp.load_state_dict(weights, storage_reader=dcp.FileSystemReader(tmp_path / "step-1"), no_dist=True)

    assert torch.equal(weights["w"], torch.ones(4))
    assert watched.tape.written() == SAVE + LOAD
    assert watched.said("kind", "ok", "blocking", "staging") == [
        ("save", True, True, False),
        ("load", True, True, False),
    ]
    assert len({event["file"] for event in watched.events}) == 1


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_directory_is_measured_by_the_first_rank_once_it_is_whole(watched: Watched, tmp_path: Path) -> None:
    """It is `directory_bytes`, beside `bytes`: of those the engine makes out what is only a part of a checkpoint."""
    (tmp_path / "later").mkdir()
    (tmp_path / "later" / "half").write_bytes(b"half")

    dcp.save({"w": torch.ones(4)}, checkpoint_id=tmp_path / "now")
    first, second = (
        Notes(watched.marker, lambda _, **told: watched.events.append(told), lambda: True, leads=leads)
        for leads in (lambda: True, lambda: False)
    )
    for notes, staging, ok in ((first, True, True), (first, False, False), (second, False, True), (first, False, True)):
        notes.note("save", 0, tmp_path / "later", time.monotonic_ns(), 9, ok, staging)
    dcp.load({"w": torch.ones(4)}, checkpoint_id=tmp_path / "now")

    now = sum(file.stat().st_size for file in (tmp_path / "now").iterdir())
    assert watched.said("bytes", "directory_bytes") == [
        (None, now),
        *[(None, None)] * 3,
        (None, 4),
        (None, None),
    ]


def test_background_save_is_measured_from_where_it_began(watched: Watched, tmp_path: Path) -> None:
    """When it is over, the first of its files are as old as it is long."""
    notes = Notes(watched.marker, lambda _, **told: watched.events.append(told), lambda: True)
    for name, age_s in (("first", 100), ("last", 0)):
        (tmp_path / name).write_bytes(b"half")
        os.utime(tmp_path / name, (1000 - age_s, 1000 - age_s))
    began_ns = time.monotonic_ns() - 120 * 1_000_000_000
    notes.stage_path(str(tmp_path), 5, began_ns)

    notes.tell("save", str(tmp_path), time.monotonic_ns(), 9, ok=True, blocking=False, staging=False)

    assert watched.said("step", "directory_bytes") == [(5, 8)]


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_upload_is_of_the_step_that_was_staged(watched: Watched, tmp_path: Path) -> None:
    """Training goes on meanwhile: by the step it has come to, work would be credited that is in no checkpoint."""
    notes = Notes(watched.marker, lambda _, **fields: watched.events.append(fields), lambda: True)
    notes.stage(tmp_path / "b", 8)
    notes.stage(tmp_path / "a", 5)

    for name in ("a", "b", "a"):
        notes.note("save", FOREIGN, tmp_path / name, 0, 9, True, False)

    assert watched.said("step") == [(5,), (8,), (9,)]


@pytest.mark.parametrize("watched", ["hash", "plain", "omit"], indirect=True)
def test_path_is_told_as_was_wished(watched: Watched, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """It can name a project or a person; the engine needs its hash in any case."""
    file = tmp_path / "model.pt"

    torch.save(torch.ones(4), file)

    hashed = hashlib.blake2b(os.fsencode(file), digest_size=8).hexdigest()
    shown = {"hash": hashed, "plain": str(file), "omit": None}[request.node.callspec.params["watched"]]
    assert watched.said("file", "path") == [(hashed, shown)]
