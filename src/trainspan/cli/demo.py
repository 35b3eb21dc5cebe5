"""`trainspan demo`: trains the shipped example on this machine, under torchrun, and shows what was seen of it."""

import argparse
import os
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import trainspan
from trainspan import identity, names
from trainspan.cli.command import FAILED, add_dir, positive, settings_of, with_dir
from trainspan.cli.replay import fold
from trainspan.cli.report import report_of
from trainspan.cli.run import run_recorded
from trainspan.errors import InputError, TrainspanError
from trainspan.relay.otlp.destinations import destination, destinations
from trainspan.relay.otlp.pending import pending_in
from trainspan.relay.otlp.resource import service_name
from trainspan.report.render import console_for, render
from trainspan.sampling import sampling_from

EXAMPLES = """\
examples:
  trainspan demo
  trainspan demo --ranks 4 --steps 60
  OTEL_EXPORTER_OTLP_ENDPOINT=http://localhost:4318 trainspan demo

It trains a small transformer on the standard library's own sources, with
gradient accumulation, clipping and a DataLoader with workers. The script does
not mention trainspan. About a minute on two cores.
"""

SCRIPT = "char_transformer.py"

JAEGER = "docker run --rm -p 16686:16686 -p 4318:4318 jaegertracing/jaeger:2.21.0"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `trainspan demo`."""
    parser.add_argument("--ranks", type=positive, metavar="N", default=2, help="processes to train with (default: 2)")
    parser.add_argument("--steps", type=positive, metavar="N", default=120, help="optimizer steps (default: 120)")
    add_dir(parser)


def execute(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    """Train, then report; the exit code of the training."""
    environ = with_dir(environ, arguments.dir)
    in_force = settings_of(environ)
    destinations(environ)  # what is wrong there is said before a minute of training
    if find_spec("torch") is None:
        raise TrainspanError(f"torch is not installed in {sys.executable}; get it with: pip install torch")
    environ.setdefault("TRAINSPAN_RUN_ID", f"demo-{identity.new_run_id()}")
    environ.setdefault("OMP_NUM_THREADS", "1")  # what torchrun would set, with a warning
    command = command_for(arguments.ranks, arguments.steps)
    print(f"$ {' '.join(['torchrun', *command[3:]])}", flush=True)
    code, folders = run_recorded(command, environ)
    if not folders:
        return code or FAILED
    folder = folders[-1]
    print()
    if in_force.relay == "off":
        fold(folder, environ)
    try:
        report = report_of(folder)
    except InputError as error:
        print(f"trainspan demo: {error}", file=sys.stderr)
        return code or FAILED
    console_for().print(render(report))
    print(f"\n{how_to_look(folder, environ)}")
    return code


def command_for(ranks: int, steps: int) -> list[str]:
    """The command that trains the example: torchrun of this very Python, on a port that is free."""
    where = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", *where, "--nproc-per-node", str(ranks)]
    return [*torchrun, str(find_script()), "--steps", str(steps)]


def find_script() -> Path:
    """The example: in the wheel beside the package, in a checkout at its root."""
    package = Path(trainspan.__file__).parent
    for folder in (package / "examples", package.parents[1] / "examples"):
        if (folder / SCRIPT).is_file():
            return folder / SCRIPT
    raise TrainspanError(f"{SCRIPT} is missing from {package}; install trainspan again")


def how_to_look(folder: Path, environ: Mapping[str, str]) -> str:
    """Where the traces of the run are by now, and how to see them; to be asked once its relay has left.

    Raises:
        SettingError: a variable has a value that is not understood.
    """
    traces = destination("traces", environ)
    if traces.kind == "none":
        return "No traces: they are switched off (OTEL_TRACES_EXPORTER, OTEL_SDK_DISABLED)."
    if sampling_from(environ)[0].off:
        return "No traces: no step is sampled (OTEL_TRACES_SAMPLER)."
    pending = pending_in(folder, environ)
    log = folder / f"relay.{os.uname().nodename}.log"
    if "traces" in pending.waiting.get(traces.place, ()):
        seen = f"The traces wait on disk; deliver them to {traces.place} with: trainspan replay {folder}"
    elif "traces" in pending.in_use:
        seen = f"The traces are on their way to {traces.place}: the relay has not finished."
    elif traces.kind == "console":
        seen = f"The traces are in {log}." if log.exists() else "The traces are above."
    elif traces.kind == "otlp":
        seen = f"The traces went to {traces.place}."
    else:
        seen = f"""\
To see the traces in Jaeger, start one:
  {JAEGER}
and upload {folder / "traces.jsonl"} at http://localhost:16686, or send them there:
  OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=http://localhost:4318/v1/traces trainspan replay {folder}"""
    service = service_name(environ, {})
    return f"{seen}\nService {service}, operation {names.SPAN_STEP}: one trace for each sampled step, every rank in it."
