"""The import contract: who may import whom, read from every file's source, imports inside functions included."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src"


class Room(NamedTuple):
    """What the files of one room may import beside the standard library, and what of that library they may not."""

    ours: tuple[str, ...]
    others: tuple[str, ...] = ()
    never: tuple[str, ...] = ()


FLOOR = tuple(
    f"trainspan.{name}"
    for name in (
        "errors",
        "clock",
        "names",
        "role",
        "watch",
        "settings",
        "sampling",
        "placement",
        "otel_variables",
        "mpirun",
        "identity",
        "guard",
    )
)
"""The ground floor, lowest first: each file sees only those before it."""

PACKAGE = "trainspan"
ROOT = f"{PACKAGE}.__init__"
RECORDING = "trainspan.recording"
RECORD = "trainspan.record"
LAUNCH = "trainspan.launch"
RELAY = "trainspan.relay"
TIMELINE, GOODPUT, PROBES = f"{RELAY}.timeline", f"{RELAY}.goodput", f"{RELAY}.probes"
SIGNALS, OTLP = f"{RELAY}.signals", f"{RELAY}.otlp"
STARTUP = "trainspan.startup"
DISTRO = "trainspan.distro"
REPORT = "trainspan.report"
CLI = "trainspan.cli"
TESTING = "trainspan.testing"

# Law 1: in the rank no socket, no second process or queue, no random draw.
RANK_NEVER = (
    "asyncio",
    "concurrent",
    "http",
    "multiprocessing",
    "random",
    "secrets",
    "socket",
    "ssl",
    "urllib",
    "uuid",
)
# A room of pure functions: no clock, no file, no thread.
PURE_NEVER = (*RANK_NEVER, "io", "mmap", "os", "pathlib", "shutil", "subprocess", "tempfile", "threading", "time")

ROOMS = {
    **{module: Room(FLOOR[:level]) for level, module in enumerate(FLOOR)},
    # Two files that nobody loads before a script uses them.
    ROOT: Room((f"{PACKAGE}.api", f"{PACKAGE}.callbacks")),
    f"{PACKAGE}.api": Room((*FLOOR, STARTUP, RECORD), never=RANK_NEVER),
    f"{PACKAGE}.callbacks": Room((ROOT, f"{PACKAGE}.api"), never=RANK_NEVER),
    RECORDING: Room((*FLOOR, RECORDING), never=RANK_NEVER),
    # Starts the relay, by the name of its module: the one thing that whoever comes first has in common.
    LAUNCH: Room(FLOOR, never=RANK_NEVER),
    RECORD: Room((*FLOOR, RECORDING, LAUNCH, RECORD), others=("torch",), never=RANK_NEVER),
    # Joins Python's own start with RECORD.
    STARTUP: Room((*FLOOR, RECORD), never=RANK_NEVER),
    # Of the recording it knows what a mark means, which is a page of numbers.
    TIMELINE: Room((*FLOOR, f"{RECORDING}.layout", TIMELINE), never=PURE_NEVER),
    GOODPUT: Room((*FLOOR, TIMELINE, GOODPUT), never=PURE_NEVER),
    # The one file of its room that touches a disk.
    f"{GOODPUT}.ledger": Room((*FLOOR, TIMELINE, GOODPUT), never=(*RANK_NEVER, "threading", "time")),
    # The drivers' own modules, only where a driver is asked. Of the recording: where this user's files can be private.
    PROBES: Room((*FLOOR, f"{RECORDING}.places", PROBES), others=("amdsmi", "psutil", "pynvml")),
    SIGNALS: Room((*FLOOR, ROOT, TIMELINE, GOODPUT, f"{PROBES}.probe", SIGNALS), others=("opentelemetry",)),
    OTLP: Room((*FLOOR, ROOT, OTLP), others=("google.protobuf", "grpc", "opentelemetry", "requests")),
    RELAY: Room((*FLOOR, ROOT, RECORDING, LAUNCH, RELAY)),
    # In a rank whose user has asked for the SDK there: what the relay speaks with, and nothing else of the relay.
    DISTRO: Room(
        (*FLOOR, STARTUP, f"{RECORD}.recorder", f"{RECORDING}.attempts", f"{RECORDING}.places", OTLP, DISTRO),
        others=("opentelemetry",),
    ),
    REPORT: Room((*FLOOR, ROOT, RECORDING, TIMELINE, GOODPUT, REPORT), others=("rich", "tensorboard")),
    CLI: Room(("trainspan",), others=("rich",)),
    "trainspan.__main__": Room((CLI,)),
    TESTING: Room((*FLOOR, ROOT, RECORDING, RELAY, TESTING), others=("google.protobuf", "grpc", "opentelemetry")),
}
"""A file belongs to the row with the longest name that its own begins with."""


def belongs(module: str, prefixes: tuple[str, ...]) -> bool:
    """Whether `module` is one of `prefixes` or lies below one."""
    return any(module == prefix or module.startswith(f"{prefix}.") for prefix in prefixes)


def module_of(path: Path) -> str:
    """The dotted name of a source file; a package's `__init__.py` has the package's, save for the root."""
    name = ".".join(path.relative_to(SOURCE).with_suffix("").parts)
    return name if name == ROOT else name.removesuffix(".__init__")


MODULES = {module_of(path): path for path in sorted(SOURCE.rglob("*.py"))}


def imported(source: str) -> Iterator[tuple[int, str]]:
    """(line, module) of every import in `source`: statements, and calls that name the module in plain text."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, ROOT if alias.name == "trainspan" else alias.name
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            for alias in node.names:
                below = f"{base}.{alias.name}"
                yield node.lineno, below if below in MODULES else ROOT if base == "trainspan" else base
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            function = ast.unparse(node.func).rpartition(".")[2]
            if function in {"__import__", "import_module"}:
                yield node.lineno, str(node.args[0].value)


