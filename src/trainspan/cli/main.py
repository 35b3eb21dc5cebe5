"""The `trainspan` command: finds the command asked for, runs it, turns its errors into one line and an exit code."""

import argparse
import difflib
import importlib
import io
import os
import sys
from collections.abc import Sequence
from typing import cast

import trainspan
from trainspan.cli.command import FAILED, KILLED_BY, OK, USAGE, Command, CommandModule
from trainspan.errors import SettingError, TrainspanError

COMMANDS = (
    Command("run", "Start training, recorded; ends with where to look.", "trainspan.cli.run"),
    Command("report", "Show a run: phases, slow steps, how each rank ended.", "trainspan.cli.report"),
    Command("goodput", "Where the time went: productive, and every cause of lost time.", "trainspan.cli.goodput"),
    Command("demo", "Train the shipped example on this machine and show its report.", "trainspan.cli.demo"),
    Command("doctor", "Say what works here, what would go where, and what is missing.", "trainspan.cli.doctor"),
    Command("replay", "Deliver what is on disk to the OTLP endpoint, exactly once.", "trainspan.cli.replay"),
    Command("relay", "Export recordings by hand: in a sidecar, a DaemonSet, on a login node.", "trainspan.cli.relay"),
    Command("names", "List every span, metric, attribute and setting.", "trainspan.cli.names"),
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

`trainspan COMMAND --help` explains a command. Exit codes: 0 done, 1 it failed,
2 the command line or a TRAINSPAN_* variable is not understood.
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
        epilog=module.EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    module.add_arguments(parser)
    try:
        code = module.execute(parser.parse_args(words), os.environ)
        sys.stdout.flush()
    except SystemExit as left:  # argparse has said what it has to say
        return left.code if isinstance(left.code, int) else USAGE
    except SettingError as error:
        _say(command, error)
        return USAGE
    except TrainspanError as error:
        _say(command, error)
        return FAILED
    except BrokenPipeError:
        # The reader (`| head`) has seen enough; without this Python complains again when it closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except KeyboardInterrupt:
        return KILLED_BY + 2
    return code


def _say(command: Command, error: TrainspanError) -> None:
    for line in str(error).splitlines():
        print(f"trainspan {command.name}: {line}", file=sys.stderr)


def _overview() -> str:
    return OVERVIEW.format(commands="\n".join(f"  {row.name:8} {row.summary}" for row in COMMANDS))


def _unknown(word: str) -> str:
    names = [command.name for command in COMMANDS]
    close = difflib.get_close_matches(word, names, n=1)
    return f"no command {word!r}; " + (f"did you mean {close[0]!r}?" if close else f"there are: {', '.join(names)}")


if __name__ == "__main__":
    sys.exit(main())
