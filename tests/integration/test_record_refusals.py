"""Bad input and bad places: a line of warning, training that goes on, and nothing left half-written."""

import os
import re
import stat
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.integration.recorded import REPOSITORY, SCRIPTS, Run, Training, start, start_ranks
from trainspan.report.folder import find_run
from trainspan.role import Role

RUN = "fixed"
KIB = 1024
RING_MARKS_WARNING = (
    "trainspan: TRAINSPAN_RING_MARKS='77' is not understood: use a power of two from 1024 to 67108864; "
    "going on with the default"
)


def entries_below(directory: Path) -> list[str]:
    """Everything below `directory`: files, directories, and links wherever they lead."""
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*"))


def train(state: Path, **more: str) -> Run:
    """A plain training of four steps."""
    return start("loops.py", "accumulation", state=state, **more).ended()


def assert_unrecorded(run: Run, reason: str) -> None:
    """It trained to its end, and one line says why nothing was recorded."""
    [warning] = run.stderr.splitlines()
    assert warning.startswith("trainspan: training goes on unrecorded: ")
    assert reason in warning
    assert run.exit_code == 0
    assert [line["scenario"] for line in run.lines] == ["accumulation"]


def test_each_bad_variable_is_named_once(tmp_path: Path) -> None:
    """A typing error in a job that waits a day for its turn must not cost the recording."""
    run = train(tmp_path, TRAINSPAN_RELAYS="off", TRAINSPAN_RING_MARKS="77", TRAINSPAN_ATTEMPT="-1")

    assert run.stderr.splitlines() == [
        "trainspan: TRAINSPAN_ATTEMPT='-1' is not understood: use a number from 0; going on with the default",
        RING_MARKS_WARNING,
        "trainspan: TRAINSPAN_RELAYS='off' is not understood: no such variable; did you mean TRAINSPAN_RELAY?",
    ]
    assert [len(recording.steps) for recording in run.recordings] == [4]


def test_switch_that_is_not_understood_is_off(tmp_path: Path) -> None:
    """The warning says so, and the launcher and its rank must agree on it."""
    run = start_ranks(1, "ddp.py", state=tmp_path, TRAINSPAN_ENABLED="maybe").ended()

    warning = "trainspan: TRAINSPAN_ENABLED='maybe' is not understood: use 1 or 0; going on with 0"
    assert run.stderr.splitlines() == [warning]
    assert (run.exit_code, entries_below(tmp_path)) == (0, [])


def test_unwritable_place_is_refused(tmp_path: Path) -> None:
    """A home directory that is not mounted on the compute nodes is the usual case."""
    file = tmp_path / "file"
    file.write_text("not a directory")

    run = train(file)

    assert_unrecorded(run, str(file))
    assert entries_below(tmp_path) == ["file"]


@pytest.mark.parametrize("ranks", [None, 1], ids=["alone", "torchrun"])
def test_what_another_containers_relay_reads_needs_no_other_place(tmp_path: Path, ranks: int | None) -> None:
    """A container whose file system is read-only, but for the volume that it shares with the relay's."""
    (tmp_path / "file").write_text("no directory")
    elsewhere = {"TRAINSPAN_RELAY": "off", "TRAINSPAN_RECORDING_DIR": str(tmp_path / "volume"), "TRAINSPAN_RUN_ID": RUN}
    place = {**elsewhere, "TRAINSPAN_DIR": str(tmp_path / "file")}

    if ranks is None:
        run = start("loops.py", "accumulation", state=tmp_path, **place).ended()
    else:
        run = start_ranks(ranks, "loops.py", "accumulation", state=tmp_path, **place).ended()

    recorded = [recording for recording in run.recordings if recording.identity.role == Role.RANK]
    assert [line for line in run.stderr.splitlines() if line.startswith("trainspan")] == []
    assert [(recording.identity.run, len(recording.steps)) for recording in recorded] == [(RUN, 4)]


NOTES_DIRECTORIES = """
import os, sys

def note(event, arguments):
    if event == "os.mkdir":
        with open(os.environ["NOTES"], "a") as notes:
            notes.write(os.fspath(arguments[0]) + "\\n")

sys.addaudithook(note)
"""


