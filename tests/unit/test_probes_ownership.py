"""Each GPU is spoken for by one relay of the host, and by the one whose ranks use it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from trainspan.errors import RecordingRefused
from trainspan.recording import places
from trainspan.relay.probes.ownership import Ownership, lock_dir


def ownership(directory: Path) -> Ownership:
    """Of one relay; any complaint fails the test."""

    def complain(cause: str, message: str) -> None:
        raise AssertionError(cause + message)

    return Ownership(lambda: directory, complain)


def test_of_two_relays_one_speaks_for_an_idle_gpu(tmp_path: Path) -> None:
    """Sent twice, its power is counted twice by every sum over the fleet."""
    first, second = ownership(tmp_path), ownership(tmp_path)

    spoken = [first.settle(["A", "B"], []), second.settle(["A", "B"], [])]
    first.close()
    then = second.settle(["A", "B"], [])

    assert spoken == [{"A", "B"}, set()]
    assert then == {"A", "B"}


def test_who_uses_a_gpu_speaks_for_it(tmp_path: Path) -> None:
    """The first job on a node must not put its run's name on the GPUs of the second."""
    first, second = ownership(tmp_path), ownership(tmp_path)
    first.settle(["A", "B"], ["A"])

    seconds = second.settle(["A", "B"], ["B"])
    firsts = first.settle(["A", "B"], ["A"])
    idle = second.settle(["A", "B"], [])
    second.close()
    later = first.settle(["A", "B"], ["A"])

    assert (firsts, seconds, idle) == ({"A"}, {"B"}, {"B"})
    assert later == {"A", "B"}


def test_a_shared_gpu_has_one_speaker(tmp_path: Path) -> None:
    """Two jobs on one GPU: its energy must not be charged to both."""
    first, second = ownership(tmp_path), ownership(tmp_path)

    spoken = [first.settle(["A"], ["A"]), second.settle(["A"], ["A"])]
    first.close()

    assert spoken == [{"A"}, set()]
    assert second.settle(["A"], ["A"]) == {"A"}


def test_a_killed_relay_lets_go(tmp_path: Path) -> None:
    """Nobody cleans up after SIGKILL but the kernel."""
    program = (
        "import sys, time; from pathlib import Path; from trainspan.relay.probes.ownership import Ownership\n"
        "Ownership(lambda: Path(sys.argv[1]), print).settle(['A'], ['A']); print('held', flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", program, tmp_path], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        ours = ownership(tmp_path)
        before = ours.settle(["A"], ["A"])
        other.kill()
        other.wait()

        after = ours.settle(["A"], ["A"])

    assert (before, after) == (set(), {"A"})


def test_an_id_is_no_path(tmp_path: Path) -> None:
    """It comes from a driver, and a file is named after it."""
    ours = ownership(tmp_path)

    spoken = ours.settle(["../../etc/x"], [])

    assert spoken == {"../../etc/x"}
    assert [path.name for path in tmp_path.iterdir()] == ["______etc_x.idle"]
    ours.close()
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_said_and_the_gpus_are_read(tmp_path: Path) -> None:
    """Numbers that come twice are better than none."""
    said: list[str] = []
    ours = Ownership(lambda: tmp_path / "gone", lambda _, message: said.append(message))

    spoken = ours.settle(["A"], [])

    assert spoken == {"A"}
    assert "gone" in said[0]


@pytest.mark.skipif(not os.access(places.MEMORY, os.W_OK), reason="there is no /dev/shm; would have shown its use")
def test_the_locks_of_a_user_lie_together_and_are_private(tmp_path: Path) -> None:
    """Two jobs with different state directories still find each other's locks."""
    found = {lock_dir(str(tmp_path / "one")), lock_dir(str(tmp_path / "other"))}

    (directory,) = found
    assert directory.parent == places.MEMORY
    assert places.why_not_private(directory) is None


def test_without_a_gpu_no_place_is_made() -> None:
    """Most hosts have none, and need no directory of ours in their memory."""

    def make() -> Path:
        raise AssertionError("asked for a place")

    assert Ownership(make, lambda *_: None).settle([], []) == set()


def test_no_place_at_all_is_said_and_the_gpus_are_read() -> None:
    """As with a lock that cannot be made."""
    said: list[str] = []

    def refuse() -> Path:
        raise RecordingRefused("/dev/shm/x belongs to user 1, not to 0; set TRAINSPAN_DIR")

    ours = Ownership(refuse, lambda cause, _: said.append(cause))

    assert [ours.settle(["A"], []), ours.settle(["A"], [])] == [{"A"}, {"A"}]
    assert said == ["gpu.locks"]
