"""`trainspan run`: starts a command with recording switched on and ends with where to look."""

import argparse
import contextlib
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from trainspan import identity, launch
from trainspan.cli.child import NotStarted, run_to_end, signals_held, wait_until
from trainspan.cli.command import USAGE, add_dir, settings_of, with_dir
from trainspan.recording.last_words import LastWords
from trainspan.role import Role
from trainspan.settings import Settings, state_dir

EXAMPLES = """\
examples:
  trainspan run -- python train.py --lr 3e-4
  trainspan run -- torchrun --nproc-per-node 8 train.py
  trainspan run --run-id llama-7 -- srun python train.py    one run over all restarts
  ENTRYPOINT ["trainspan", "run", "--"]                     in a container

The command is started as it is, with TRAINSPAN_ENABLED=1. Signals go on to it.
Telemetry goes to OTEL_EXPORTER_OTLP_ENDPOINT, or stays in the run folder.
"""

RELAY_TIMEOUT_S: Final = 5.0
"""How long the end of the command waits for the last export; a relay that needs longer goes on without us."""
RELAY_PATIENCE_S: Final = 1.0

RUNS_NAMED: Final = 8
"""Of a command that leaves many, the last ones."""


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


def run_recorded(command: Sequence[str], environ: Mapping[str, str]) -> tuple[int, list[Path]]:
    """(exit code of `command`, the run folders it left): recorded, and waited for until the relays have left.

    The folders are in the order in which they changed last.

    Raises:
        SettingError: a TRAINSPAN_* variable is not understood.
    """
    settings_of(environ)  # the user's own values, before ours cover one of them
    say = _silent if "TRAINSPAN_LAUNCH_ID" in environ else _say  # an outer `trainspan run` says it
    environ = {**environ, "TRAINSPAN_ENABLED": "1"}
    environ.setdefault("TRAINSPAN_LAUNCH_ID", identity.new_run_id())
    settings = settings_of(environ)
    before = _touched(settings, environ)
    words = LastWords(Path(state_dir(settings, environ)), settings.launch_id)
    with signals_held() as mask, contextlib.ExitStack() as last:
        if say is _say:
            last.callback(words.forget)
        try:
            code = run_to_end(command, environ, mask, words)
        except NotStarted as error:
            print(f"trainspan run: {error}", file=sys.stderr)
            return error.code, []
        folders = _recorded_folders(settings, environ, command, before)
        if not folders:
            say(
                "nothing was recorded: no process of this command made an optimizer of torch or said trainspan.step(), "
                "or it has said above what is in the way (see: trainspan doctor)"
            )
            return code, []
        _wait_for_relays([_recordings_of(folder, settings) for folder in folders])
    for line in (*_where(folders, settings), *_undelivered(folders, settings, environ)):
        say(line)
    return code, folders


def _recorded_folders(
    settings: Settings, environ: Mapping[str, str], command: Sequence[str], before: Mapping[Path, int]
) -> list[Path]:
    """The run folders the command left.

    Their names are not certain beforehand: torchrun gives its workers a rendezvous id, which then names the run. So
    those that were predicted count if they were touched, else those that are new, else the newest one that was
    touched: other jobs of this user may record beside us.
    """
    touched = {folder: when for folder, when in _touched(settings, environ).items() if when != before.get(folder)}
    by_time = sorted(touched, key=lambda folder: touched[folder])
    predicted = "|".join(map(re.escape, _predicted(settings, environ, command)))
    # Below one name that was given to a command, the second training is `<name>-2`.
    ours = re.compile(f"({predicted})" if settings.run_id else rf"({predicted})(-\d+)?")
    return (
        [folder for folder in by_time if ours.fullmatch(folder.name)]
        or [folder for folder in by_time if folder not in before]
        or by_time[-1:]
    )


def _predicted(settings: Settings, environ: Mapping[str, str], command: Sequence[str]) -> Iterator[str]:
    elastic = re.findall(r"--rdzv[-_]id[ =]([^\s;&|'\"]+)", " ".join(command))
    for rendezvous in (None, *elastic, environ.get("PET_RDZV_ID")):
        known = {**environ, "TORCHELASTIC_RUN_ID": rendezvous} if rendezvous else environ
        yield identity.identify(settings, known, Role.RANK).run


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


def _wait_for_relays(recordings: Sequence[Path]) -> None:
    def say() -> None:
        _say("the relay is exporting the last of it ...")

    if not wait_until(lambda: all(map(_relay_left, recordings)), RELAY_TIMEOUT_S, RELAY_PATIENCE_S, say):
        _say("the relay has not finished exporting; it goes on by itself")


def _relay_left(recordings: Path) -> bool:
    try:
        return not launch.relay_running(recordings)
    except OSError:
        return True  # its last act was to remove the directory, or there never was one


def _run_of(folder: Path, settings: Settings) -> str:
    # The id is enough only where the next command looks in the same place by itself.
    return str(folder) if settings.dir else folder.name


def _where(folders: Sequence[Path], settings: Settings) -> Iterator[str]:
    runs = [_run_of(folder, settings) for folder in folders]
    verb, command = ("deliver", "replay") if settings.relay == "off" else ("see", "report")
    if len(runs) == 1:
        yield f"recorded in {folders[0]}; {verb} it with: trainspan {command} {runs[0]}"
        return
    yield f"recorded {len(runs)} runs in {folders[0].parent}; {verb} them with:"
    if len(runs) > RUNS_NAMED:
        yield f"  ... and {len(runs) - RUNS_NAMED} earlier ones"
    yield from (f"  trainspan {command} {run}" for run in runs[-RUNS_NAMED:])


def _undelivered(folders: Sequence[Path], settings: Settings, environ: Mapping[str, str]) -> Iterator[str]:
    """What the endpoints have not taken, of the runs that are named; nothing of what nobody was to send yet."""
    if settings.relay == "off":
        return
    # Imported here: it takes some of OpenTelemetry, which nobody needs while the command runs.
    from trainspan.relay.otlp.pending import pending_in

    spoiled: dict[str, str] = {}
    for folder in folders[-RUNS_NAMED:]:
        pending = pending_in(folder, environ)
        spoiled |= {error: ", ".join(signals) for error, signals in pending.spoiled.items()}
        log = folder / f"relay.{os.uname().nodename}.log"
        why = f" (why: {log})" if log.exists() else ""
        for place, signals in pending.waiting.items():
            run = _run_of(folder, settings)
            yield f"{place} has not taken {', '.join(signals)}{why}; deliver them with: trainspan replay {run}"
    for error, named in spoiled.items():
        yield f"{error}; {named} stay in the run folder"


def _silent(_: str) -> None:
    return


def _say(text: str) -> None:
    print(f"trainspan: {text}", file=sys.stderr, flush=True)