def violations(module: str, source: str) -> list[str]:
    """What `source` would import against the table if it stood in `module`."""
    row = max((name for name in ROOMS if belongs(module, (name,))), key=len, default=None)
    if row is None:
        return [f"{module} is in no room: give it a row in the table"]
    room = ROOMS[row]
    broken = []
    for line, name in imported(source):
        if belongs(name, ("trainspan",)):
            allowed = belongs(name, room.ours)
        elif name.partition(".")[0] in sys.stdlib_module_names:
            allowed = not belongs(name, room.never)
        else:
            allowed = belongs(name, room.others)
        if not allowed:
            broken.append(f"{module}:{line} imports {name}, which {row} may not")
    return broken


@pytest.mark.parametrize("module", MODULES)
def test_file_keeps_to_its_room(module: str) -> None:
    """A room that reaches into another cannot be changed, tested or left out alone."""
    source = MODULES[module].read_text(encoding="utf-8")

    broken = violations(module, source)

    assert broken == []


def test_imports_make_no_loop() -> None:
    """Two files that need each other are one file; an import hidden in a function only hides that."""
    needs = {
        module: {name for _, name in imported(path.read_text(encoding="utf-8")) if name in MODULES and name != module}
        for module, path in MODULES.items()
    }

    loop: list[str] = []
    try:
        TopologicalSorter(needs).prepare()
    except CycleError as error:
        loop = error.args[1]

    assert loop == []


@pytest.mark.parametrize("loaded", ["torch", "opentelemetry", "rich", "numpy"])
def test_importing_trainspan_loads_nothing_heavy(loaded: str) -> None:
    """A script that imports trainspan for one call must not pay seconds for it."""
    command = f"import sys, trainspan; sys.exit({loaded!r} in sys.modules)"

    ran = subprocess.run([sys.executable, "-c", command], check=False)

    assert ran.returncode == 0


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("trainspan.errors", "from trainspan.guard import warn_once"),
        ("trainspan.settings", "from trainspan import identity"),
        ("trainspan.identity", "import rich"),
        ("trainspan.recording.writer", "import torch"),
        ("trainspan.recording.writer", "from trainspan.record.marker import Marker"),
        ("trainspan.recording.writer", "import random"),
        ("trainspan.record.hooks.forward", "def hook():\n    import opentelemetry.trace"),
        ("trainspan.record.marker", "from trainspan.relay.timeline.records import RankStep"),
        ("trainspan.record.marker", "import urllib.request"),
        ("trainspan.record.marker", "from trainspan import startup"),
        ("trainspan.launch", "from trainspan.relay import process"),
        ("trainspan.relay.timeline.steps", "import os"),
        ("trainspan.relay.timeline.steps", "from trainspan.recording import reader"),
        ("trainspan.relay.timeline.steps", "from opentelemetry.sdk.trace import ReadableSpan"),
        ("trainspan.relay.goodput.account", "from time import monotonic_ns"),
        ("trainspan.relay.goodput.ledger", "from time import monotonic_ns"),
        ("trainspan.relay.pipeline", "import importlib\nimportlib.import_module('opentelemetry.sdk')"),
        ("trainspan.relay.pipeline", "__import__('torch')"),
        ("trainspan.relay.tail", "from trainspan.record import marker"),
        ("trainspan.relay.otlp.exporters", "from trainspan.report import render"),
        ("trainspan.relay.signals.spans", "from trainspan.relay import pipeline"),
        ("trainspan.distro.steps", "import torch"),
        ("trainspan.distro.steps", "from trainspan.relay import pipeline"),
        ("trainspan.record.recorder", "from trainspan.distro import steps"),
        ("trainspan.report.load", "import opentelemetry"),
        ("trainspan.cli.report", "import torch"),
        ("trainspan.testing.clock", "from trainspan.record import marker"),
        ("trainspan.nowhere", "import os"),
        ("trainspan.recording.writer", "from . import layout"),
    ],
)
def test_violation_is_found(module: str, source: str) -> None:
    """A contract that lets everything pass would look just as green."""
    broken = violations(module, source)

    assert len(broken) == 1
    assert broken[0].startswith(module)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("trainspan.identity", "from trainspan.settings import Settings"),
        ("trainspan.recording.reader", "from trainspan.recording import layout"),
        ("trainspan.record.hooks.forward", "import torch.nn\nfrom trainspan.recording.layout import ENTER"),
        ("trainspan.relay.otlp.resource", "from trainspan import __version__\nimport opentelemetry.sdk.resources"),
        ("trainspan.relay.goodput.account", "from trainspan.relay.timeline.records import RankStep"),
        ("trainspan.relay.pipeline", "from trainspan.relay.otlp import exporters"),
        ("trainspan.cli.report", "from rich.console import Console"),
    ],
)
def test_what_the_table_allows_passes(module: str, source: str) -> None:
    """A contract that refuses everything would be switched off soon."""
    broken = violations(module, source)

    assert broken == []
