"""docs/goodput.md says what the code says."""

import re
import shlex
from pathlib import Path

import pytest

from tests.unit import test_goodput_ml_goodput as peer
from trainspan.cli.main import main
from trainspan.names import STATES
from trainspan.relay.goodput.history import RunHistory
from trainspan.relay.goodput.queries import WHOLE
from trainspan.report.goodput import Question, Source, answer, to_json

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "goodput.md").read_text(encoding="utf-8")


def test_every_state_is_explained() -> None:
    """A word in a table that nobody explains is a question to us."""
    assert [state for state in STATES if f"`{state}`" not in PAGE] == []


def test_every_key_of_the_json_is_explained() -> None:
    """Keys that stay must be known."""
    said = to_json(answer(Source("run", RunHistory(), 0, ()), Question(WHOLE, (1,), "rank")))

    assert [key for key in said if f"`{key}`" not in PAGE] == []


@pytest.mark.parametrize("name", peer.QUIRKS)
def test_every_difference_from_the_peer_has_its_reason(name: str) -> None:
    """Where we differ, somebody will ask: the numbers and the reason are those that are tested."""
    ours = peer.QUIRKS[name][-1]
    expected = peer.SCENARIOS[name]["expected"][-1]
    theirs = f"{expected['goodput_pct']:.1f} %" if "goodput_pct" in expected else "raises"
    goodput = 100 * ours.states.get("productive", 0) / sum(ours.states.values())

    assert f"| {name.replace('_', ' ')} | {theirs} | {goodput:.1f} % | {ours.why} |" in PAGE


def test_options_on_the_page_are_those_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    """An example that fails is worse than none."""
    main(["goodput", "--help"])

    understood = capsys.readouterr().out
    assert [option for option in set(re.findall(r"--[a-z][a-z-]+", PAGE)) if option not in understood] == []


@pytest.mark.parametrize("example", re.findall(r"^trainspan (goodput.*?)(?: +#.*)?$", PAGE, re.MULTILINE))
def test_example_lacks_nothing_but_a_run(
    example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Who copies it has a run, and wants an answer."""
    monkeypatch.chdir(tmp_path)

    main([*shlex.split(example), "--dir", str(tmp_path)])

    assert re.search(r"no run|log\.jsonl", capsys.readouterr().err)
