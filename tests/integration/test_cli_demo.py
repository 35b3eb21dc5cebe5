"""`trainspan demo`, and the example it trains."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import trainspan
from tests.integration.test_outlet_faults import spans
from trainspan.cli.demo import find_script, how_to_look
from trainspan.relay.otlp.outlet import Outlet
from trainspan.testing.otlp_sink import OtlpSink


def test_demo_trains_reports_and_says_how_to_look(tmp_path: Path) -> None:
    """It is the first thing a stranger runs: what it shows must be of the run it has just made."""
    command = [sys.executable, "-m", "trainspan", "demo", "--ranks", "2", "--steps", "6", "--dir", str(tmp_path)]

    ran = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)

    folder = next((tmp_path / "runs").iterdir())
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("$ torchrun ")
    assert f"\nrun {folder.name}: finished\nattempt 0, 2 ranks on 1 host\n6 steps in " in ran.stdout
    assert f"and upload {folder / 'traces.jsonl'} at http://localhost:16686" in ran.stdout
    phases = re.findall(r"^  (\w+) +0  ", ran.stdout, re.MULTILINE)
    assert phases == ["data_wait", "h2d", "forward", "backward", "grad_clip", "optimizer", "other"]


def test_demo_without_a_relay_reads_what_was_recorded(tmp_path: Path) -> None:
    """Who has switched the relay off for an air-gapped cluster tries the demo there first."""
    command = [sys.executable, "-m", "trainspan", "demo", "--ranks", "1", "--steps", "3", "--dir", str(tmp_path)]
    with OtlpSink() as sink:
        environ = {**os.environ, **sink.environ, "TRAINSPAN_RELAY": "off"}

        ran = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=280, check=False)

    folder = next((tmp_path / "runs").iterdir())
    assert ran.returncode == 0, ran.stderr
    assert f"\nrun {folder.name}: finished\nattempt 0, 1 rank on 1 host\n3 steps in " in ran.stdout
    assert f"The traces wait on disk; deliver them to {sink.endpoint} with: trainspan replay {folder}\n" in ran.stdout
    assert sink.received() == []


def told_after(folder: Path, environ: dict[str, str], *, deliver_s: float = 0.5) -> str:
    """How to look at a run whose relay has left one trace in `folder`, and gave delivering so long."""
    outlet = Outlet(folder, 0, environ, 1 << 20, lambda _: None)
    outlet.put_spans(spans(0))
    outlet.close(deliver_s)
    return how_to_look(folder, environ)


def test_traces_that_arrived_are_said_to_be_there(tmp_path: Path) -> None:
    """The one case in which there is nothing left to do."""
    with OtlpSink() as sink:
        told = told_after(tmp_path, sink.environ, deliver_s=20)

    assert told.splitlines()[0] == f"The traces went to {sink.endpoint}."
    assert told.splitlines()[-1].startswith("Service trainspan, operation training.step: ")


def test_traces_that_nobody_took_are_not_said_to_be_there(tmp_path: Path) -> None:
    """Whoever looks for them in Jaeger would look for the mistake everywhere but at the address."""
    with OtlpSink() as gone:
        environ = gone.environ

    told = told_after(tmp_path, environ)

    assert told.splitlines()[0] == (
        f"The traces wait on disk; deliver them to {gone.endpoint} with: trainspan replay {tmp_path}"
    )


def test_traces_that_a_relay_still_holds_are_on_their_way(tmp_path: Path) -> None:
    """A slow endpoint takes longer than anybody waits for it; the relay goes on."""
    environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}
    claims = "import sys; from pathlib import Path; from trainspan.relay.otlp.claims import claim; "
    script = f"{claims} held = claim(Path({str(tmp_path)!r}), 'traces', 0); print(flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as relay:
        assert relay.stdout is not None
        relay.stdout.readline()

        told = how_to_look(tmp_path, environ)

        relay.communicate()

    assert told.splitlines()[0] == "The traces are on their way to http://collector:4318: the relay has not finished."


@pytest.mark.parametrize(
    ("environ", "told"),
    [
        (
            {"OTEL_TRACES_EXPORTER": "none"},
            "No traces: they are switched off (OTEL_TRACES_EXPORTER, OTEL_SDK_DISABLED).",
        ),
        ({"OTEL_SDK_DISABLED": "true"}, "No traces: they are switched off (OTEL_TRACES_EXPORTER, OTEL_SDK_DISABLED)."),
        ({"OTEL_TRACES_SAMPLER": "always_off"}, "No traces: no step is sampled (OTEL_TRACES_SAMPLER)."),
    ],
)
def test_traces_that_were_not_made_are_not_to_be_uploaded(environ: dict[str, str], told: str, tmp_path: Path) -> None:
    """A file that does not exist cannot be uploaded, and no endpoint has what was never sent."""
    assert told_after(tmp_path, environ) == told


def test_traces_for_the_console_are_where_the_relay_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The relay is no terminal's process; its console is a file."""
    log = tmp_path / f"relay.{os.uname().nodename}.log"
    log.touch()

    told = told_after(tmp_path, {"OTEL_TRACES_EXPORTER": "console"}, deliver_s=20)

    assert "span 0" in capsys.readouterr().out
    assert told.splitlines()[0] == f"The traces are in {log}."


