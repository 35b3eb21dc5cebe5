"""Where a host's processes record: private, and agreed upon without a message."""

import contextlib
import os
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit import recording_programs as programs
from tests.unit.recording_programs import Program
from trainspan.errors import RecordingRefused
from trainspan.recording import places

NOBODY = 65534
HOST = os.uname().nodename
AGREE = """
import sys, time
from pathlib import Path
from trainspan.recording import places
state, memory = sys.argv[1:]
places.MEMORY = Path(memory)
# A slow disk: time passes between looking at a link and replacing it.
sys.addaudithook(lambda event, _: time.sleep(0.05) if event == "os.rename" else None)
sys.stdin.readline()
print(places.recording_dir(state, "run", None, in_memory=True))
"""

AGREE_AND_UNDO = """
import contextlib, sys
from pathlib import Path
from trainspan.errors import RecordingRefused
from trainspan.recording import places
state, memory = sys.argv[1:]
places.MEMORY = Path(memory)
sys.stdin.readline()
refused = 0
for _ in range(200):
    with contextlib.ExitStack() as undo:
        try:
            places.recording_dir(state, "run", None, in_memory=True, undo=undo)
        except RecordingRefused:
            refused += 1
print(refused)
"""

as_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="needs root; would have shown that a directory of another user is refused"
)
with_memory = pytest.mark.skipif(
    not os.access(places.MEMORY, os.W_OK),
    reason="needs /dev/shm; would have shown how processes agree on a place there",
)


@pytest.fixture
def state(tmp_path: Path) -> Iterator[Path]:
    """A state directory; what its links lead to in the host's memory is removed afterwards."""
    yield tmp_path

    for link in tmp_path.glob("runs/*/recordings/*"):
        if link.is_symlink() and link.readlink().parent == places.MEMORY:
            shutil.rmtree(link.readlink(), ignore_errors=True)


def mode_of(path: Path) -> int:
    """The permission bits of `path`."""
    return stat.S_IMODE(path.lstat().st_mode)


def agree(state: Path, memory: Path, processes: int, script: str = AGREE) -> set[str]:
    """The answers of as many processes, asked at the same moment."""
    command = [sys.executable, "-c", script, str(state), str(memory)]
    asked = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(processes)
    ]
    for process in asked:
        assert process.stdin is not None
        process.stdin.write("now\n")
        process.stdin.flush()
    answers = [process.communicate() for process in asked]
    assert [errors for _, errors in answers if errors] == []
    return {answer.strip() for answer, _ in answers}


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_made_directory_is_private(tmp_path: Path, umask: int) -> None:
    """Recordings tell what somebody trains: a generous umask must not show them to everybody."""
    before = os.umask(umask)

    try:
        made = places.make_private(tmp_path / "runs" / "one")
    finally:
        os.umask(before)

    assert mode_of(made) == 0o700
    assert mode_of(made.parent) & 0o077 == 0


def test_directory_that_is_there_is_used_again(tmp_path: Path) -> None:
    """The second rank of a host finds what the first has made."""
    first = places.make_private(tmp_path / "run")

    second = places.make_private(tmp_path / "run")

    assert second == first


def test_planted_link_is_refused(tmp_path: Path) -> None:
    """A link in place of the directory would have us write where somebody else wants us to."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    (tmp_path / "run").symlink_to(elsewhere)

    with pytest.raises(RecordingRefused, match="is not a directory; remove it"):
        places.make_private(tmp_path / "run")

    assert list(elsewhere.iterdir()) == []


@as_root
def test_directory_of_somebody_else_is_refused(tmp_path: Path) -> None:
    """Its owner could read and exchange every recording in it."""
    planted = tmp_path / "run"
    planted.mkdir(mode=0o700)
    os.chown(planted, NOBODY, NOBODY)

    with pytest.raises(RecordingRefused, match=f"belongs to user {NOBODY}, not to 0"):
        places.make_private(planted)


@pytest.mark.parametrize("mode", [0o755, 0o710, 0o702])
def test_directory_open_to_others_is_refused(tmp_path: Path, mode: int) -> None:
    """Somebody opened it on purpose or by mistake; we cannot know who has been in it."""
    opened = tmp_path / "run"
    opened.mkdir()
    opened.chmod(mode)

    with pytest.raises(RecordingRefused, match=rf"mode {mode:o}.*chmod 700"):
        places.make_private(opened)


def test_file_in_the_way_is_refused_with_what_to_do(tmp_path: Path) -> None:
    """The warning is the only thing that the owner of the training gets to see."""
    (tmp_path / "state").write_text("not a directory")

    with pytest.raises(RecordingRefused, match=r"cannot be used .*set TRAINSPAN_DIR"):
        places.make_private(tmp_path / "state" / "runs" / "one")


@pytest.mark.parametrize("what", ["file", "link", "unreachable"])
def test_refusal_of_the_place_that_somebody_chose_names_its_variable(what: str, tmp_path: Path) -> None:
    """To set the other variable changes nothing, and the next job fails the same way."""
    volume = tmp_path / "volume"
    volume.mkdir()
    if what == "file":
        (volume / "run").write_text("no directory")
    elif what == "link":
        (volume / "run").symlink_to(tmp_path)
    else:
        volume = Path("/proc/x")

    with pytest.raises(RecordingRefused) as refusal:
        places.recording_dir(str(tmp_path), "run", str(volume), in_memory=True)

    assert str(volume / "run") in str(refusal.value)
    assert str(refusal.value).endswith("set TRAINSPAN_RECORDING_DIR")


def test_place_below_a_directory_that_is_gone_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job's scratch directory is removed under it: what is relative to it has nothing above."""
    (tmp_path / "scratch").mkdir()
    monkeypatch.chdir(tmp_path / "scratch")
    (tmp_path / "scratch").rmdir()

    with pytest.raises(RecordingRefused, match="cannot be used"):
        places.make_private(Path("state/run"))


