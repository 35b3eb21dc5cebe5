"""What is written for people is true: the reference pages, the commands they are told to type, the paths they see."""

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from trainspan.cli.main import COMMANDS

REPOSITORY = Path(__file__).resolve().parents[2]
PAGES = sorted([*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").rglob("*.md")])

CODE = re.compile(r"```(?:sh|bash|console)?\n(.*?)```|`([^`\n]+)`", re.DOTALL)
OUR_FILES = re.compile(r"(?<![\w/.-])((?:scripts|examples|benchmarks|docs|collector-config|\.ci)/[\w./-]*\w)")
OUR_COMMANDS = re.compile(r"(?:^|[|&;$] *|`)trainspan +([a-z]+)", re.MULTILINE)

# In a Python file, at the end of a line: nothing follows the exception.
EXCEPTION = re.compile(r"# (noqa(: [A-Z0-9, ]+)?|type: ignore(\[[\w,-]+\])?)\s*$")

# Directories of a developer's machine, and files beside the repository: nobody else has them.
MACHINE = re.compile(r"(?<![\w.-])/(?:work|farm|root|home|Users)/\w|\.\./shared")


def promised(text: str) -> tuple[set[str], set[str]]:
    """(files, `trainspan` commands) that the code in a Markdown page names."""
    code = "\n".join(block or inline for block, inline in CODE.findall(text))
    return set(OUR_FILES.findall(code)), set(OUR_COMMANDS.findall(code))


def shipped_files() -> list[Path]:
    """Every file that is or would be committed."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=REPOSITORY,
        capture_output=True,
        check=True,
        text=True,
    )
    paths = [REPOSITORY / name for name in listed.stdout.split("\0") if name]
    return [path for path in paths if path.is_file()]


def unexplained(text: str) -> list[str]:
    """The lines of a Python file that silence a check, and end there."""
    return [line.strip() for line in text.splitlines() if EXCEPTION.search(line)]


def machine_paths(text: str) -> list[str]:
    """The lines of `text` that name a place which only some machine has."""
    return [line.strip() for line in text.splitlines() if MACHINE.search(line)]


def test_reference_pages_are_fresh() -> None:
    """A reference page that lags behind the tables is worse than none."""
    command = [sys.executable, str(REPOSITORY / "scripts" / "docs"), "--check"]

    ran = subprocess.run(command, capture_output=True, text=True, check=False)

    assert ran.stdout == ""
    assert ran.returncode == 0


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(REPOSITORY).as_posix())
def test_what_a_page_tells_to_use_exists(page: Path) -> None:
    """The first command that fails is the last that a new user types."""
    files, commands = promised(page.read_text(encoding="utf-8"))
    modules = {command.name: command.module for command in COMMANDS}

    missing_files = [name for name in files if not (REPOSITORY / name).exists()]
    missing_commands = [name for name in commands if name not in modules or find_spec(modules[name]) is None]

    assert missing_files == []
    assert missing_commands == []


def test_readme_tells_what_to_run() -> None:
    """The page's check above would be just as content with a page that says nothing."""
    files, commands = promised((REPOSITORY / "README.md").read_text(encoding="utf-8"))

    assert {"scripts/demo", "scripts/test"} <= files
    assert {"run", "report"} <= commands


def test_promises_are_found_in_code_alone() -> None:
    """Prose may speak of `trainspan` and of files that are not ours; a command in a block is a promise."""
    block = "```bash\ntrainspan report | less\nscripts/demo --fast\n```"
    text = f"trainspan records.\n{block}\nSee `docs/names.md`, `/usr/scripts/x`.\n"

    files, commands = promised(text)

    assert files == {"scripts/demo", "docs/names.md"}
    assert commands == {"report"}


def test_lint_exceptions_carry_their_reason() -> None:
    """Whoever reads one has to know whether it may go."""
    found = {}

    for path in shipped_files():
        text = path.read_bytes().decode("utf-8", errors="replace")
        lines = unexplained(text) if path.suffix == ".py" or text.startswith("#!/usr/bin/env python3") else []
        if lines:
            found[path.relative_to(REPOSITORY).as_posix()] = lines

    assert found == {}


@pytest.mark.parametrize("exception", ["noqa: E402", "type: ignore[arg-type]"])
def test_exception_without_a_reason_is_found(exception: str) -> None:
    """A pattern that matches nothing would pass for ever."""
    lines = unexplained(f"import torch  # {exception}\nimport torch  # {exception}  # behind what it hooks\n")

    assert lines == [f"import torch  # {exception}"]


def test_no_shipped_file_names_a_machine() -> None:
    """A path of the machine it was written on helps nobody and tells strangers about it."""
    found = {}

    for path in shipped_files():
        lines = machine_paths(path.read_bytes().decode("utf-8", errors="replace"))
        if lines:
            found[path.relative_to(REPOSITORY).as_posix()] = lines

    assert found == {}


@pytest.mark.parametrize("folder", ["work", "root", "home"])
def test_machine_path_is_found(folder: str) -> None:
    """A pattern that matches nothing would pass for ever."""
    lines = machine_paths(f"first line\nread /{folder}/main/facts\n")

    assert lines == [f"read /{folder}/main/facts"]
