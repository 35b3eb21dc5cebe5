"""Which run a process belongs to whose run nobody has named: agreed upon by a file, one for each host.

Ranks that a script or a shell starts by itself inherit no id. What they share is where they meet: a process group has
one address, and of all processes of a host one listens on it at a time, so who meets there is one job, to torch as to
us. Tomorrow's job meets there again. Therefore the ranks of a world are those that live at the same time: who finds its
rank taken, or a rank gone, begins another world, which is another run.

Where the address is not known yet, who has the same parent is one job, by the same rule. Ranks of an `mpirun` that
tells which one it is need neither.

A name that a command was given (`trainspan run`, a batch script) goes to the first world or single process that asks
for it; the next is `<name>-2`. Without this a sweep would make one run of all its trainings.

    <state>/worlds/<host>.json    the newest worlds: key, run, and for each rank the process that has it
"""

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from trainspan.identity import Identity
from trainspan.recording import places

MOST_WORLDS: Final = 128
"""Kept in the file: far more than live at the same time on one host."""

MOST_BYTES: Final = 4 << 20
"""What is read of it: 128 worlds of 1024 ranks."""

LOCK_TRIES: Final = 100
LOCK_PAUSE_S: Final = 0.01
"""A rank waits a second for the file at most: who holds it may have been stopped."""


def run_of(state: str, identity: Identity, place: str | None, parent: int, *, shared: bool) -> str:
    """The run of this process, which it shares with the ranks of its world.

    Args:
        state: the state directory.
        identity: of this process; its run is the name to take if it is free.
        place: where its ranks meet, or what else they have in common; None if that is not known.
        parent: the process that has started this one.
        shared: whether that name was given to a command, and is not this process's own.

    Raises:
        OSError: the file cannot be used.
        RecordingRefused: the state directory cannot be.
    """
    if identity.world_size < 2 and not shared:
        return identity.run
    me = [os.getpid(), _started(os.getpid())]
    key = _key(identity, place, parent, shared=shared)
    with _locked(places.make_private(Path(state) / "worlds") / f"{identity.host}.json") as file:
        worlds = _read(file)
        world = _joinable(worlds, key, str(identity.rank), me) if identity.world_size > 1 else None
        if world is None:
            world = {"key": key, "run": _free(identity, worlds), "attempt": identity.attempt, "ranks": {}}
            worlds.append(world)
        world["ranks"][str(identity.rank)] = me
        _write(file, worlds[-MOST_WORLDS:])
    run: str = world["run"]
    return run


def _key(identity: Identity, place: str | None, parent: int, *, shared: bool) -> str:
    """What the ranks of one world have in common, and those of another at the same time do not."""
    meeting = place or f"below {parent}:{_started(parent)}"
    name = identity.run if shared else ""
    # A container has addresses and process numbers of its own, and may have the host's name and this directory.
    spaces = [_namespace("net"), _namespace("pid")]
    return json.dumps([name, identity.attempt, identity.world_size, meeting, *spaces])


def _joinable(worlds: list[dict[str, Any]], key: str, rank: str, me: list[int]) -> dict[str, Any] | None:
    """The newest world with this key, if it lacks the rank and all its ranks live."""
    world = next((world for world in reversed(worlds) if world["key"] == key), None)
    if world is None or world["ranks"].get(rank, me) != me:
        return None
    return world if all(_lives(process) for process in world["ranks"].values()) else None


def _free(identity: Identity, worlds: list[dict[str, Any]]) -> str:
    """The name, with the first number that no world of this attempt has."""
    taken = {world["run"] for world in worlds if world["attempt"] == identity.attempt}
    number, run = 1, identity.run
    while run in taken:
        number += 1
        run = f"{identity.run}-{number}"
    return run


def _lives(process: list[int]) -> bool:
    pid, started = process
    return _started(pid) == started


def _started(pid: int) -> int:
    """When a process began, in the kernel's clock ticks; 0 if it is gone. Source: proc_pid_stat(5)."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
        state, *fields = text[text.rindex(")") + 2 :].split()
        return 0 if state in "ZX" else int(fields[18])
    except (OSError, ValueError, IndexError):
        return 0


def _namespace(kind: str) -> str:
    try:
        return os.readlink(f"/proc/self/ns/{kind}")
    except OSError:
        return ""


def _read(file: int) -> list[dict[str, Any]]:
    """The worlds in the file; none if it is damaged: what they held is then forgotten."""
    try:
        worlds = json.loads(os.pread(file, MOST_BYTES, 0) or b"[]")
    except (ValueError, RecursionError):
        return []
    return [world for world in worlds if _is_world(world)] if isinstance(worlds, list) else []


def _is_world(world: object) -> bool:
    if not isinstance(world, dict) or not isinstance(world.get("ranks"), dict):
        return False
    key, run, attempt = world.get("key"), world.get("run"), world.get("attempt")
    if not (isinstance(key, str) and isinstance(run, str) and type(attempt) is int):
        return False
    # A folder is named after it.
    is_name = "/" not in run and run[:1] not in ("", ".")
    return is_name and all(_is_process(process) for process in world["ranks"].values())


def _is_process(process: object) -> bool:
    return isinstance(process, list) and len(process) == 2 and all(type(number) is int for number in process)


def _write(file: int, worlds: list[dict[str, Any]]) -> None:
    text = json.dumps(worlds).encode()
    os.ftruncate(file, 0)
    os.pwrite(file, text, 0)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[int]:
    """The descriptor of the file, while nobody else has it."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        for left in reversed(range(LOCK_TRIES)):
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not left:
                    raise
                time.sleep(LOCK_PAUSE_S)
        yield file
    finally:
        os.close(file)