@as_root
def test_place_of_somebody_else_names_the_variable_that_chose_it(tmp_path: Path) -> None:
    """As above, where the directory is there and belongs to another user."""
    (tmp_path / "run").mkdir(mode=0o700)
    os.chown(tmp_path / "run", NOBODY, NOBODY)

    with pytest.raises(RecordingRefused, match=r"set TRAINSPAN_RECORDING_DIR$"):
        places.recording_dir("/nonexistent", "run", str(tmp_path), in_memory=True)


def test_explicit_place_is_used_as_it_is(tmp_path: Path, state: Path) -> None:
    """A sidecar looks into the volume it shares with the rank, and nowhere else."""
    explicit = tmp_path / "volume"

    place = places.recording_dir(str(state), "run", str(explicit), in_memory=True)

    assert place == explicit / "run"
    assert mode_of(place) == 0o700
    assert not (state / "runs").exists()


def test_recordings_that_must_last_are_in_the_run_folder(state: Path) -> None:
    """Without a relay they are all there is, and memory ends with the boot."""
    place = places.recording_dir(str(state), "run", None, in_memory=False)

    assert place == state / "runs" / "run" / "recordings" / HOST
    assert mode_of(place) == 0o700


@with_memory
def test_place_in_memory_is_private_and_cannot_be_guessed(state: Path) -> None:
    """Everybody may write to the host's memory: a name that can be foretold can be planted."""
    first = places.recording_dir(str(state), "one", None, in_memory=True)
    second = places.recording_dir(str(state), "two", None, in_memory=True)

    assert first.parent == second.parent == places.MEMORY
    assert mode_of(first) == 0o700
    assert "one" not in first.name
    assert first.name != second.name


@with_memory
def test_place_is_found_again_by_its_link(state: Path) -> None:
    """A restarted rank joins the others, and the report finds what they recorded."""
    first = places.recording_dir(str(state), "run", None, in_memory=True)

    second = places.recording_dir(str(state), "run", None, in_memory=True)

    assert second == first
    assert (state / "runs" / "run" / "recordings" / HOST).readlink() == first


@with_memory
def test_link_that_leads_nowhere_is_replaced(state: Path) -> None:
    """After a reboot the memory is empty and the link still there."""
    gone = places.recording_dir(str(state), "run", None, in_memory=True)
    gone.rmdir()

    place = places.recording_dir(str(state), "run", None, in_memory=True)

    assert place != gone
    assert mode_of(place) == 0o700
    assert (state / "runs" / "run" / "recordings" / HOST).readlink() == place


@as_root
@with_memory
def test_link_to_somebody_else_is_replaced(state: Path) -> None:
    """After a reboot somebody else may have taken the name in the host's memory."""
    taken = places.recording_dir(str(state), "run", None, in_memory=True)
    os.chown(taken, NOBODY, NOBODY)

    try:
        place = places.recording_dir(str(state), "run", None, in_memory=True)
    finally:
        taken.rmdir()

    assert place != taken


@with_memory
def test_directory_where_the_link_belongs_is_used(state: Path) -> None:
    """A run begun with the relay off goes on where it was, also when the relay is on again."""
    on_disk = places.recording_dir(str(state), "run", None, in_memory=False)

    place = places.recording_dir(str(state), "run", None, in_memory=True)

    assert place == on_disk


@pytest.mark.parametrize("rebooted", [False, True], ids=["first-start", "after-a-reboot"])
def test_processes_that_start_at_once_agree(tmp_path: Path, rebooted: bool) -> None:
    """Eight ranks that disagree are served by eight relays, or seven of them by none."""
    state, memory = tmp_path / "state", tmp_path / "memory"
    memory.mkdir()
    if rebooted:
        link = places.make_private(state / "runs" / "run" / "recordings") / HOST
        link.symlink_to(memory / "trainspan-before-the-reboot")

    answers = agree(state, memory, processes=8)

    assert answers == {str(path) for path in memory.iterdir()}
    assert len(answers) == 1


