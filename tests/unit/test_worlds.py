"""Processes that nobody has told their run agree on one, or keep apart."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from trainspan import settings
from trainspan.identity import Identity, World, identify
from trainspan.recording import worlds
from trainspan.role import Role

PLACE = "127.0.0.1:29500"
ASKS = """
import json, sys
from trainspan.identity import Identity
from trainspan.recording import worlds
state, fields, place, parent, shared = json.loads(sys.argv[1])
print(worlds.run_of(state, Identity(**fields), place, parent, shared=shared), flush=True)
sys.stdin.readline()
"""


def identity_of(rank: int, size: int, run: str = "", attempt: int = 0) -> Identity:
    """A rank that nobody has named, or one of a command with a name."""
    environ = {"TRAINSPAN_LAUNCH_ID": run} if run else {}
    found = identify(settings.load(environ)[0], environ, Role.RANK, World(rank, size, None))
    return found._replace(attempt=attempt)


class Process:
    """A process that asks for its run, and lives until it is ended."""

    def __init__(self, state: Path, identity: Identity, place: str | None, parent: int, *, shared: bool):
        asked = json.dumps([str(state), identity._asdict(), place, parent, shared])
        command = [sys.executable, "-c", ASKS, asked]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.run = self._process.stdout.readline().strip()

    def end(self) -> None:
        """End it."""
        self._process.communicate("\n")


class Host(NamedTuple):
    """A state directory, and the processes that use it."""

    state: Path
    processes: list[Process]

    def ask(
        self, identity: Identity, place: str | None = PLACE, parent: int | None = None, *, shared: bool = False
    ) -> Process:
        """Another process."""
        process = Process(self.state, identity, place, parent or os.getpid(), shared=shared)
        self.processes.append(process)
        return process


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    """One whose processes end with the test."""
    host = Host(tmp_path, [])
    yield host
    for process in host.processes:
        process.end()


def test_ranks_that_meet_are_one_run(host: Host) -> None:
    """Each has a name of its own until it has asked."""
    asked = [host.ask(identity_of(rank, 3)).run for rank in range(3)]

    assert len(set(asked)) == 1


def test_other_place_is_another_run(host: Host) -> None:
    """Two jobs on one host at the same time."""
    asked = [host.ask(identity_of(rank, 2), place).run for rank in range(2) for place in (PLACE, "127.0.0.1:29501")]

    assert asked[0] == asked[2] != asked[1] == asked[3]


def test_rank_that_is_taken_is_another_run(host: Host) -> None:
    """Where no address keeps them apart, two ranks of one number still do."""
    first, second = host.ask(identity_of(0, 2)), host.ask(identity_of(0, 2))

    assert first.run != second.run


@pytest.mark.parametrize("gone", [0, 1])
def test_world_of_which_a_rank_is_gone_is_left_alone(host: Host, gone: int) -> None:
    """Tomorrow's job has the same port, and must not join today's run: not by the rank that never came, either."""
    today = [host.ask(identity_of(rank, 3)) for rank in range(2)]
    today[gone].end()
    host.processes.remove(today[gone])

    tomorrow = [host.ask(identity_of(rank, 3)).run for rank in (2, 1, 0)]

    assert len(set(tomorrow)) == 1
    assert today[0].run == today[1].run != tomorrow[0]


def test_children_of_one_parent_are_one_run_where_no_address_is_known(host: Host) -> None:
    """`mpirun` starts the ranks of its job, and those only."""
    ours = [host.ask(identity_of(rank, 2), None).run for rank in range(2)]
    others = [host.ask(identity_of(rank, 2), None, os.getppid()).run for rank in range(2)]

    assert ours[0] == ours[1] != others[0] == others[1]


def test_other_attempt_is_another_world(host: Host) -> None:
    """A batch script that is queued again goes on in its run."""
    asked = [host.ask(identity_of(0, 2, "4711", attempt), shared=True).run for attempt in range(2)]

    assert asked == ["4711", "4711"]


def test_name_of_a_command_goes_to_the_first(host: Host) -> None:
    """A sweep below `trainspan run`, and then a job of two ranks."""
    alone = [host.ask(identity_of(0, 1, "name"), None, shared=True).run for _ in range(2)]
    ranks = [host.ask(identity_of(rank, 2, "name"), shared=True).run for rank in range(2)]

    assert alone == ["name", "name-2"]
    assert ranks == ["name-3", "name-3"]


def test_process_that_is_alone_and_unnamed_asks_nobody(host: Host) -> None:
    """Most are: they leave no file."""
    run = worlds.run_of(str(host.state), identity_of(0, 1), None, 1, shared=False)

    assert run
    assert list(host.state.iterdir()) == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "null",
        "[1]",
        '[{"key": 1}]',
        '[{"key": "k", "run": "../up", "attempt": 0, "ranks": {}}]',
        '[{"key": "k", "run": "r", "attempt": 0, "ranks": {"0": 7}}]',
    ],
)
def test_damaged_file_is_begun_anew(host: Host, text: str) -> None:
    """A power cut can leave anything."""
    before = host.ask(identity_of(0, 2))
    [file] = (host.state / "worlds").iterdir()
    file.write_text(text)

    after = [host.ask(identity_of(rank, 2)).run for rank in range(2)]

    assert after[0] == after[1] != before.run


def test_file_stays_small(host: Host) -> None:
    """A sweep of a year must not make every start slower than the one before."""
    for number in range(worlds.MOST_WORLDS + 10):
        worlds.run_of(str(host.state), identity_of(0, 2), f"127.0.0.1:{number}", 1, shared=False)

    [file] = (host.state / "worlds").iterdir()
    assert len(json.loads(file.read_text())) == worlds.MOST_WORLDS
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)


def test_file_that_is_held_is_not_waited_for_for_ever(host: Host) -> None:
    """Its holder may have been stopped by a debugger."""
    host.ask(identity_of(0, 2))
    [file] = (host.state / "worlds").iterdir()

    with worlds._locked(file), pytest.raises(BlockingIOError):
        worlds.run_of(str(host.state), identity_of(1, 2), PLACE, 1, shared=False)
