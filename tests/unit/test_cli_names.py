"""The tables of names and settings, as they are shown."""

import json

import pytest

from trainspan import names
from trainspan.cli.main import main
from trainspan.otel_variables import OTEL_VARIABLES
from trainspan.settings import VARIABLES


def test_every_name_and_setting_is_shown_in_full(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names are there to be copied into a query; one that is cut or wrapped cannot be."""
    monkeypatch.setenv("COLUMNS", "80")
    wanted = [metric.name for metric in names.METRICS] + [variable.name for variable in VARIABLES]
    wanted += [variable.name for variable in OTEL_VARIABLES]
    wanted += [row.name for row in (*names.SPANS, *names.RESOURCE_ATTRIBUTES, *names.SPAN_ATTRIBUTES, *names.EVENTS)]

    main(["names"])

    shown = capsys.readouterr().out
    assert [name for name in wanted if f"\n  {name} " not in shown] == []
    assert max(len(line) for line in shown.splitlines()) <= 80


def test_json_holds_every_table(capsys: pytest.CaptureFixture[str]) -> None:
    """Dashboards and linters are generated from it."""
    main(["names", "--json"])

    tables = json.loads(capsys.readouterr().out)

    assert list(tables) == ["spans", "attributes", "metrics", "events", "states", "settings", "otel"]
    assert [row["name"] for row in tables["metrics"]] == [metric.name for metric in names.METRICS]
    assert tables["metrics"][1] == {
        "name": "training.phase.duration",
        "instrument": "histogram",
        "unit": "s",
        "attributes": ["training.phase", "training.clock"],
        "meaning": "Exclusive time of one phase, summed over one step.",
    }


def test_one_table_can_be_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    """`trainspan names states` answers one question."""
    main(["names", "states", "--json"])

    tables = json.loads(capsys.readouterr().out)

    assert tables == {"states": [{"name": state} for state in names.STATES]}