@with_memory
@pytest.mark.parametrize("explicit", [None, "volume/deep"])
def test_what_was_made_for_a_refused_recording_is_taken_away(explicit: str | None, tmp_path: Path) -> None:
    """A folder of a run that has no recording would be taken for the newest run."""
    (tmp_path / "volume").mkdir()
    chosen = explicit and str(tmp_path / explicit)

    with contextlib.ExitStack() as undo:
        place = places.recording_dir(str(tmp_path / "state"), "run", chosen, in_memory=True, undo=undo)
        made = place.exists()

    assert made
    assert not place.exists()
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["volume"]


@with_memory
def test_what_another_process_uses_or_has_made_stays(state: Path) -> None:
    """Of two ranks one may be refused, by a limit of its own."""
    other = places.make_private(state / "runs" / "run")
    with contextlib.ExitStack() as undo:
        place = places.recording_dir(str(state), "run", None, in_memory=True, undo=undo)
        (place / "relay.lock").touch()
    with contextlib.ExitStack() as undo:
        found = places.recording_dir(str(state), "run", None, in_memory=True, undo=undo)
    (place / "relay.lock").unlink()
    with contextlib.ExitStack() as undo:
        places.recording_dir(str(state), "run", None, in_memory=True, undo=undo)

    assert found == place
    assert place.is_dir()
    assert (other / "recordings" / HOST).readlink() == place


@with_memory
def test_place_is_found_while_another_process_takes_its_own_away(tmp_path: Path) -> None:
    """Its folders can go between a look and the next: they are made again."""
    state, memory = tmp_path / "state", tmp_path / "memory"
    memory.mkdir()

    assert agree(state, memory, processes=8, script=AGREE_AND_UNDO) == {"0"}
    assert list(memory.iterdir()) == []


@with_memory
def test_empty_place_in_memory_is_taken_away(state: Path) -> None:
    """Memory that a finished run keeps is missing for the next one."""
    place = places.recording_dir(str(state), "run", None, in_memory=True)
    (place / "relay.lock").touch()

    places.retire(place, places.run_folder(str(state), "run"), "relay.lock")

    assert not place.exists()
    assert list((state / "runs" / "run" / "recordings").iterdir()) == []


@with_memory
def test_place_with_a_recording_stays(state: Path) -> None:
    """A rank may have begun to record just when the relay was leaving."""
    place = places.recording_dir(str(state), "run", None, in_memory=True)
    for name in ("relay.lock", "r00000-a0-p1-00000000.events", "r00000-a0-p1-00000000.ring"):
        (place / name).touch()

    places.retire(place, places.run_folder(str(state), "run"), "relay.lock")

    assert len(list(place.iterdir())) == 3
    assert places.recording_dir(str(state), "run", None, in_memory=True) == place


def test_place_that_somebody_chose_stays(tmp_path: Path) -> None:
    """A volume that the user mounted is not ours to remove, empty or not."""
    place = places.recording_dir(str(tmp_path), "run", str(tmp_path / "volume"), in_memory=True)

    places.retire(place, places.run_folder(str(tmp_path), "run"), "relay.lock")

    assert place.is_dir()


@with_memory
def test_link_to_a_newer_place_stays(state: Path) -> None:
    """The relay of an earlier place may leave after another one has been made."""
    place = places.recording_dir(str(state), "run", None, in_memory=True)
    link = state / "runs" / "run" / "recordings" / HOST
    newer = places.recording_dir(str(state), "other", None, in_memory=True)
    link.unlink()
    link.symlink_to(newer)

    places.retire(place, places.run_folder(str(state), "run"), "relay.lock")

    assert not place.exists()
    assert link.readlink() == newer


@with_memory
def test_recording_of_a_process_killed_while_it_made_it_is_taken_away(state: Path) -> None:
    """It has no name that a relay looks for, and would hold the host's memory for ever."""
    place = places.recording_dir(str(state), "run", None, in_memory=True)
    with Program(programs.die_in_the_making, place) as program:
        assert program.ended() == -signal.SIGKILL
    [draft] = place.glob(".*")
    os.utime(draft, (0, 0))

    places.retire(place, places.run_folder(str(state), "run"), "relay.lock")

    assert not place.exists()


@with_memory
def test_recording_that_a_process_is_making_stays(state: Path) -> None:
    """However long it takes: the process would go on unrecorded."""
    place = places.recording_dir(str(state), "run", None, in_memory=True)
    with Program(programs.wait_in_the_making, place) as program:
        assert program.said() == "making"
        [draft] = place.glob(".*")
        os.utime(draft, (0, 0))

        places.retire(place, places.run_folder(str(state), "run"), "relay.lock")

        program.go_on()
        made = Path(program.said())
        program.go_on()
        assert program.ended() == 0
    assert made.exists()
    assert made.with_suffix(".events").exists()


def test_draft_that_is_just_appearing_stays(tmp_path: Path) -> None:
    """Between its making and its lock lie microseconds."""
    (tmp_path / ".r00000-a0-p1-00000000.draft").touch()

    places.retire(tmp_path, None, "relay.lock")

    assert len(list(tmp_path.iterdir())) == 1
