"""The relay as a process of its own: what a rank, the torchrun agent and `trainspan relay` start."""

import argparse
import os
import sys
from pathlib import Path

from trainspan.relay.process import serve


def main() -> int:
    """Serve a recording directory; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m trainspan.relay", description=__doc__)
    parser.add_argument("recording_dir", type=Path)
    parser.add_argument("--run-folder", type=Path)
    parser.add_argument("--lock-fd", type=int)
    arguments = parser.parse_args()
    return serve(arguments.recording_dir, arguments.run_folder, os.environ, arguments.lock_fd)


if __name__ == "__main__":
    sys.exit(main())
