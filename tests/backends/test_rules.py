"""The recording rules and alerts, by Prometheus' own unit tests."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.backends import stack as stacks

pytestmark = pytest.mark.backends("that the rules compute and the alerts fire as their unit tests say")

PROMETHEUS = Path(__file__).resolve().parents[2] / "collector-config" / "prometheus"


def test_rules_and_alerts_pass_their_unit_tests(tmp_path: Path) -> None:
    """An alert that cannot fire is worse than none."""
    promtool = stacks.status(tmp_path)["binaries"]["promtool"]
    cases = sorted(str(path) for path in (PROMETHEUS / "tests").glob("*.yaml"))

    done = subprocess.run([promtool, "test", "rules", *cases], capture_output=True, text=True, check=False)

    assert len(cases) == 2
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_fires_in_a_unit_test() -> None:
    """What is never seen to fire is not known to."""
    alerts = _names((PROMETHEUS / "rules" / "alerts.yaml").read_text(), "- alert: ")
    fired = (PROMETHEUS / "tests" / "alerts.yaml").read_text()

    assert len(alerts) >= 6
    assert [alert for alert in alerts if f"alertname: {alert}\n" not in fired] == []


def test_every_alert_is_quiet_in_a_unit_test() -> None:
    """One that always rings is switched off, and then it is none."""
    alerts = _names((PROMETHEUS / "rules" / "alerts.yaml").read_text(), "- alert: ")
    cases = (PROMETHEUS / "tests" / "alerts.yaml").read_text()

    quiet = set(re.findall(r"\{alertname: (\w+), eval_time: \w+, exp_alerts: \[\]\}", cases))

    assert [alert for alert in alerts if alert not in quiet] == []


def test_every_recording_rule_is_computed_in_a_unit_test() -> None:
    """A rule that is asked for nowhere is a rule that may be wrong."""
    records = _names((PROMETHEUS / "rules" / "recording.yaml").read_text(), "- record: ")
    asked = (PROMETHEUS / "tests" / "recording.yaml").read_text() + (PROMETHEUS / "tests" / "alerts.yaml").read_text()

    assert len(records) >= 10
    assert [record for record in records if record not in asked] == []


def _names(text: str, key: str) -> list[str]:
    return [line.split(key)[1].strip() for line in text.splitlines() if key in line]
