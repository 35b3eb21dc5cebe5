"""The start-up hook as it is shipped: built into a wheel, installed in an environment of its own, run by Python."""

import json
import os
import subprocess
import sys
import sysconfig
import zipfile
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import pytest

# Printed by a process about itself, at its end.
TELL = """
import json, sys
print(json.dumps({
    "ours": sorted(name for name in sys.modules if name.partition(".")[0] == "trainspan"),
    "foreign": sorted({"torch", "opentelemetry", "socket", "threading"} & set(sys.modules)),
    "watching": any(type(finder).__name__ == "ImportWatch" for finder in sys.meta_path),
}))
"""
TRACKER = "'from multiprocessing.resource_tracker import main'\n"
SPAWN = "'from multiprocessing.spawn import spawn_main'\n"


class Told(NamedTuple):
    """What a process told about itself."""

    ours: list[str]
    foreign: list[str]
    watching: bool


class Installation:
    """An environment that holds the wheel and nothing else."""

    def __init__(self, folder: Path, wheel: Path):
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
        self.python = folder / "bin" / "python"
        self.packages = next(folder.glob("lib/python3*/site-packages"))
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(self.packages)

    def run(self, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """What a Python of this environment prints, with these variables beside the usual ones."""
        command = [str(self.python), *arguments]
        return subprocess.run(command, env={**os.environ, **environ}, capture_output=True, text=True, check=False)

    def ask(self, *arguments: str, **environ: str) -> Told:
        """What a process tells about itself; its program must end with `TELL`."""
        ran = self.run(*arguments, **environ)
        assert (ran.stderr, ran.returncode) == ("", 0)
        return Told(**json.loads(ran.stdout))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory, repository: Path) -> Path:
    """The wheel, built from this checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(command, cwd=repository, capture_output=True, check=True)
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Installation:
    """An environment with the wheel."""
    return Installation(tmp_path_factory.mktemp("environment") / "venv", wheel)


def test_wheel_holds_hook_types_and_license(wheel: Path) -> None:
    """A hook that is left out of the wheel fails nowhere: nothing is recorded, and nobody is told."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()

    assert {"trainspan.pth", "trainspan.start", "trainspan/py.typed", "trainspan/startup.py"} <= set(names)
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {
        "trainspan",
        "trainspan.pth",
        "trainspan.start",
    }


def test_both_hooks_start_the_same(repository: Path) -> None:
    """Python up to 3.17 reads the one, from 3.15 on the other: what they start must not drift apart."""
    module, _, function = (repository / "src" / "trainspan.start").read_text().strip().partition(":")

    line = (repository / "src" / "trainspan.pth").read_text()

    assert callable(getattr(import_module(module), function))
    assert f'__import__("{module}")' in line
    assert f".{function}()" in line
    assert line.count("\n") == 1


def test_editable_install_has_the_hook(repository: Path) -> None:
    """Whoever works on trainspan must see what its users see."""
    installed = Path(sysconfig.get_path("purelib")) / "trainspan.pth"

    line = installed.read_text()

    assert line == (repository / "src" / "trainspan.pth").read_text()


@pytest.mark.parametrize("environ", [{}, {"TRAINSPAN_ENABLED": ""}], ids=["unset", "empty"])
def test_nothing_is_loaded_unless_asked_for(installation: Installation, environ: dict[str, str]) -> None:
    """The hook runs in every Python process of the machine, most of which have nothing to do with us."""
    told = installation.ask("-c", TELL, **environ)

    assert told.ours == []
    assert not told.watching


@pytest.mark.parametrize("value", ["0", "false", "No", "OFF", " 0 "])
def test_switched_off_watches_nothing(installation: Installation, value: str) -> None:
    """Who writes 0 means off."""
    told = installation.ask("-c", TELL, TRAINSPAN_ENABLED=value)

    assert not told.watching


@pytest.mark.parametrize(
    "flags", [(), ("-I",), ("-E", "-s"), ("-O",)], ids=["plain", "isolated", "no-env", "optimized"]
)
def test_rank_watches_for_torch_and_loads_little(installation: Installation, flags: tuple[str, ...]) -> None:
    """Any script may turn out to train; until it imports torch it pays for three small modules and no more."""
    told = installation.ask(*flags, "-c", TELL, TRAINSPAN_ENABLED="1")

    assert told.watching
    assert told.foreign == []
    assert told.ours == ["trainspan", "trainspan.role", "trainspan.startup", "trainspan.watch"]


