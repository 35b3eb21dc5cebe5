"""Where recordings and run folders would lie, and whether they could. Looks only; makes nothing."""

import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from trainspan.cli.checks.finding import Finding
from trainspan.recording import layout, places
from trainspan.report.quantities import size
from trainspan.settings import Settings, state_dir

AREA: Final = "storage"

LEAST_FREE_BYTES: Final = 64 << 20
"""A run folder of a long run; and what containers give /dev/shm by default, enough for some 50 ranks."""


def check(settings: Settings, environ: Mapping[str, str]) -> Iterator[Finding]:
    """The two places."""
    runs = Path(state_dir(settings, environ)) / "runs"
    yield _place("run folders", runs, "TRAINSPAN_DIR")
    if settings.recording_dir:
        yield _place("recordings", Path(settings.recording_dir), "TRAINSPAN_RECORDING_DIR")
    elif settings.relay != "off" and os.access(places.MEMORY, os.W_OK | os.X_OK):
        yield _place("recordings", places.MEMORY, "TRAINSPAN_RECORDING_DIR", _ring_bytes(settings))
    else:
        yield _place("recordings", runs, "TRAINSPAN_DIR", _ring_bytes(settings))


def _ring_bytes(settings: Settings) -> int:
    """What the ring of one rank takes."""
    default = layout.CAPACITY_UNREAD if settings.relay == "off" else layout.CAPACITY_DEFAULT
    return (settings.ring_marks or default) * layout.MARK_BYTES + layout.HEADER_BYTES


def _place(what: str, path: Path, variable: str, each_rank_bytes: int | None = None) -> Finding:
    facts: dict[str, object] = {"place": what, "path": str(path)}
    existing = next(parent for parent in (path, *path.parents) if parent.exists())
    refusal = _refusal(path, existing)
    if refusal:
        return Finding(AREA, "problem", f"{what}: {refusal}", f"set {variable} to a directory of yours", facts=facts)
    free_bytes = shutil.disk_usage(existing).free
    facts["free_bytes"] = free_bytes
    text = f"{what}: {path}, {size(free_bytes)} free"
    if each_rank_bytes:
        text += f", {size(each_rank_bytes)} for each rank"
    least_bytes = max(LEAST_FREE_BYTES if each_rank_bytes is None else 0, (each_rank_bytes or 0) * 2)
    if _open_to_others(existing):
        advice = f"chmod go-w {existing}: whoever can write there can lead what is written elsewhere"
        return Finding(AREA, "note", f"{text}, and others can write there", advice, facts=facts)
    if free_bytes < least_bytes:
        return Finding(AREA, "problem", f"{text}: too little", f"make room, or set {variable}", facts=facts)
    return Finding(AREA, "ok", text, facts=facts)


def _open_to_others(directory: Path) -> bool:
    """Whether others may replace what lies in it; in a sticky directory (/dev/shm, /tmp) they may not."""
    mode = directory.stat().st_mode
    return bool(mode & (stat.S_IWGRP | stat.S_IWOTH)) and not mode & stat.S_ISVTX


def _refusal(path: Path, existing: Path) -> str | None:
    """Why nothing can be made below `path`, of which `existing` is the part that is there."""
    if not existing.is_dir():
        return f"{existing} is not a directory"
    if not os.access(existing, os.W_OK | os.X_OK):
        return f"{existing} cannot be written by this user" + (
            "" if existing == path else f", so {path} cannot be made"
        )
    return None
