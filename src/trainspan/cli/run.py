"""`trainspan run`: starts a command with recording switched on and ends with where to look."""

import argparse
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from trainspan import identity, launch
from trainspan.cli.child import NotStarted, run_to_end, signals_held, wait_until
from trainspan.cli.command import USAGE, add_dir, settings_of, with_dir
from trainspan.recording import places
from trainspan.role import Role
from trainspan.settings import Settings, state_dir

EXAMPLES = """\
examples:
  trainspan run -- python train.py --lr 3e-4
  trainspan run -- torchrun --nproc-per-node 8 train.py
  trainspan run --run-id llama-7 -- srun python train.py    one run over all restarts
  ENTRYPOINT ["trainspan", "run", "--"]                     in a container

The command is started as it is, with TRAINSPAN_ENABLED=1. Signals go on to it,
and its exit code is the exit code (128+n when signal n ended it). Telemetry
goes to OTEL_EXPORTER_OTLP_ENDPOINT, or stays in the run folder.
"""

RELAY_TIMEOUT_S: Final = 5.0
"""How long the end of the command waits for the last export; a relay that needs longer goes on without us."""
RELAY_PATIENCE_S: Final = 1.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `trainspan run`."""
    parser.usage = "trainspan run [--run-id ID] [--dir DIR] -- CMD ..."
    parser.add_argument("--run-id", metavar="ID", help="identity of the run over all its restarts")
    add_dir(parser)
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="CMD ...", help="the command to start")


def execute(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    """The exit code of the command."""
    command = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    if not command:
        print("trainspan run: no command given; use: trainspan run -- python train.py", file=sys.stderr)
        return USAGE
    environ = with_dir(environ, arguments.dir)
    if arguments.run_id:
        environ["TRAINSPAN_RUN_ID"] = arguments.run_id
    return run_recorded(command, environ)[0]


def run_recorded(command: Sequence[str], environ: Mapping[str, str]) -> tuple[int, Path | None]:
    """(exit code of `command`, the run folder it left): recorded, and waited for until the relay has left.

    Raises:
        SettingError: a TRAINSPAN_* variable is not understood.
    """
    settings_of(environ)  # the user's own values, before ours cover one of them
    say = _silent if "TRAINSPAN_LAUNCH_ID" in environ else _say  # an outer `trainspan run` says it
    environ = {**environ, "TRAINSPAN_ENABLED": "1"}
    environ.setdefault("TRAINSPAN_LAUNCH_ID", identity.new_run_id())
    settings = settings_of(environ)
    before = _touched(settings, environ)
    with signals_held() as mask:
        try:
            code = run_to_end(command, environ, mask)
        except NotStarted as error:
            print(f"trainspan run: {error}", file=sys.stderr)
            return error.code, None
        folder = _recorded_folder(settings, environ, command, before)
        if folder is None:
            say("nothing was recorded: no process of this command trained with torch (see: trainspan doctor)")
            return code, None
        _wait_for_relay(_recordings_of(folder, settings))
    say(_where(folder, settings))
    return code, folder


def _recorded_folder(
    settings: Settings, environ: Mapping[str, str], command: Sequence[str], before: Mapping[Path, int]
) -> Path | None:
    """The run folder the command left, or None.

    Its name is not certain beforehand: torchrun gives its workers a rendezvous id, which then names the run. So the
    folder that was predicted counts if it was touched, else the newest one that was.
    """
    touched = {folder: when for folder, when in _touched(settings, environ).items() if when != before.get(folder)}
    predicted = _predicted_folder(settings, environ, command)
    return predicted if predicted in touched else max(touched, key=lambda folder: touched[folder], default=None)


def _predicted_folder(settings: Settings, environ: Mapping[str, str], command: Sequence[str]) -> Path:
    rendezvous = re.search(r" --rdzv[-_]id[ =](\S+)", " ".join(command))
    elastic = rendezvous[1] if rendezvous else environ.get("PET_RDZV_ID")
    known = {**environ, "TORCHELASTIC_RUN_ID": elastic} if elastic else environ
    run = identity.identify(settings, known, Role.RANK).run
    return places.run_folder(state_dir(settings, environ), run)


def _touched(settings: Settings, environ: Mapping[str, str]) -> dict[Path, int]:
    """When each run folder, or the list of its recordings, last changed, in ns."""
    runs = Path(state_dir(settings, environ)) / "runs"
    try:
        folders = [folder for folder in runs.iterdir() if folder.is_dir()]
    except OSError:
        return {}
    return {folder: max(_changed_ns(folder), _changed_ns(folder / "recordings")) for folder in folders}


def _changed_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _recordings_of(folder: Path, settings: Settings) -> Path:
    """Where this host's processes of the run in `folder` record; unlike the ranks we make nothing."""
    if settings.recording_dir:
        return Path(settings.recording_dir) / folder.name
    return folder / "recordings" / os.uname().nodename


def _wait_for_relay(recordings: Path) -> None:
    def say() -> None:
        _say("the relay is exporting the last of it ...")

    if not wait_until(lambda: _relay_left(recordings), RELAY_TIMEOUT_S, RELAY_PATIENCE_S, say):
        _say("the relay has not finished exporting; it goes on by itself")


def _relay_left(recordings: Path) -> bool:
    try:
        return not launch.relay_running(recordings)
    except OSError:
        return True  # its last act was to remove the directory, or there never was one


def _where(folder: Path, settings: Settings) -> str:
    # The id is enough only where the next command looks in the same place by itself.
    run = folder if settings.dir else folder.name
    if settings.relay == "off":
        return f"recorded in {folder}; deliver it with: trainspan replay {run}"
    return f"recorded in {folder}; see it with: trainspan report {run}"


def _silent(_: str) -> None:
    return


def _say(text: str) -> None:
    print(f"trainspan: {text}", file=sys.stderr, flush=True)