def test_demo_refuses_an_endpoint_that_is_none_before_it_trains() -> None:
    """A minute of training later the word would come too late."""
    command = [sys.executable, "-m", "trainspan", "demo"]
    environ = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": "localhost:4318"}

    ran = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)

    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.startswith("trainspan demo: OTEL_EXPORTER_OTLP_ENDPOINT='localhost:4318' is not understood: use")


def test_demo_without_torch_says_how_to_get_it(tmp_path: Path) -> None:
    """trainspan does not bring torch, and a traceback would not say so."""
    packages = tmp_path / "packages"
    packages.mkdir()
    # Also those of an interpreter whose packages are borrowed, as its torch may be; the nearest comes first.
    for folder in (Path(place) for place in sys.path if place.endswith("-packages")):
        for entry in folder.iterdir():
            if not entry.name.startswith("torch") and not (packages / entry.name).exists():
                (packages / entry.name).symlink_to(entry)
    source = Path(trainspan.__file__).parents[1]
    # -S: without the site-packages that have torch.
    command = [sys.executable, "-S", "-m", "trainspan", "demo"]

    ran = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": f"{source}:{packages}"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert ran.returncode == 1
    assert ran.stderr == (
        f"trainspan demo: torch is not installed in {sys.executable}; get it with: pip install torch\n"
    )


def test_example_runs_alone_and_learns() -> None:
    """It is a training script like any other: no launcher needed, and its loss falls."""
    command = [sys.executable, str(find_script()), "--steps", "10", "--validate-every", "10"]

    ran = subprocess.run(command, capture_output=True, text=True, timeout=280, check=True)

    losses = [float(loss) for loss in re.findall(r"  loss (\d+\.\d+)", ran.stdout)]
    assert len(losses) == 3
    assert losses[-1] < losses[0] - 0.5
    assert "validation loss" in ran.stdout


def test_example_does_not_know_us() -> None:
    """The whole claim is that a script need not be changed."""
    assert "trainspan" not in find_script().read_text(encoding="utf-8")


@pytest.mark.parametrize("option", ["--ranks", "--steps"])
def test_demo_refuses_numbers_below_one(option: str) -> None:
    """torchrun would start and then say something about rendezvous."""
    command = [sys.executable, "-m", "trainspan", "demo", option, "0"]

    ran = subprocess.run(command, capture_output=True, text=True, check=False)

    assert ran.returncode == 2
    assert f"argument {option}: invalid whole number from 1 value: '0'" in ran.stderr