@pytest.mark.parametrize("relay", ["off", "process"])
@pytest.mark.parametrize("named", [{}, {"TRAINSPAN_RUN_ID": RUN}], ids=["nameless", "named"])
def test_full_place_is_refused_and_nothing_is_left(named: dict[str, str], relay: str, tmp_path: Path) -> None:
    """Half a ring would be read as a dead rank; a hole in it would kill the rank with SIGBUS."""
    limited = ["bash", "-c", f'ulimit -f {64 * KIB // KIB}; exec "$@"', "bash"]
    command = [*limited, sys.executable, str(SCRIPTS / "loops.py"), "accumulation"]
    state, notes = tmp_path / "state", tmp_path / "notes"
    (tmp_path / "sitecustomize.py").write_text(NOTES_DIRECTORIES)
    paths = os.pathsep.join([str(tmp_path), str(REPOSITORY)])

    run = Training(
        command, state, {"TRAINSPAN_RELAY": relay, "PYTHONPATH": paths, "NOTES": str(notes), **named}
    ).ended()

    assert_unrecorded(run, "takes no recording (File too large)")
    made = [path for path in notes.read_text().splitlines() if "trainspan-" in path or str(state) in path]
    assert made != []
    assert [path for path in made if os.path.lexists(path)] == []
    assert not state.exists()


@pytest.mark.parametrize("relay", ["off", "process"])
def test_refused_run_does_not_hide_the_last_good_one(relay: str, tmp_path: Path) -> None:
    """`trainspan report` would ask for the recordings of a run that has none; and its number is the next one's."""
    good = train(tmp_path, TRAINSPAN_RUN_ID="good")
    before = entries_below(tmp_path)

    bad = train(tmp_path, TRAINSPAN_RUN_ID="bad", TRAINSPAN_RECORDING_DIR="/proc/x", TRAINSPAN_RELAY=relay)
    again = train(tmp_path, TRAINSPAN_RUN_ID="good", TRAINSPAN_RECORDING_DIR="/proc/x", TRAINSPAN_RELAY=relay)

    assert len(good.recordings) == 1
    for run in (bad, again):
        assert run.stderr.splitlines()[0].endswith("set TRAINSPAN_RECORDING_DIR")
    assert entries_below(tmp_path) == before
    assert find_run(tmp_path, None).name == "good"


def test_recording_without_a_run_folder_is_not_left_behind(tmp_path: Path) -> None:
    """The volume for recordings can be there where the home directory is not: no relay could read them."""
    (tmp_path / "file").write_text("no directory")
    (tmp_path / "volume").mkdir()
    place = {"TRAINSPAN_DIR": str(tmp_path / "file"), "TRAINSPAN_RECORDING_DIR": str(tmp_path / "volume")}

    run = train(tmp_path, TRAINSPAN_RELAY="process", **place)

    assert_unrecorded(run, str(tmp_path / "file"))
    assert entries_below(tmp_path) == ["file", "volume"]


FILLED_LATER = """
import os, sys
from trainspan.relay.process import log
log("of what did not fit")
os.unlink(sys.argv[1])
log("of what came then")
"""


def on_small_disk(script: str, *arguments: str) -> list[str]:
    """A command that runs a shell script on a file system of 256 KiB of its own, mounted on `$1`."""
    mounts = 'mount -t tmpfs -o size=256k tmpfs "$1"; '
    command = ["unshare", "--mount", "bash", "-c", mounts + script, "bash", *arguments]
    tried = subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False)
    if tried.returncode:
        pytest.skip("this user may not mount; would have shown what is said of a disk that is full")
    return command


def test_full_disk_of_the_run_folder_is_said_by_the_rank(tmp_path: Path) -> None:
    """The relay's log lies on the same disk: nobody else could say it."""
    fills = 'head -c 300000 /dev/zero >"$1/fill"; shift; exec "$@"'
    command = on_small_disk(fills, str(tmp_path), sys.executable, str(SCRIPTS / "loops.py"), "accumulation")

    run = Training(command, tmp_path, {"TRAINSPAN_RELAY": "process"}).ended()

    (said,) = [line for line in run.stderr.splitlines() if line.startswith("trainspan: ")]
    assert run.exit_code == 0
    assert re.fullmatch(rf"trainspan: the disk of {tmp_path}/runs/\S+ is full \(\d+ bytes free\): .*", said)


def test_relay_outlives_a_full_disk_and_says_so_when_there_is_room(tmp_path: Path) -> None:
    """Its first word about it must not be its last."""
    script = 'head -c 300000 /dev/zero >"$1/fill"; "$2" -c "$3" "$1/fill" 2>>"$1/log"; cat "$1/log"'
    command = on_small_disk(script, str(tmp_path), sys.executable, FILLED_LATER)

    ran = subprocess.run(command, capture_output=True, text=True, check=True)

    said = [line.partition("trainspan relay: ")[2] for line in ran.stdout.splitlines()]
    assert said == ["of what did not fit", "of what came then"]


