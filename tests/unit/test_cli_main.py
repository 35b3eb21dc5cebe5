"""The command line as a whole: what it explains, how it fails, what it loads."""

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import trainspan
from trainspan.cli.main import COMMANDS, main

NAMES = [command.name for command in COMMANDS]


def test_overview_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    """The overview is the map; a command that is not on it does not exist for a new user."""
    code = main(["--help"])

    shown = capsys.readouterr().out
    assert code == 0
    assert [name for name in NAMES if f"\n  {name} " not in shown] == []


@pytest.mark.parametrize("name", NAMES)
def test_help_of_a_command_teaches_with_examples(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """An option list says what can be typed; an example says what to type."""
    code = main([name, "--help"])

    shown = capsys.readouterr().out
    assert code == 0
    assert f"usage: trainspan {name}" in shown
    assert "\nexamples:\n" in shown
    assert max(len(line) for line in shown.splitlines()) <= 88


def test_nothing_asked_shows_the_overview_and_fails(capsys: pytest.CaptureFixture[str]) -> None:
    """A script whose variable came out empty must not take this for success."""
    code = main([])

    shown = capsys.readouterr()
    assert code == 2
    assert shown.out == ""
    assert shown.err.startswith("usage: trainspan")


def test_unknown_command_names_the_one_that_was_meant(capsys: pytest.CaptureFixture[str]) -> None:
    """A typing error costs one look, not a page of help."""
    code = main(["reprot"])

    assert code == 2
    assert capsys.readouterr().err == "trainspan: no command 'reprot'; did you mean 'report'?\n"


@pytest.mark.parametrize(
    "words", [["report", "--jsn"], ["demo", "--ranks", "0"], ["relay"], ["replay", "--timeout", "x"]]
)
def test_bad_usage_is_exit_code_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Scripts tell a wrong call from a failed one by the code."""
    code = main(words)

    assert code == 2
    assert capsys.readouterr().err.startswith(f"usage: trainspan {words[0]}")


@pytest.mark.parametrize("words", [["run", "--", "true"], ["report"], ["demo"], ["replay"], ["relay", "."]])
def test_bad_setting_is_refused_in_the_words_of_the_settings(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rank warns with the same sentence; a search for it finds both."""
    monkeypatch.setenv("TRAINSPAN_RELAY", "sometimes")

    code = main(words)

    said = capsys.readouterr().err
    assert code == 2
    assert said.startswith(f"trainspan {words[0]}: TRAINSPAN_RELAY='sometimes' is not understood: use process, thread")


@pytest.mark.parametrize("json", [[], ["--json"]])
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["report", "absent"], "no run 'absent' in {here}/runs; there are: empty"),
        (["report", "{here}/absent"], "there is no folder {here}/absent"),
        (["report", "{here}/garbage"], "there is no folder {here}/garbage"),
        (["report", "empty"], "{here}/runs/empty holds no summary"),
        (["goodput", "absent"], "no run 'absent' in {here}/runs; there are: empty"),
        (["goodput", "empty"], "{here}/runs/empty holds no ledger"),
        (["goodput", "{here}/garbage", "--input", "ml-goodput"], "{here}/garbage is no log of ml-goodput-measurement"),
        (["goodput", "{here}/absent", "--input", "ml-goodput"], "{here}/absent cannot be read: No such file"),
        (["replay", "absent"], "no run 'absent' in {here}/runs; there are: empty"),
        (["replay", "empty"], "{here}/runs/empty is no run folder"),
    ],
)
def test_what_cannot_be_read_is_exit_code_2_and_one_line(
    words: list[str],
    said: str,
    json: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A script tells a wrong name from a delivery that failed; and what reads the JSON gets none, not half of it."""
    monkeypatch.setenv("TRAINSPAN_DIR", str(tmp_path))
    (tmp_path / "runs" / "empty").mkdir(parents=True)
    (tmp_path / "garbage").write_bytes(bytes(range(256)))

    code = main([*(word.format(here=tmp_path) for word in words), *json])

    shown = capsys.readouterr()
    assert (code, shown.out, shown.err.count("\n")) == (2, "", 1)
    assert shown.err.startswith(f"trainspan {words[0]}: {said.format(here=tmp_path)}")


def test_disk_that_refuses_is_exit_code_1_and_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was understood; a traceback would not say what is in the way."""
    monkeypatch.setenv("TRAINSPAN_DIR", str(tmp_path))
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    folder = tmp_path / "runs" / "looped"
    folder.mkdir(parents=True)
    (folder / "recordings").symlink_to("recordings")
    (folder / "traces.jsonl").mkdir()

    code = main(["replay", "looped"])

    shown = capsys.readouterr()
    assert (code, shown.out) == (1, "")
    assert shown.err.splitlines()[-1].startswith(f"trainspan replay: {folder}/traces.jsonl")


@pytest.mark.parametrize("name", NAMES)
def test_help_of_a_command_says_its_exit_codes(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Who writes a job script looks there."""
    main([name, "--help"])

    assert "\nexit codes: " in capsys.readouterr().out


def test_version_is_the_package_version(capsys: pytest.CaptureFixture[str]) -> None:
    """The first thing a bug report has to say."""
    code = main(["--version"])

    assert code == 0
    assert capsys.readouterr().out == f"trainspan {trainspan.__version__}\n"


@pytest.mark.parametrize("name", NAMES)
def test_command_has_what_the_table_promises(name: str) -> None:
    """A command is imported only when it is asked for; a broken one must not wait for a user."""
    module = import_module(f"trainspan.cli.{name}")

    assert callable(module.add_arguments)
    assert callable(module.execute)


@pytest.mark.parametrize(
    ("words", "absent"),
    [
        (["--help"], ["opentelemetry", "torch", "rich"]),
        (["run", "--", "true"], ["opentelemetry", "torch", "rich"]),
        (["names"], ["opentelemetry", "torch"]),
    ],
)
def test_command_loads_only_what_it_needs(words: list[str], absent: list[str]) -> None:
    """The SDK costs 300 ms, and `trainspan run` starts before every job."""
    program = (
        "import sys\nfrom trainspan.cli.main import main\n"
        f"main({words!r})\nprint([name for name in {absent!r} if name in sys.modules], file=sys.stderr)"
    )

    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert ran.stderr.splitlines()[-1] == "[]"


def test_reader_that_leaves_early_is_no_error() -> None:
    """`trainspan names | head` must not end in a traceback."""
    command = f"{sys.executable} -m trainspan names --json | head -n 1"

    ran = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, check=True)

    assert ran.stdout == "{\n"
    assert ran.stderr == ""
