"""`trainspan relay`: serves a directory of recordings by hand, where no rank may start a process of its own."""

import argparse
from collections.abc import Mapping
from pathlib import Path

from trainspan.cli.command import settings_of
from trainspan.errors import InputError
from trainspan.relay import process

EXAMPLES = """\
examples:
  trainspan relay /recordings                     a volume that a pod's ranks share:
                                                  give them TRAINSPAN_RELAY=off and
                                                  TRAINSPAN_RECORDING_DIR=/recordings
  trainspan relay --stay /recordings              in a DaemonSet
  trainspan relay ~/copied/recordings --run-folder ~/runs/llama-7

It serves every recording below DIR, of any run, and leaves when all of them are
closed and exported, or with --stay never. SIGTERM ends it once the ranks have
ended, after 20 s at most. Where to: the OTEL_* variables, else the run folder.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `trainspan relay`."""
    parser.add_argument("recording_dir", metavar="DIR", type=Path, help="the directory the ranks record in")
    parser.add_argument("--stay", action="store_true", help="wait for more recordings, until SIGTERM")
    parser.add_argument(
        "--run-folder", metavar="F", type=Path, help="where to write (default: each run's folder in TRAINSPAN_DIR)"
    )


def execute(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    """Serve; the exit code of the relay."""
    settings_of(environ)
    if not arguments.recording_dir.is_dir():
        raise InputError(f"{arguments.recording_dir} is not a directory; name the one that the ranks record in")
    return process.serve(arguments.recording_dir, arguments.run_folder, environ, stay=arguments.stay)