def test_planted_link_is_not_followed(tmp_path: Path) -> None:
    """Whoever knows the name of the next run must not choose where its rank writes."""
    target = tmp_path / "target"
    target.mkdir(mode=0o700)
    folder = tmp_path / "state" / "runs" / RUN
    folder.mkdir(mode=0o700, parents=True)
    (folder / "recordings").symlink_to(target)

    run = train(tmp_path / "state", TRAINSPAN_RUN_ID=RUN)

    assert_unrecorded(run, "is not a directory")
    assert entries_below(target) == []
    assert entries_below(tmp_path / "state") == ["runs", f"runs/{RUN}", f"runs/{RUN}/recordings"]


def test_directory_open_to_others_is_refused(tmp_path: Path) -> None:
    """Who may write into it could put a link where the next file is made."""
    folder = tmp_path / "runs" / RUN
    folder.mkdir(parents=True)
    folder.chmod(0o777)

    run = train(tmp_path, TRAINSPAN_RUN_ID=RUN)

    assert_unrecorded(run, f"chmod 700 {folder}")
    assert entries_below(tmp_path) == ["runs", f"runs/{RUN}"]


def test_recordings_are_private(tmp_path: Path) -> None:
    """Whatever the user's umask is, and whoever else may look into the state directory."""
    tmp_path.chmod(0o777)

    command = ["bash", "-c", 'umask 0; exec "$@"', "bash", sys.executable, str(SCRIPTS / "loops.py"), "accumulation"]
    run = Training(command, tmp_path, {}).ended()

    modes = {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*") if path.is_dir()}
    assert modes == {0o700}
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*") if path.is_file()} == {0o600}
    assert len(run.recordings) == 1


def test_process_that_never_trains_leaves_nothing(tmp_path: Path) -> None:
    """Most programs that import torch do not train."""
    program = "import torch; x = torch.ones(2, requires_grad=True); (x * x).sum().backward(); torch.nn.Linear(2, 1)(x)"

    run = Training([sys.executable, "-c", program], tmp_path, {}).ended()

    assert (run.exit_code, run.stderr, list(tmp_path.iterdir())) == (0, "", [])


SPY = """
import os, sys

def note(what):
    with open(os.environ["SPY_LOG"], "a") as log:
        log.write(what + " " + " ".join(sys.orig_argv) + "\\n")

def watch(event, arguments):
    if event == "import" and arguments[0] == "trainspan.record":
        note("records")

note("starts")
sys.addaudithook(watch)
"""


def spied(tmp_path: Path, *command: str, **more: str) -> tuple[Run, list[str]]:
    """A command, and what its processes do: `starts` or `records`, and the command line."""
    (tmp_path / "sitecustomize.py").write_text(SPY)
    paths = os.pathsep.join([str(tmp_path), str(REPOSITORY)])
    more = {"SPY_LOG": str(tmp_path / "log"), "PYTHONPATH": paths, **more}
    run = Training([sys.executable, *command], tmp_path / "state", more).ended()
    assert run.exit_code == 0
    return run, (tmp_path / "log").read_text().splitlines()


def test_helpers_of_a_rank_load_nothing_and_say_nothing(tmp_path: Path) -> None:
    """Thirty-two workers would fill the screen with one typing error; the resource tracker is no worker at all."""
    run, done = spied(tmp_path, str(SCRIPTS / "workers.py"), "spawn", "1", TRAINSPAN_RELAYS="off")

    assert len(run.stderr.splitlines()) == 1
    assert [line.split()[0] for line in done if "resource_tracker" in line] == ["starts"]
    assert [line.split()[0] for line in done if "spawn_main" in line] == ["starts", "records"]


def test_compile_worker_does_not_load_the_recorder(tmp_path: Path) -> None:
    """torch.compile starts one for each core, with a rank's variables, and each imports torch."""
    [torch] = find_spec("torch").submodule_search_locations  # type: ignore[union-attr,misc]  # it is there

    _, done = spied(tmp_path, str(Path(torch) / "_inductor" / "compile_worker" / "__main__.py"), "--help")

    assert [line.split()[0] for line in done] == ["starts"]
