"""docker-compose.yml starts what the other tests here have tried: same configurations, same options."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

COMPOSE = Path(__file__).resolve().parents[2] / "docker-compose.yml"


def _service(name: str) -> str:
    """The lines of one service."""
    found = re.search(rf"^  {name}:\n((?:    .*\n|\n)+)", COMPOSE.read_text(), re.MULTILINE)
    assert found
    return found[1]


def test_prometheus_gets_the_options_that_were_tried(repository: Path) -> None:
    """Without its OTLP receiver Prometheus refuses every metric, and only the collector's log would say so."""
    stack = (repository / "scripts" / "backends.d" / "stack.py").read_text()
    tried = set(re.findall(r'"(--(?:web\.enable|enable)[^"]*)"', stack))

    shipped = set(re.findall(r"- (--(?:web\.enable|enable).*)", _service("prometheus")))

    assert tried == shipped != set()


@pytest.mark.parametrize(("service", "configuration"), [("collector", "laptop"), ("jaeger", "jaeger")])
def test_every_variable_is_one_that_the_configuration_reads(repository: Path, service: str, configuration: str) -> None:
    """A misspelled variable changes nothing and says nothing: the port would stay on the container's loopback."""
    text = (repository / "collector-config" / f"{configuration}.yaml").read_text()
    read = set(re.findall(r"\$\{env:(\w+)", text))

    given = set(re.findall(r"^      ([A-Z_]+): ", _service(service), re.MULTILINE))

    assert given
    assert given <= read


def test_nothing_is_reachable_from_outside_the_machine() -> None:
    """Nothing of the stack asks for a password."""
    ports = re.findall(r"^      - (\S+:\d+)$", COMPOSE.read_text(), re.MULTILINE)

    assert len(ports) >= 5
    assert [port for port in ports if not port.startswith("127.0.0.1:")] == []


def test_every_image_is_pinned() -> None:
    """`latest` is another program every month, and nobody would have tried it."""
    images = re.findall(r"image: (?:&\w+ )?([^*\s]\S+)", COMPOSE.read_text())

    assert len(images) >= 5
    assert [image for image in images if not re.fullmatch(r"[\w./-]+:v?\d+\.\d+\.\d+\S*", image)] == []


@pytest.mark.skipif(
    shutil.which("docker") is None
    or subprocess.run(["docker", "compose", "version"], capture_output=True, check=False).returncode != 0,
    reason="no `docker compose` here; would have shown that it understands docker-compose.yml",
)
def test_docker_compose_understands_the_file() -> None:
    """Its own schema is the judge."""
    result = subprocess.run(
        ["docker", "compose", "--file", COMPOSE, "--profile", "nvidia", "config", "--quiet"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert result.returncode == 0, result.stderr
