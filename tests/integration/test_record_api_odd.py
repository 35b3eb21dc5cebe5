"""What a script hands to `import trainspan` that makes no sense: nothing is raised, and all of it is counted."""

from pathlib import Path

import pytest

from tests.integration.recorded import Run, start
from tests.integration.test_record_api import misuse_of, only, told

SWITCHES = ["1", ""]


def ran(scenario: str, state: Path, enabled: str = "1") -> Run:
    """The scenario, with trainspan on or off."""
    more = {"TRAINSPAN_ENABLED": enabled, "TMPDIR": str(state)}
    return start("odd.py", scenario, state=state / "state", **more).ended()


@pytest.mark.parametrize("enabled", SWITCHES)
def test_no_call_raises_whatever_it_is_given(enabled: str, tmp_path: Path) -> None:
    """A proxy that is not bound yet, passed to a call that is made once a day, must not end the training."""
    run = ran("everything", tmp_path, enabled)

    assert run.exit_code == 0, run.stderr
    assert run.lines == [{"raised": []}]
    assert "was not recorded" not in run.stderr


def test_each_wrong_argument_is_counted_and_the_kind_is_said_once(tmp_path: Path) -> None:
    """Who has mixed up two arguments looks for a number that never comes."""
    run = ran("wrong", tmp_path)

    (line,) = run.lines
    assert {name: counted for name, counted in line["counted"].items() if counted != {"misuse.argument": 1}} == {}
    assert run.stderr.splitlines() == [
        "trainspan: trainspan.configure(tags=…) was given what it does not take; that is left out"
    ]
    assert misuse_of(only(run))["argument"] == len(line["counted"]) > 30


def test_mapping_that_is_no_dict_is_a_mapping(tmp_path: Path) -> None:
    """A configuration of OmegaConf's is one; and an attribute can have any name, `name` and `self` too."""
    run = ran("mappings", tmp_path)

    recording = only(run)
    assert run.lines == [{"warned": {}}]
    assert told(recording, "span", "attributes") == [{"format": "onnx"}]
    assert told(recording, "scalars", "values") == [{"loss": 0.5}]
    assert told(recording, "configured", "tags") == [{"team": "vision"}]
    assert told(recording, "user_event", "name", "attributes") == [("done", {"name": "abc", "self": "me", "step": 7})]
