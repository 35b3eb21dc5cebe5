"""Every configuration under collector-config/ loads in the program it is for."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.backends import stack as stacks

EXISTING = (("existing",), ("agent", "tempo"), ("agent", "honeycomb"), ("laptop", "run-folder"))
"""Configurations of docs/, each with what it is put on top of."""


@pytest.mark.backends("that the real programs load every shipped configuration")
def test_shipped_configurations_load(repository: Path) -> None:
    """A component that was renamed or a key that was removed stops a collector on a user's first try, not ours."""
    result = stacks.run("validate")

    assert result.returncode == 0, result.stderr
    checked = {word for line in result.stdout.splitlines() for word in line.split()[-1].split("+")}
    shipped = {file.stem for file in (repository / "collector-config").glob("*.yaml")}
    assert checked == shipped | {"prometheus", "docker-compose"}
    assert [line.split()[0] for line in result.stdout.splitlines()] == ["ok"] * len(result.stdout.splitlines())


@pytest.mark.backends("that `validate` refuses a configuration that does not load")
@pytest.mark.parametrize(
    ("file", "right", "wrong", "complaint"),
    [
        ("gateway.yaml", "tail_sampling:", "tail_smapling:", "tail_smapling"),
        ("jaeger.yaml", "jaeger_query:", "jaeger_kwery:", "jaeger_kwery"),
        ("prometheus/prometheus.yaml", "otlp:", "oltp:", "oltp"),
    ],
)
def test_a_mistake_is_named(
    repository: Path, tmp_path: Path, file: str, right: str, wrong: str, complaint: str
) -> None:
    """A validation that says yes to everything would be worse than none."""
    shutil.copytree(repository / "collector-config", tmp_path / "config")
    broken = tmp_path / "config" / file
    broken.write_text(broken.read_text().replace(right, wrong))

    result = stacks.run("validate", tmp_path / "config")

    assert result.returncode == 1
    assert complaint in result.stderr
    assert result.stdout.count("failed") == 1


@pytest.mark.backends("that the real Collector loads the files of docs/existing-stacks")
@pytest.mark.parametrize("names", EXISTING, ids="+".join)
def test_configurations_for_existing_stacks_load(repository: Path, tmp_path: Path, names: tuple[str, ...]) -> None:
    """They are put beside what somebody runs already, by somebody who has not read our sources."""
    folders = (repository / "collector-config", repository / "docs" / "existing-stacks" / "collector")
    files = [next(path for folder in folders if (path := folder / f"{name}.yaml").exists()) for name in names]
    collector = stacks.status(tmp_path)["binaries"]["otelcol"]

    ran = subprocess.run(
        [collector, "validate", *(f"--config={file}" for file in files)], capture_output=True, text=True, check=False
    )

    assert ran.returncode == 0, ran.stderr


def test_every_configuration_in_the_docs_is_loaded(repository: Path) -> None:
    """One that is added and not loaded here would be the one that is wrong."""
    in_docs = {file.stem for file in (repository / "docs").rglob("collector/*.yaml")}

    assert in_docs == {names[-1] for names in EXISTING}