def test_spawned_child_watches_for_torch(installation: Installation) -> None:
    """A rank of `mp.spawn` looks like a DataLoader worker until it trains."""
    told = installation.ask("-c", SPAWN + TELL, TRAINSPAN_ENABLED="1", RANK="0")

    assert told.watching
    assert told.foreign == []


def test_agent_loads_neither_torch_nor_opentelemetry(installation: Installation, tmp_path: Path) -> None:
    """The launcher imports torch itself, when it wants to."""
    launcher = tmp_path / "torchrun"
    launcher.write_text(TELL)

    told = installation.ask(str(launcher), TRAINSPAN_ENABLED="1")

    assert told.watching
    assert told.foreign == []


def test_helper_is_left_alone(installation: Installation) -> None:
    """torch.compile and multiprocessing start dozens of helpers: what each pays, all pay."""
    told = installation.ask("-c", TRACKER + TELL, TRAINSPAN_ENABLED="1", RANK="0")

    assert not told.watching
    assert told.foreign == []
    assert [name for name in told.ours if name.startswith("trainspan.record")] == []


def test_starting_twice_watches_once(installation: Installation) -> None:
    """Python 3.15 to 3.17 read both files: the second start must find the first."""
    program = (
        "import sys; from trainspan.startup import start; start(); start();"
        "print(sum(type(finder).__name__ == 'ImportWatch' for finder in sys.meta_path))"
    )

    ran = installation.run("-c", program, TRAINSPAN_ENABLED="1")

    assert (ran.stdout, ran.stderr) == ("1\n", "")


@pytest.mark.parametrize("argv", ["[]", "['']", "['python', '-X']", "['python', '-m']", "['python', '\\udcff']"])
def test_odd_command_line_raises_nothing(installation: Installation, argv: str) -> None:
    """An embedded interpreter has the command line its host gives it, or none."""
    program = f"import sys; sys.orig_argv = {argv}; from trainspan.startup import start; start(); print('trained')"

    ran = installation.run("-c", f"import os; os.environ['TRAINSPAN_ENABLED'] = '1'; {program}")

    assert (ran.stdout, ran.stderr, ran.returncode) == ("trained\n", "", 0)


def test_other_imports_go_on_as_before(installation: Installation, tmp_path: Path) -> None:
    """The watch stands in front of all finders: what it does not wait for it must not touch."""
    (tmp_path / "mine.py").write_text("value = 42\n")
    program = (
        "import mine, json.tool\ntry:\n    import not_there\nexcept ModuleNotFoundError as e:\n    print(mine.value, e)"
    )

    ran = installation.run("-c", program, TRAINSPAN_ENABLED="1", PYTHONPATH=str(tmp_path))

    assert (ran.stdout, ran.stderr) == ("42 No module named 'not_there'\n", "")


def test_missing_torch_is_the_scripts_own_affair(installation: Installation) -> None:
    """A script that can do without torch asks for it and goes on: the watch must not change what it is told."""
    program = "try:\n    import torch\nexcept ModuleNotFoundError as e:\n    print(e)"

    ran = installation.run("-c", program, TRAINSPAN_ENABLED="1")

    assert (ran.stdout, ran.stderr) == ("No module named 'torch'\n", "")


def test_torch_that_does_not_fit_is_warned_about_and_works(installation: Installation, tmp_path: Path) -> None:
    """A torch without anything that we hook must still be the torch that the script asked for."""
    (tmp_path / "torch.py").write_text("value = 42\n")
    program = "import torch; print(torch.value, torch.__loader__.__class__.__name__)"

    ran = installation.run("-c", program, TRAINSPAN_ENABLED="1", PYTHONPATH=str(tmp_path))

    assert (ran.stdout, ran.returncode) == ("42 SourceFileLoader\n", 0)
    assert ran.stderr
    assert all(line.startswith("trainspan: ") for line in ran.stderr.splitlines())


def test_torch_that_fails_to_load_fails_the_same_way(installation: Installation, tmp_path: Path) -> None:
    """A broken torch is the user's to mend: the error must be torch's, and its traceback free of surprises."""
    (tmp_path / "torch.py").write_text("raise OSError('libcudart.so.13: cannot open shared object file')\n")
    program = "try:\n    import torch\nexcept OSError as e:\n    print(e)"

    ran = installation.run("-c", program, TRAINSPAN_ENABLED="1", PYTHONPATH=str(tmp_path))

    assert (ran.stdout, ran.stderr) == ("libcudart.so.13: cannot open shared object file\n", "")


