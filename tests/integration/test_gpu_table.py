"""`scripts/test-gpu` without a GPU: it says so, its verdicts can fail, and what it runs is tried on the CPU."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gpu.checks import CHECKS, Check, Row
from tests.gpu.runs import EVERYTHING, Server, recorded
from tests.gpu.table import lines_of, main, run

ON_CPU = ("--device", "cpu", "--size", "small")


def test_without_a_gpu_it_says_what_was_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """A green run that has shown nothing is worse than a red one."""
    code = main(["--json"], lambda: "no GPU")

    said = json.loads(capsys.readouterr().out)
    assert code == 3
    assert said["why_not"] == "no GPU"
    assert said["outcomes"] == []
    assert said["not_shown"][: len(CHECKS)] == [check.shows for check in CHECKS]


def test_a_bound_that_is_missed_and_a_check_that_breaks_fail(tmp_path: Path) -> None:
    """One broken check must neither pass nor hide what comes after it."""

    def breaks(_: Path) -> Iterator[Row]:
        yield Row("first", "1", "1", holds=True)
        raise RuntimeError("no kernel image")

    checks = [
        Check("told", "x", lambda _: iter([Row("p50", "3 µs")])),
        Check("missed", "x", lambda _: iter([Row("off by", "3 %", "2 %", holds=False)])),
        Check("broken", "x", breaks),
        Check("sound", "x", lambda _: iter([Row("off by", "1 %", "2 %", holds=True)])),
    ]

    outcomes = list(run(checks, tmp_path))

    assert [outcome.holds for outcome in outcomes] == [True, False, False, True]
    assert [line.split()[0] for outcome in outcomes for line in lines_of(outcome)] == [
        *("p50", "FAILS", "holds", "FAILS", "holds")
    ]


def test_what_it_runs_runs(tmp_path: Path) -> None:
    """On the day there is a GPU, nobody wants to find a typing error in the script."""
    run = recorded(tmp_path, "steps", "4", *ON_CPU)
    server = Server({}, *ON_CPU)
    took_s = [server.seconds_of(steps) for steps in (1, 2)]
    server.close()

    assert run.answer["steps"] == 4
    assert run.numbers("training.steps") == {(): 4}
    assert {(s.attributes or {}).get("training.phase") for s in run.spans()} >= {"forward", "backward", "optimizer"}
    assert run.device_s() == {}
    assert all(seconds > 0 for seconds in took_s)
    assert EVERYTHING["TRAINSPAN_DEVICE_SHARE"] == "1"
