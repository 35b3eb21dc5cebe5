"""`scripts/test-gpu` without a GPU: it says so, its verdicts can fail, and what it runs is tried on the CPU."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, cast

import pytest

from tests.gpu.checks import CHECKS, Check, Row
from tests.gpu.runs import REPOSITORY, SCRIPT, Amounts, Bench
from tests.gpu.table import lines_of, main, run
from tests.integration.machines import recorded_gpus
from trainspan.relay.probes.nvml import NvmlProbe
from trainspan.testing.fake_nvml import FakeNvml

FEW = Amounts(
    profiled_steps=5, rounds=2, steps_of_a_round=2, energy_s=3, readings_s=2, calls=2, graph_steps=3, compiled_steps=6
)
BY_NAME = {check.name: check for check in CHECKS}


@pytest.fixture
def pretended(tmp_path: Path) -> Bench:
    """A CPU that says it is the first of eight recorded GPUs."""
    environ = recorded_gpus(tmp_path / "modules", "h100x8")

    def probe() -> NvmlProbe:
        return NvmlProbe(load=lambda: FakeNvml.from_file(environ["RECORDED_MACHINE"]))

    return Bench(tmp_path / "runs", FEW, ("--device", "pretended", "--size", "small"), environ, probe)


def rows_of(name: str, bench: Bench) -> dict[str, Row]:
    """The rows of a check, by what they are of."""
    return {row.what: row for row in BY_NAME[name].rows(bench)}


def test_without_a_gpu_it_says_what_was_not_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A green run that has shown nothing is worse than a red one."""
    path = tmp_path / "gpu.json"

    code = main(["--json", str(path)], lambda: "no GPU")

    written = json.loads(path.read_text())
    assert code == 3
    assert (written["why_not"], written["outcomes"]) == ("no GPU", [])
    assert written["not_shown"][: len(CHECKS)] == [check.shows for check in CHECKS]
    assert capsys.readouterr().out.splitlines()[:3] == [
        *("nothing was run: no GPU", "not shown here:", f"  {CHECKS[0].shows}")
    ]


def test_a_bound_that_is_missed_and_a_check_that_breaks_fail(tmp_path: Path) -> None:
    """One broken check must neither pass nor hide what comes after it, nor what it showed before."""

    def breaks(_: Bench) -> Iterator[Row]:
        yield Row("first", "1", "1", holds=True)
        raise RuntimeError("no kernel image")

    checks = [
        Check("told", "x", lambda _: iter([Row("p50", "3 µs")]), {}),
        Check("missed", "x", lambda _: iter([Row("off by", "3 %", "2 %", holds=False)]), {}),
        Check("broken", "x", breaks, {}),
        Check("sound", "x", lambda _: iter([Row("off by", "1 %", "2 %", holds=True)]), {}),
    ]

    outcomes = list(run(checks, Bench(tmp_path)))

    assert [outcome.holds for outcome in outcomes] == [True, False, False, True]
    assert [line.split()[0] for outcome in outcomes for line in lines_of(outcome)] == [
        *("p50", "FAILS", "holds", "FAILS", "holds")
    ]


def test_a_check_that_hangs_and_one_that_lacks_something_are_named(tmp_path: Path) -> None:
    """A machine is lent for minutes: what hangs must not take what the others have shown with it."""

    def hangs(_: Bench) -> Iterator[Row]:
        yield Row("first", "1")
        time.sleep(60)

    checks = [
        Check("lacking", "x", lambda _: iter([]), {"no_such_module.at_all": "no-such-wheel"}),
        Check("hanging", "x", hangs, {}),
        Check("late", "x", lambda _: iter([Row("off by", "1 %")]), {}),
    ]

    lacking, hanging, late = run(checks, Bench(tmp_path), within_s=6)

    assert lacking.why_not == "it needs no-such-wheel"
    assert (hanging.rows, hanging.why_not) == ((Row("first", "1"),), "TimeoutError: it was not through after 6 s")
    assert late.why_not == "the 6 s are over"