@pytest.mark.parametrize(
    "before",
    [
        "import importlib.util; importlib.util.find_spec('torch')",
        "import importlib.util; importlib.util.find_spec('torch'); importlib.util.find_spec('torch')",
        "import pkgutil; [pkgutil.iter_modules()]",
    ],
    ids=["asked-for", "asked-for-twice", "listed"],
)
def test_looking_for_torch_is_not_importing_it(installation: Installation, tmp_path: Path, before: str) -> None:
    """Transformers asks whether torch is there before it imports it: that must not use up the watch."""
    (tmp_path / "torch.py").write_text("value = 42\n")
    program = f"{before}; import sys; print('trainspan.record' in sys.modules); import torch; print(torch.value)"

    ran = installation.run("-c", program, TRAINSPAN_ENABLED="1", PYTHONPATH=str(tmp_path))

    assert ran.stdout == "False\n42\n"
    assert ran.stderr


def test_second_try_to_import_torch_is_watched_too(installation: Installation, tmp_path: Path) -> None:
    """A first try may fail for want of a library that the script then loads by hand."""
    (tmp_path / "torch.py").write_text(
        "import os\nif os.environ.pop('BROKEN', None):\n    raise OSError('no library')\n"
    )
    program = "try:\n    import torch\nexcept OSError:\n    import torch\nprint('trained')"

    ran = installation.run("-c", program, TRAINSPAN_ENABLED="1", PYTHONPATH=str(tmp_path), BROKEN="1")

    assert ran.stdout == "trained\n"
    assert ran.stderr


def test_watch_calls_once_and_leaves_the_loader_as_it_was(installation: Installation, tmp_path: Path) -> None:
    """Hooks put in twice would count every phase twice."""
    (tmp_path / "mine.py").write_text("")
    program = """
import sys, importlib
from trainspan.watch import ImportWatch
watch = ImportWatch()
sys.meta_path.insert(0, watch)
watch.add("mine", lambda module, started_ns: print(module.__name__, type(started_ns).__name__))
import mine
print(vars(mine.__loader__).keys() & {"exec_module"})
importlib.reload(mine)
del sys.modules["mine"]
import mine
"""

    ran = installation.run("-c", program, PYTHONPATH=str(tmp_path))

    assert (ran.stdout, ran.stderr) == ("mine int\nset()\n", "")


def test_watch_for_what_is_there_calls_at_once(installation: Installation) -> None:
    """`trainspan` may be imported by hand after torch: the hooks must not wait for an import that never comes."""
    program = (
        "import json; from trainspan.watch import ImportWatch; watch = ImportWatch();"
        "watch.add('json', lambda module, started_ns: print(module is json))"
    )

    ran = installation.run("-c", program)

    assert (ran.stdout, ran.stderr) == ("True\n", "")


@pytest.mark.parametrize("first", [True, False], ids=["before-the-watch", "behind-the-watch"])
@pytest.mark.parametrize("found", ["spec", "spec.__class__(name, Proxy(spec.loader))", "None"])
def test_finder_that_asks_all_finders_again_is_asked_as_ever(
    installation: Installation, tmp_path: Path, found: str, *, first: bool
) -> None:
    """Hooks on imports do that (wrapt's, and with them OpenTelemetry's): what one finds, all have had a hand in."""
    (tmp_path / "mine.py").write_text("print('executed')\n")
    program = f"""
import importlib.util, sys
from trainspan.watch import ImportWatch

class Proxy:
    def __init__(self, loader):
        object.__setattr__(self, "loader", loader)
    def __getattribute__(self, name):
        loader = object.__getattribute__(self, "loader")
        if name == "exec_module":
            return lambda module: loader.exec_module(module)
        return getattr(loader, name)
    def __setattr__(self, name, value):
        setattr(object.__getattribute__(self, "loader"), name, value)
    def __delattr__(self, name):
        delattr(object.__getattribute__(self, "loader"), name)

class Asking:
    busy = False
    def find_spec(self, name, path=None, target=None):
        if self.busy or name != "mine":
            return None
        self.busy = True
        spec = importlib.util.find_spec(name)
        self.busy = False
        return {found}

watch = ImportWatch()
sys.meta_path[:0] = [Asking(), watch] if {first} else [watch, Asking()]
watch.add("mine", lambda module, started_ns: print("called for", module.__name__))
import mine
print(vars(mine.__loader__).keys() & {{"exec_module"}})
"""

    ran = installation.run("-c", program, PYTHONPATH=str(tmp_path))

    assert (ran.stdout, ran.stderr) == ("executed\ncalled for mine\nset()\n", "")
