"""Every configuration, loaded by the program it is for."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import binaries

COMPOSE = Path(__file__).resolve().parents[2] / "docker-compose.yml"
COLLECTOR = ("laptop", "agent", "gateway", "laptop+tls", "agent+tls")


def results(configurations: Path) -> Iterator[tuple[str, str]]:
    """Per configuration: (its name, what its program says against it; empty if nothing)."""
    for names in COLLECTOR:
        files = [f"--config={configurations / name}.yaml" for name in names.split("+")]
        yield f"collector {names}", _complaint("otelcol", "validate", *files)
    yield "jaeger", _complaint("jaeger", "validate", f"--config={configurations / 'jaeger.yaml'}")
    # Loads the rules it names, too.
    yield (
        "prometheus",
        _complaint("promtool", "check", "config", str(configurations / "prometheus" / "prometheus.yaml")),
    )
    yield "compose docker-compose", _complaint("compose", str(COMPOSE), "nvidia")


def _complaint(program: str, *arguments: str) -> str:
    result = subprocess.run([binaries.path_of(program), *arguments], capture_output=True, text=True, check=False)
    return result.stdout + result.stderr if result.returncode else ""
