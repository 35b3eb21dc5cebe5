"""`trainspan report` on run folders as relays leave them."""

import json
import os
from pathlib import Path

import pytest

from tests.unit.report_runs import PLAIN_MS, START_UNIX_NS, S, rank_of, run_of
from trainspan.cli.main import main
from trainspan.relay.timeline.rank_summary import Ending, RankSummary


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state directory that the commands look in."""
    monkeypatch.setenv("TRAINSPAN_DIR", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "80")
    return tmp_path


def leave_run(state: Path, *ranks: RankSummary, run: str = "demo") -> Path:
    """What a relay leaves of a run with these ranks."""
    folder = state / "runs" / run
    folder.mkdir(parents=True)
    (folder / "summary.json").write_text(json.dumps(run_of(*ranks).to_json()), encoding="utf-8")
    return folder


def test_newest_run_is_shown(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command after a run is two words long."""
    leave_run(state, rank_of(0, [PLAIN_MS] * 3))

    code = main(["report"])

    shown = capsys.readouterr()
    assert code == 0
    assert shown.err == ""
    assert shown.out.startswith("run demo: finished\nattempt 0, 1 rank on 1 host\n3 steps in 4.98 s")


def test_failed_run_is_a_successful_report(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The exit code is the report's own: 1 would read as "there is no report"."""
    died = Ending("died", START_UNIX_NS + 5 * S, "backward", 3, "SIGKILL")
    leave_run(state, rank_of(0, [PLAIN_MS] * 3, ending=died))

    code = main(["report", "demo"])

    assert code == 0
    assert capsys.readouterr().out.startswith("rank 0 ended in backward of step 3 (SIGKILL)\n\nrun demo: failed\n")


def test_json_is_one_object_of_a_declared_version(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Programs read it, and must notice when its meaning changes."""
    folder = leave_run(state, rank_of(0, [PLAIN_MS] * 3))

    main(["report", "--json"])

    report = json.loads(capsys.readouterr().out)
    assert (report["schema"], report["version"]) == ("trainspan.report", 1)
    assert (report["run"], report["folder"], report["steps"]) == ("demo", str(folder), 3)


def test_folder_from_elsewhere_is_shown(state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run folder is copied from a cluster and read on a laptop."""
    folder = leave_run(state, rank_of(0, [PLAIN_MS])).rename(tmp_path / "copied")

    code = main(["report", f"{folder}/", "--dir", "/nonexistent"])

    assert code == 0
    assert capsys.readouterr().out.startswith("run demo: finished")


def test_running_run_says_so(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A report that looks final while training goes on misleads."""
    folder = leave_run(state, rank_of(0, [PLAIN_MS], ending=Ending("running")))
    os.utime(folder / "summary.json", (0, 0))

    main(["report"])

    first, *rest = capsys.readouterr().out.splitlines()
    assert first.startswith("run demo: running, last news ")
    assert "no news for long: the relay may be gone; its log is in the run folder" in rest


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["report"], "trainspan report: no run in {state}/runs; record one: trainspan run -- python train.py\n"),
        (["report", "demo"], "trainspan report: no run 'demo' in {state}/runs\n"),
        (["replay", "./nowhere"], "trainspan replay: there is no folder nowhere\n"),
    ],
)
def test_missing_run_is_one_line_and_exit_code_2(
    words: list[str], said: str, state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No traceback: the reader did nothing wrong but a typing error."""
    code = main(words)

    shown = capsys.readouterr()
    assert code == 2
    assert shown.out == ""
    assert shown.err == said.format(state=state)


def test_torn_summary_is_one_line_and_exit_code_2(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A full disk leaves half a file; the message names it."""
    folder = leave_run(state, rank_of(0, [PLAIN_MS]))
    (folder / "summary.json").write_text('{"schema": "trainsp', encoding="utf-8")

    code = main(["report"])

    said = capsys.readouterr().err
    assert code == 2
    assert said.startswith(f"trainspan report: {folder}/summary.json: it is not JSON")
    assert said.count("\n") == 1
