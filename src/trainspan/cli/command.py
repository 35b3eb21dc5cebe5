"""What every command has in common: its row in the table, its exit codes, its settings."""

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from trainspan import settings
from trainspan.errors import SettingError
from trainspan.settings import Settings

OK: Final = 0
FAILED: Final = 1
"""It was understood, and could not be done, or found something wrong."""
USAGE: Final = 2
"""The command line, a variable, or what is to be read is not understood."""
NOT_EXECUTABLE: Final = 126
NOT_FOUND: Final = 127
KILLED_BY: Final = 128
"""Plus the signal's number: how a shell reports a child that a signal ended."""


class Command(NamedTuple):
    """One row of the command table.

    `module` is imported only when the command is asked for. `codes`: what its exit codes say, beside that 2 is a
    command line or variable that is not understood.
    """

    name: str
    summary: str
    module: str
    codes: str


class CommandModule(Protocol):
    """What a command's module has. `EXAMPLES` closes its `--help`."""

    EXAMPLES: str

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare its options."""

    def execute(self, arguments: Namespace, environ: Mapping[str, str]) -> int:
        """Do it; returns the exit code."""


def add_dir(parser: ArgumentParser) -> None:
    """The option that says where run folders are kept."""
    parser.add_argument("--dir", metavar="DIR", help="where run folders are kept (default: TRAINSPAN_DIR)")


def positive(text: str) -> int:
    """`text` as a whole number from 1, for argparse."""
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


positive.__name__ = "whole number from 1"  # argparse names it when it refuses a value


def seconds(text: str) -> float:
    """`text` as a number of seconds above 0, for argparse."""
    number = float(text)
    if not 0 < number < float("inf"):
        raise ValueError(text)
    return number


seconds.__name__ = "number of seconds"


def with_dir(environ: Mapping[str, str], given: str | None) -> dict[str, str]:
    """`environ` with TRAINSPAN_DIR as given on the command line, where a relative path is allowed."""
    return {**environ, "TRAINSPAN_DIR": str(Path(given).absolute())} if given else dict(environ)


def settings_of(environ: Mapping[str, str]) -> Settings:
    """The settings in force.

    Raises:
        SettingError: one line for every TRAINSPAN_* variable that is not understood.
    """
    found, problems = settings.load(environ)
    if problems:
        raise SettingError("\n".join(str(problem) for problem in problems))
    return found
