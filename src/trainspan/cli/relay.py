"""`trainspan relay`: serves a directory of recordings by hand, where no rank may start a process of its own."""

import argparse
import math
from collections.abc import Mapping
from pathlib import Path

from trainspan.cli.command import seconds, settings_of
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
closed and exported, or with --stay never. It may start before the training: it
waits for the first recording, 60 s unless --wait says otherwise. SIGTERM ends it
once the ranks have ended, after 20 s at most. Where to: the OTEL_* variables,
else the run folder.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `trainspan relay`."""
    parser.add_argument("recording_dir", metavar="DIR", type=Path, help="the directory the ranks record in")
    until = parser.add_mutually_exclusive_group()
    until.add_argument("--stay", action="store_true", help="wait for recordings, and for more of them, until SIGTERM")
    until.add_argument(
        "--wait",
        metavar="S",
        type=seconds,
        default=process.FIRST_RECORDING_S,
        help=f"seconds to wait for the first recording (default: {process.FIRST_RECORDING_S:g})",
    )
    parser.add_argument(
        "--run-folder", metavar="F", type=Path, help="where to write (default: each run's folder in TRAINSPAN_DIR)"
    )


def execute(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    """Serve; the exit code of the relay."""
    settings_of(environ)
    if not arguments.recording_dir.is_dir():
        raise InputError(f"{arguments.recording_dir} is not a directory; name the one that the ranks record in")
    wait_s = math.inf if arguments.stay else arguments.wait
    return process.serve(arguments.recording_dir, arguments.run_folder, environ, by_hand_s=wait_s)
