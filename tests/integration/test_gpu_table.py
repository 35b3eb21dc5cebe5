"""`scripts/test-gpu` without a GPU: it says so, its verdicts can fail, and what it runs is tried on the CPU."""

import json
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from tests.gpu.checks import CHECKS, Check, Row
from tests.gpu.runs import EVERYTHING, MODEL, Server, recorded
from tests.gpu.table import lines_of, main, run
from tests.integration.relayed import SCRIPTS

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


def test_device_work_belongs_to_the_phase_that_launched_it() -> None:
    """Kernels run after the phase has ended on the host, and those of backward come from another thread."""
    spec = spec_from_file_location("gpu_model", SCRIPTS / MODEL)
    assert spec is not None
    assert spec.loader is not None
    model = module_from_spec(spec)
    spec.loader.exec_module(model)
    events = [
        {"cat": "user_annotation", "name": "ts_forward", "ts": 0.0, "dur": 10.0},
        {"cat": "user_annotation", "name": "ts_backward", "ts": 12.0, "dur": 20.0},
        {"cat": "user_annotation", "name": "ts_optimizer", "ts": 40.0, "dur": 1.0},
        {
            "cat": "cuda_runtime",
            "name": "cudaLaunchKernel",
            "ts": 1.0,
            "dur": 1.0,
            "tid": 1,
            "args": {"correlation": 7},
        },
        {
            "cat": "cuda_runtime",
            "name": "cudaLaunchKernel",
            "ts": 9.0,
            "dur": 1.0,
            "tid": 1,
            "args": {"correlation": 8},
        },
        {"cat": "cuda_driver", "name": "cuLaunchKernel", "ts": 15.0, "dur": 1.0, "tid": 2, "args": {"correlation": 9}},
        {"cat": "kernel", "name": "gemm", "ts": 5.0, "dur": 20.0, "args": {"correlation": 7}},
        {"cat": "kernel", "name": "gemm", "ts": 26.0, "dur": 20.0, "args": {"correlation": 8}},
        {"cat": "kernel", "name": "gemm", "ts": 50.0, "dur": 70.0, "args": {"correlation": 9}},
        {"cat": "kernel", "name": "nobody's", "ts": 130.0, "dur": 70.0, "args": {}},
        {"ph": "M", "name": "process_name", "args": {"name": "python"}},
    ]

    stretches = model.phases_on_device(events)

    assert stretches == [{"phase": "forward", "us": 41.0}, {"phase": "backward", "us": 70.0}]


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