def test_what_an_earlier_call_has_shown_stays_in_the_file(tmp_path: Path) -> None:
    """Ten minutes a command, thirty for all: the table is made in parts."""
    path = tmp_path / "gpu.json"
    checks = [
        Check("energy", "x", lambda _: iter([Row("joules", "1", "1", holds=True)]), {}),
        Check("compiled", "x", lambda _: iter([Row("graphs", "2", "1", holds=False)]), {}),
    ]

    codes = [main(["--json", str(path), "--only", name], lambda: None, checks) for name in ("energy", "compiled")]

    written = json.loads(path.read_text())
    assert codes == [0, 1]
    assert [(o["check"], [row["holds"] for row in o["rows"]]) for o in written["outcomes"]] == [
        *(("energy", [True]), ("compiled", [False]))
    ]
    assert BY_NAME["energy"].shows not in written["not_shown"]
    assert BY_NAME["step_time"].shows in written["not_shown"]


def test_a_name_that_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """Nobody waits for a machine to find that nothing ran for a typing error."""
    with pytest.raises(SystemExit):
        main(["--only", "energy,devicetimes"], lambda: None)

    assert "there is no 'devicetimes'; there are device_times, " in capsys.readouterr().err


def test_it_runs_with_what_the_interpreter_has(tmp_path: Path) -> None:
    """A machine with a GPU often has torch and no network: nothing may have to be fetched."""
    for name in ("scripts", "src", "tests", "pyproject.toml", "constraints.txt"):
        (tmp_path / name).symlink_to(REPOSITORY / name)
    environ = {**os.environ, "PYTHON": sys.executable, "PIP_NO_INDEX": "1", "CUDA_VISIBLE_DEVICES": ""}

    done = subprocess.run(
        [tmp_path / "scripts" / "test-gpu", "--only", "energy"],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    hooked = subprocess.run(
        [
            tmp_path / ".cache" / "borrowed" / "bin" / "python",
            "-c",
            "import sys; print('trainspan.startup' in sys.modules)",
        ],
        env={**environ, "TRAINSPAN_ENABLED": "1"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stdout.splitlines()[:3]) == (
        3,
        [
            "nothing was run: this machine has no GPU that torch can use",
            "not shown here:",
            f"  {BY_NAME['energy'].shows}",
        ],
    ), done.stderr
    assert done.stderr.startswith(f"environment: using {sys.executable} and what it has")
    assert hooked.stdout.strip() == "True", hooked.stderr


def test_device_work_belongs_to_the_phase_that_launched_it() -> None:
    """Kernels run after the phase has ended on the host, and those of backward come from another thread."""
    spec = spec_from_file_location("gpu_model", SCRIPT)
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

    stretches = model.phases_on_device(events, 5)

    assert stretches == [{"phase": "forward", "step": 5, "us": 41.0}, {"phase": "backward", "step": 5, "us": 70.0}]


def test_device_times_are_compared_step_by_step(pretended: Bench) -> None:
    """Every step is on both sides; on the CPU the times differ by what lies between a mark and the first operation."""
    rows = rows_of("device_times", pretended)

    for phase in ("forward", "backward", "optimizer"):
        assert rows[f"steps with a device time of {phase}"] == Row(
            f"steps with a device time of {phase}", "5 of 5", "9 of 10", holds=True
        )
        assert rows[f"device time of {phase}"].measured.endswith("%")
    # All operations of a forward lie between its marks.
    assert "+" in rows["device time of forward"].measured


def test_waits_are_counted_by_the_call(pretended: Bench) -> None:
    """A CPU has none; what is logged is a tensor all the same."""
    run = pretended.unrecorded("syncs", "2")

    assert run.answer == {"waits": {}, "copies": 0}


@pytest.mark.parametrize(
    ("ours", "plain", "holds"),
    [
        ({"cudaDeviceSynchronize": 3}, {"cudaDeviceSynchronize": 3}, True),
        ({"cudaDeviceSynchronize": 3, "cudaEventSynchronize": 1}, {"cudaDeviceSynchronize": 3}, False),
        ({}, {}, False),
    ],
)
def test_an_added_wait_fails_and_so_do_none_at_all(ours: dict[str, int], plain: dict[str, int], holds: bool) -> None:
    """The profiled run ends with a wait: a profiler that has not seen it has seen nothing."""
    run, other = Run(0, (), range(0), waits=ours, copies=40), Run(0, (), range(0), waits=plain, copies=0)

    waits, copies = rows_of("synchronizations", cast("Bench", Told(run, other))).values()

    assert (waits.holds, copies.holds) == (holds, True)


def test_a_run_without_a_copy_of_the_loss_has_shown_nothing() -> None:
    """Of one name a number is copied once a second: steps that log it anew each time once took less, all together."""
    run, other = (Run(0, (), range(0), waits={"cudaDeviceSynchronize": 3}, copies=0) for _ in range(2))

    _, copies = rows_of("synchronizations", cast("Bench", Told(run, other))).values()

    assert copies.holds is False


def test_step_times_are_compared_in_pairs(pretended: Bench) -> None:
    """In two processes that stay, with a relay beside one of them."""
    (row,) = rows_of("step_time", pretended).values()

    assert row.what == "step time with trainspan, 2 pairs"
    assert isinstance(row.holds, bool)
    assert list((pretended.state / "real" / "runs").iterdir())


def test_energy_is_compared_with_the_drivers_counter(pretended: Bench) -> None:
    """The recorded GPU draws evenly, so a few seconds show what a minute shows on a real one."""
    rows = rows_of("energy", pretended)

    assert rows["energy of 6 s of training"].measured.endswith("%")
    assert rows["hw.id of the rank's process"].holds is True


def test_readings_and_calls_are_those_of_the_driver(pretended: Bench) -> None:
    """Each call by its name, and each number with what is plausible of it."""
    read, calls = rows_of("readings", pretended), rows_of("nvml_calls", pretended)

    assert [row.what for row in read.values() if row.holds is False] == []
    assert read["hw.power under load"] == Row("hw.power under load", "652", "30 to 2000", holds=True)
    assert read["not told by this GPU"].measured == "nothing"
    assert len(calls) == 14
    assert "NVML under load: energy" in calls


class Run:
    """A run that is over, as `Trained`, of steps that each took a second on the device."""

    def __init__(self, steps: int, phases: Sequence[str], timed: range, **answer: Any):
        self.answer = {"steps": len(timed), **answer}
        self._steps = steps
        self._device_s = {(step, phase): 1.0 for step in timed for phase in phases}

    def numbers(self, _: str) -> dict[tuple[str, ...], float]:
        """Of the one series."""
        return {(): self._steps}

    def device_s(self) -> dict[tuple[int, str], float]:
        """By step and phase."""
        return self._device_s

    def steps_with(self, phase: str) -> int:
        """Steps of that phase."""
        return len({step for step, of in self._device_s if of == phase})


class Told:
    """A bench of runs that a CPU cannot make: what they answer, in the order in which they are made."""

    amounts = Amounts(profiled_steps=20, graph_steps=50, compiled_steps=20)

    def __init__(self, *runs: Run):
        self._runs = iter(runs)

    def recorded(self, *_: str) -> Run:
        """The next one."""
        return next(self._runs)

    unrecorded = recorded


def stretches(phase: str, steps: range, us: float) -> list[dict[str, Any]]:
    """What the profiler saw, the same in each step."""
    return [{"phase": phase, "step": step, "us": us} for step in steps]


@pytest.mark.parametrize(
    ("steps", "us", "timed", "expected"),
    [
        (54, 1e6, range(9, 29), [True, True, True, True]),
        (53, 1.03e6, range(9, 29), [False, True, True, False]),
        (54, 1e6, range(9, 26), [True, True, False, True]),
    ],
)
def test_each_replay_is_a_step_with_the_profilers_time(
    steps: int, us: float, timed: range, expected: list[bool]
) -> None:
    """A run that misses a replay, a step or the time of one must not pass."""
    profiled = Run(0, ("graph_replay",), timed, stretches=stretches("graph_replay", range(9, 29), us))
    profiled.answer["steps"] = 20
    bench = Told(Run(steps, ("graph_replay",), range(50)), profiled)

    rows = rows_of("cuda_graph", cast("Bench", bench))

    assert [row.holds for row in rows.values()] == expected


@pytest.mark.parametrize(
    ("graphs", "plain", "timed", "expected"),
    [(1, 1, 19, [True] * 4), (2, 1, 19, [False, True, True, True]), (0, 0, 14, [False, True, False, False])],
)
@pytest.mark.parametrize("name", ["compiled", "reduce_overhead"])
def test_a_compiled_model_has_as_many_graphs_and_its_device_times(
    name: str, graphs: int, plain: int, timed: int, expected: list[bool]
) -> None:
    """None at all would be equal too."""
    run, other = (Run(20, ("forward", "backward"), range(timed), graphs=count) for count in (graphs, plain))

    rows = rows_of(name, cast("Bench", Told(run, other)))

    assert [row.holds for row in rows.values()] == expected
