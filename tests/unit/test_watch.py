"""The import watch, with modules that import each other: what calls back is complete."""

import importlib
import sys
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import pytest

from trainspan.watch import ImportWatch

TORCH_FIRST = "import watched_torch\n"
Write = Callable[..., None]


@pytest.fixture
def watch() -> Iterator[ImportWatch]:
    """A watch in front of Python's own finders."""
    fresh = ImportWatch()
    sys.meta_path.insert(0, fresh)
    yield fresh
    sys.meta_path.remove(fresh)


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Writes modules that can be imported: name -> text."""
    monkeypatch.syspath_prepend(tmp_path)
    before = {*sys.modules}

    def write(**texts: str) -> None:
        for name, text in texts.items():
            (tmp_path / f"{name}.py").write_text(text)
        importlib.invalidate_caches()

    yield write
    for name in {*sys.modules} - before:
        if name.startswith("watched_"):
            del sys.modules[name]


def follow(watch: ImportWatch, seen: list[object], times: int = 1) -> None:
    """As the hooks do once torch is there: from now on `watched_framework` is watched, for what it defines."""

    def torch_imported(*_: object) -> None:
        for _time in range(times):
            watch.add("watched_framework", note(seen))

    watch.add("watched_torch", torch_imported)


def note(seen: list[object]) -> Callable[[ModuleType, int], None]:
    """A callback that appends what the module has."""
    return lambda module, _: seen.append(getattr(module, "Fabric", "nothing yet"))


def test_framework_that_imports_torch_first_is_followed_once_it_is_complete(watch: ImportWatch, write: Write) -> None:
    """`from accelerate import Accelerator` before `import torch`: when torch is there, the framework is half made."""
    seen: list[object] = []
    write(watched_torch="", watched_part="", watched_framework=f"{TORCH_FIRST}import watched_part\nFabric = 1")
    follow(watch, seen)

    framework = importlib.import_module("watched_framework")
    importlib.reload(framework)

    assert seen == [1]
    assert type(framework.__spec__) is ModuleSpec


def test_two_may_wait_for_one_framework(watch: ImportWatch, write: Write) -> None:
    """Its steps and its model are followed by different hooks."""
    seen: list[object] = []
    write(watched_torch="", watched_framework=f"{TORCH_FIRST}Fabric = 1")
    follow(watch, seen, times=2)

    framework = importlib.import_module("watched_framework")

    assert seen == [1, 1]
    assert type(framework.__spec__) is ModuleSpec


def test_watch_that_is_cleared_meanwhile_calls_nobody(watch: ImportWatch, write: Write) -> None:
    """Instrumentation may be taken back by what is being imported; then nothing is to be placed any more."""
    seen: list[object] = []
    write(watched_torch="", watched_part="", watched_framework=f"{TORCH_FIRST}import watched_part\nFabric = 1")
    follow(watch, seen)
    watch.add("watched_part", lambda *_: watch.clear())

    framework = importlib.import_module("watched_framework")

    assert seen == []
    assert type(framework.__spec__) is ModuleSpec


def test_framework_whose_import_failed_may_be_tried_again(watch: ImportWatch, write: Write) -> None:
    """A script does without, installs what was missing, or waits for a driver."""
    seen: list[object] = []
    write(watched_torch="", watched_framework=f"{TORCH_FIRST}raise RuntimeError('no driver')")
    follow(watch, seen)
    with pytest.raises(RuntimeError, match="no driver"):
        importlib.import_module("watched_framework")

    write(watched_framework="Fabric = 'made at last'  # of another length than before")
    importlib.import_module("watched_framework")

    assert seen == ["made at last"]


def test_module_that_is_complete_is_called_for_at_once(watch: ImportWatch, write: Write) -> None:
    """A notebook has imported everything before."""
    seen: list[object] = []
    write(watched_framework="Fabric = 1")
    importlib.import_module("watched_framework")

    watch.add("watched_framework", note(seen))

    assert seen == [1]
