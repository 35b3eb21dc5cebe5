"""The `trainspan` command: finds the command asked for, runs it, turns its errors into one line and an exit code."""

import argparse
import difflib
import importlib
import io
import os
import sys
import textwrap
from collections.abc import Sequence
from typing import cast

import trainspan
from trainspan.cli.command import FAILED, KILLED_BY, OK, USAGE, Command, CommandModule
from trainspan.errors import InputError, SettingError, TrainspanError

COMMANDS = (
    Command(
        "run",
        "Start training, recorded; ends with where to look.",
        "trainspan.cli.run",
        "the command's own; 128+n when signal n ended it; 126, 127: it cannot be started",
    ),
    Command(
        "report",
        "Show a run: phases, slow steps, how each rank ended.",
        "trainspan.cli.report",
        "0 shown, whatever became of the run; 2 no such run, or it cannot be read",
    ),
    Command(
        "goodput",
        "Where the time went: productive, and every cause of lost time.",
        "trainspan.cli.goodput",
        "0 answered; 1 a file cannot be written; 2 no such run or log, or it cannot be read",
    ),
    Command(
        "demo",
        "Train the shipped example on this machine and show its report.",
        "trainspan.cli.demo",
        "the training's own; 1 torch is missing, or nothing was recorded",
    ),
    Command(
        "doctor",
        "Say what works here, what would go where, and what is missing.",
        "trainspan.cli.doctor",
        "0 everything is in place; 1 something is in the way",
    ),
    Command(
        "replay",
        "Deliver what is on disk to the OTLP endpoint, exactly once.",
        "trainspan.cli.replay",
        "0 all of it is delivered; 1 some of it stays; 2 no such run, or no endpoint",
    ),
    Command(
        "relay",
        "Export recordings by hand: in a sidecar, a DaemonSet, on a login node.",
        "trainspan.cli.relay",
        "0 delivered, or safe on disk; 1 another relay serves DIR, or no recording came; 2 there is no such DIR",
    ),
    Command(
        "names",
        "List every span, metric, attribute and setting.",
        "trainspan.cli.names",
        "0 listed",
    ),
)

OVERVIEW = """\
usage: trainspan COMMAND [options]

OpenTelemetry for PyTorch training: step traces of every rank, phases and time
accounting from an untouched script.

{commands}

First steps:
  trainspan doctor                                   is everything in place?
  trainspan run -- torchrun --nproc-per-node 2 train.py
  trainspan report                                   the newest run

`trainspan COMMAND --help` explains a command. Exit codes: 0 done; 1 it could not
be done, or found something wrong; 2 the command line, a variable or what is to be
read is not understood. `run` and `demo` end with the code of what they ran. Errors
go to stderr; with --json, stdout has one JSON object or nothing.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code of the command line `argv` (default: this process's)."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without Unicode gets `?` for `µ`, not a traceback
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ("-h", "--help", "help"):
        print(_overview(), end="", file=sys.stdout if words else sys.stderr)
        return OK if words else USAGE
    if words[0] in ("-V", "--version"):
        print(f"trainspan {trainspan.__version__}")
        return OK
    command = next((command for command in COMMANDS if command.name == words[0]), None)
    if command is None:
        print(f"trainspan: {_unknown(words[0])}", file=sys.stderr)
        return USAGE
    return _run(command, words[1:])


def _run(command: Command, words: list[str]) -> int:
    # gRPC's own core writes a line for each try that fails; what matters of it we say ourselves.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    module = cast("CommandModule", importlib.import_module(command.module))
    parser = argparse.ArgumentParser(
        prog=f"trainspan {command.name}",
        description=command.summary,
        epilog=f"{module.EXAMPLES}\n{_exit_codes(command)}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    module.add_arguments(parser)
    try:
        code = module.execute(parser.parse_args(words), os.environ)
        sys.stdout.flush()
    except SystemExit as left:  # argparse has said what it has to say
        return left.code if isinstance(left.code, int) else USAGE
    except (SettingError, InputError) as error:
        _say(command, str(error))
        return USAGE
    except TrainspanError as error:
        _say(command, str(error))
        return FAILED
    except BrokenPipeError:
        # The reader (`| head`) has seen enough; without this Python complains again when it closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except OSError as error:  # a disk that is full, a folder of somebody else's
        _say(command, f"{error.filename}: {error.strerror}" if error.filename else str(error))
        return FAILED
    except KeyboardInterrupt:
        return KILLED_BY + 2
    return code


def _exit_codes(command: Command) -> str:
    text = f"exit codes: {command.codes}; 2 also a command line or variable that is not understood"
    return textwrap.fill(text, 80, subsequent_indent="  ")


def _say(command: Command, error: str) -> None:
    for line in error.splitlines():
        print(f"trainspan {command.name}: {line}", file=sys.stderr)


def _overview() -> str:
    return OVERVIEW.format(commands="\n".join(f"  {row.name:8} {row.summary}" for row in COMMANDS))


def _unknown(word: str) -> str:
    names = [command.name for command in COMMANDS]
    close = difflib.get_close_matches(word, names, n=1)
    return f"no command {word!r}; " + (f"did you mean {close[0]!r}?" if close else f"there are: {', '.join(names)}")


if __name__ == "__main__":
    sys.exit(main())
