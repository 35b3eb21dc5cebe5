"""A run folder that was brought to another place, read by the Collector itself."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.backends import runs
from tests.backends import stack as stacks
from tests.backends.stack import Stack
from tests.backends.test_gateway import free_address
from trainspan import names

REPOSITORY = Path(__file__).resolve().parents[2]
FILES = ("collector-config/laptop.yaml", "docs/existing-stacks/collector/run-folder.yaml")


@pytest.mark.backends("that the Collector's otlp_json_file receiver takes a run folder as it is")
def test_a_run_folder_is_read_by_the_collector(stack: Stack, tmp_path: Path) -> None:
    """Who has a Collector and no trainspan where the files are must get all of them into Jaeger and Prometheus."""
    run = runs.run("mortal.py", "backward", "kill", "6", state=tmp_path, environ={})
    written = run.written_spans()

    with _reading(run.folder, stack, tmp_path):
        found = {key: stack.trace(int(key, 16), len(spans)) for key, spans in written.items()}
        steps = stack.series(f'{{__name__="training_steps_total", training_run_id="{run.name}"}}')

    assert sum(len(spans) for spans in written.values()) > 20
    assert {key: sorted(span["spanID"] for span in trace["spans"]) for key, trace in found.items()} == {
        key: sorted(spans) for key, spans in written.items()
    }
    assert [span["warnings"] for trace in found.values() for span in trace["spans"] if span["warnings"]] == []
    assert [series["value"][1] for series in steps] == ["6"]
    assert names.SPAN_STEP in {span["operationName"] for trace in found.values() for span in trace["spans"]}


@contextmanager
def _reading(folder: Path, stack: Stack, own: Path) -> Iterator[None]:
    """A collector that reads `folder` into the stack."""
    status = stacks.status(stack.folder)
    health = free_address()
    environment = {
        "RUN_FOLDER": str(folder),
        "HEALTH_ENDPOINT": health,
        "STORAGE_DIR": str(own / "queues"),
        "JAEGER_ENDPOINT": f"127.0.0.1:{status['ports']['jaeger_otlp']}",
        "PROMETHEUS_ENDPOINT": stack.prometheus,
        "COLLECTOR_ID": "run-folder",
    }
    command = [status["binaries"]["otelcol"], *(f"--config={REPOSITORY / file}" for file in FILES)]
    with (own / "collector.log").open("w") as log:
        process = subprocess.Popen(command, env={**os.environ, **environment}, stdout=log, stderr=log)
    try:
        stacks.wait_for(lambda: stacks.get_json(f"http://{health}/"))
        yield
    finally:
        process.terminate()
        process.wait()
